"""The same training steps by TRL's GRPOTrainer with its transformers backend."""

from __future__ import annotations

import time
from collections.abc import Sequence
from math import gcd
from typing import Any

import torch
from peft import LoraConfig
from transformers import TrainerCallback

from coterie.bench.measure import Timing, peak_of
from coterie.bench.options import half
from coterie.bench.shapes import scratch, shaped
from coterie.bench.training_loop import SAMPLES, evenness, texts
from coterie.games.model import letters
from coterie.models.lora_targets import DEFAULT_TARGETS

AT_ONCE = 16  # rows in a forward of its update


class _Clock(TrainerCallback):
    """Times every step; the first is the warm-up."""

    def __init__(self, device: torch.device, tokens: int) -> None:
        self.device, self.tokens, self.timings = device, tokens, list[Timing]()

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.peak = peak_of(self.device)
        self.megabytes, self.started = self.peak.__enter__(), time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        seconds = time.perf_counter() - self.started
        self.peak.__exit__(None, None, None)
        self.timings.append(Timing(seconds, self.tokens, self.megabytes[0]))


def steps(shape: str, device: torch.device, prompts: int, prompt: int, max_tokens: int, repeats: int) -> list[Timing]:
    """All rows are sampled in one `generate`; adapters, loss and reward are the same as ours."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    rows = prompts * SAMPLES
    at_once = gcd(AT_ONCE, rows)  # otherwise TRL drops the remainder
    clock = _Clock(device, rows * max_tokens)
    config = GRPOConfig(
        output_dir=str(scratch()),
        per_device_train_batch_size=at_once,
        gradient_accumulation_steps=rows // at_once,
        num_generations=SAMPLES,
        max_completion_length=max_tokens,
        generation_kwargs={"min_new_tokens": max_tokens},
        temperature=1.0,
        beta=0.0,
        loss_type="grpo",
        learning_rate=1e-5,
        lr_scheduler_type="constant",
        max_steps=repeats + 1,
        bf16=device.type == "cuda",
        use_cpu=device.type == "cpu",
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=shaped(shape, device, half(device)),
        reward_funcs=_reward,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": texts(prompts, prompt)}),
        processing_class=letters(),
        peft_config=LoraConfig(r=16, lora_alpha=32, target_modules=list(DEFAULT_TARGETS)),
        callbacks=[clock],
    )
    trainer.train()
    return clock.timings[1:]


def _reward(completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
    return [evenness(ids) for ids in completion_ids]
