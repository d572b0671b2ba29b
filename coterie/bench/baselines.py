"""Baselines: Hugging Face `generate`, its continuous batching, vLLM, padded training with PEFT, TRL's GRPOTrainer."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from math import gcd
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, StoppingCriteria, StoppingCriteriaList, TrainerCallback

from coterie.bench.measure import Timing, Timings, peak_of
from coterie.bench.options import half
from coterie.bench.shapes import SHAPES, scratch, shaped
from coterie.bench.training_loop import SAMPLES, evenness, texts
from coterie.games.model import letters
from coterie.models.lora_targets import DEFAULT_TARGETS
from coterie.types import Batch

Ids = tuple[int, ...]
TRL_ROWS = 16  # rows in a forward of TRL's update


class _AtLimits(StoppingCriteria):
    """Stops each row at its own length."""

    def __init__(self, ends: Tensor) -> None:
        self.ends = ends

    def __call__(self, input_ids: Tensor, scores: Tensor, **_: Any) -> Tensor:
        return input_ids.shape[1] >= self.ends


@torch.no_grad()
def generate(model: PreTrainedModel, prompts: Sequence[Ids], limits: Sequence[int], sample: bool = True) -> list[Ids]:
    """`generate` on prompts of equal length; it runs until the longest row is done."""
    ids = torch.tensor(prompts, device=model.device)
    ends = ids.shape[1] + torch.tensor(limits, device=model.device)
    out = model.generate(  # type: ignore[operator]
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        generation_config=GenerationConfig(max_new_tokens=max(limits), do_sample=sample, top_k=0 if sample else None),
        stopping_criteria=StoppingCriteriaList([_AtLimits(ends)]),
    )
    return [tuple(row[ids.shape[1] :][:limit]) for row, limit in zip(out.tolist(), limits, strict=True)]


def continuous(model: PreTrainedModel, prompts: Sequence[Ids], limits: Sequence[int]) -> list[Ids]:
    """Continuous batching of transformers (`generate_batch`), with one limit for all rows: each runs to the longest."""
    how = GenerationConfig(max_new_tokens=max(limits), do_sample=True, eos_token_id=-1, pad_token_id=0)
    out = model.generate_batch([list(prompt) for prompt in prompts], generation_config=how)  # type: ignore[operator]
    return [tuple(answer.generated_tokens) for answer in out.values()]


class Vllm:
    """vLLM with random weights of the same shape."""

    def __init__(self, shape: str) -> None:
        from vllm import LLM

        folder = scratch()
        config = SHAPES[shape].to_dict() | {"torch_dtype": "bfloat16", "architectures": [architecture(shape)]}
        (folder / "config.json").write_text(json.dumps(config))
        self.engine = LLM(str(folder), load_format="dummy", skip_tokenizer_init=True, gpu_memory_utilization=0.4)

    def __call__(self, prompts: Sequence[Ids], limits: Sequence[int]) -> list[Ids]:
        from vllm import SamplingParams

        how = [SamplingParams(max_tokens=limit, temperature=1.0, ignore_eos=True, detokenize=False) for limit in limits]
        out = self.engine.generate([{"prompt_token_ids": list(prompt)} for prompt in prompts], how, use_tqdm=False)
        return [tuple(answer.outputs[0].token_ids) for answer in out]


def architecture(shape: str) -> str:
    return {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}[SHAPES[shape].model_type]


class PaddedTraining:
    """Forward and backward over padded rows, without an optimizer step."""

    def __init__(self, shape: str, device: torch.device, whole: bool, rows: int) -> None:
        """`rows`: the size of a padded batch."""
        self.rows, self.device = rows, device
        model = shaped(shape, device, half(device))
        lora = LoraConfig(r=16, lora_alpha=32, target_modules=list(DEFAULT_TARGETS))
        self.model = model if whole else get_peft_model(model, lora)
        self.trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def gradients(self, batch: Batch, weights: Tensor) -> int:
        """Gradients of Σ weight · −advantage · log-prob; returns the number of tokens without padding."""
        for parameter in self.trained:
            parameter.grad = None
        for first in range(0, batch.rows, self.rows):
            part = batch.take(range(first, min(first + self.rows, batch.rows)))
            keep = (batch.row >= first) & (batch.row < first + self.rows)
            self._add(part, weights[keep])
        return len(batch)

    def _add(self, part: Batch, weights: Tensor) -> None:
        ids, mask, row, at = (x.to(self.device) for x in (*_padded(part), part.row, part.positions))
        sampled = part.mask.to(self.device)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            logits = self.model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        logp = logits[:, :-1].float().log_softmax(dim=-1).gather(2, ids[:, 1:, None])[..., 0]
        factor = (part.advantages * weights).to(self.device)
        (-(logp[row[sampled], at[sampled] - 1] * factor[sampled]).sum()).backward()


def _padded(batch: Batch) -> tuple[Tensor, Tensor]:
    sizes = torch.bincount(batch.row)
    ids = torch.zeros(batch.rows, int(sizes.max()), dtype=torch.long)
    ids[batch.row, batch.positions] = batch.tokens
    return ids, (torch.arange(ids.shape[1]) < sizes[:, None]).long()


class _StepClock(TrainerCallback):
    """Times every step; the first is the warm-up."""

    def __init__(self, device: torch.device, tokens: int) -> None:
        self.device, self.tokens, self.timings = device, tokens, Timings()

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.peak = peak_of(self.device)
        self.megabytes, self.started = self.peak.__enter__(), time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        seconds = time.perf_counter() - self.started
        self.peak.__exit__(None, None, None)
        self.timings.append(Timing(seconds, self.tokens, self.megabytes[0]))


def trl_steps(shape: str, device: torch.device, prompts: int, prompt: int, max_tokens: int, repeats: int) -> Timings:
    """All rows are sampled in one `generate`; adapters, loss and reward are the same as ours."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    rows = prompts * SAMPLES
    at_once = gcd(TRL_ROWS, rows)  # otherwise TRL drops the remainder
    clock = _StepClock(device, rows * max_tokens)
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
        reward_funcs=_evenness_reward,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": texts(prompts, prompt)}),
        processing_class=letters(),
        peft_config=LoraConfig(r=16, lora_alpha=32, target_modules=list(DEFAULT_TARGETS)),
        callbacks=[clock],
    )
    trainer.train()
    return clock.timings[1:]


def _evenness_reward(completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
    return [evenness(ids) for ids in completion_ids]
