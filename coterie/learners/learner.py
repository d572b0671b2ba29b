"""Learns one policy with PyTorch: a LoRA adapter on a shared base, or a whole model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from coterie.config import Learning
from coterie.learners.distributed import ALONE, Processes
from coterie.learners.joint_step import FitJob, fit_together
from coterie.learners.logprobs import ChosenLogprobs
from coterie.learners.microbatch_budget import token_budget
from coterie.learners.packing import Stream, streams
from coterie.models.attention import to_device_async
from coterie.models.base import Base
from coterie.models.lora import Adapter
from coterie.models.peft import load_tensors, read_adapter_tensors, save_adapter
from coterie.models.progress_bars import no_progress_bars
from coterie.models.store import load_model
from coterie.rl.validate import NotFinite
from coterie.types import Batch, Loss, Measure, Metrics, Scores


class TorchLearner:
    """The weights of one policy, their optimiser, and a value head where the algorithm wants one."""

    def __init__(
        self,
        policy: str,
        base: Base,
        adapter: Adapter | None,
        lr: float,
        learning: Learning,
        steps: int,
        frozen: bool = False,
        value_lr: float | None = None,
        reference: Base | None = None,
        speaks: bool = True,
        processes: Processes = ALONE,
    ) -> None:
        """`value_lr` None means no value head. A whole model (no adapter) has a frozen copy as its reference.
        Who does not speak is a critic: of it only values are asked, and no logits are computed."""
        self.policy, self.base, self.adapter, self.frozen = policy, base, adapter, frozen
        self.lr, self.learning, self.steps, self.reference = lr, learning, steps, reference
        self.version, self.speaks, self.processes = 0, speaks, processes
        for one in (base, reference) if adapter is None and not frozen else ():
            if one is not None:
                one.use_hf_modules = True  # both go through the model's own modules: no step, no divergence
        self.chosen, self.budget = ChosenLogprobs(base), token_budget(base, learning)
        self.head: nn.Linear | None = None
        groups: list[dict[str, Any]] = []
        if not frozen:
            groups.append({"params": list(self.parameters().values()), "lr": lr, "peak": lr})
        if value_lr is not None and not frozen:
            self.head = nn.Linear(base.hidden_size, 1).to(base.device)
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)
            groups.append({"params": list(self.head.parameters()), "lr": value_lr, "peak": value_lr})
        for group in groups:
            for parameter in group["params"]:
                parameter.requires_grad_(True)
        decay = learning.weight_decay
        self.optimizer = torch.optim.AdamW(groups, lr=lr, weight_decay=decay, fused=True) if groups else None
        if learning.checkpointing and not frozen:
            base.model.gradient_checkpointing_enable({"use_reentrant": False})
            base.model.train()  # transformers checkpoints only in training mode; dropout is zero in our models

    def parameters(self) -> dict[str, nn.Parameter]:
        return self.adapter.parameters() if self.adapter else dict(self.base.model.named_parameters())

    @property
    def rate(self) -> float:
        """The learning rate of this step."""
        assert self.optimizer is not None
        return float(self.optimizer.param_groups[0]["lr"])

    def begin(self, step: int) -> None:
        """Set the learning rate of this step."""
        for group in self.optimizer.param_groups if self.optimizer else ():
            group["lr"] = group["peak"] * scheduled(step, self.steps, self.learning)

    @torch.no_grad()
    def logprobs(self, batch: Batch, reference: bool = False) -> Tensor:
        base = self.base if not reference or self.reference is None else self.reference
        name = None if reference else self.name
        here = self.here(batch)
        out = torch.zeros(len(batch), device=self.base.device)
        for stream in self.streams(batch):
            with self.precision():
                hidden = self._hidden(base, stream, name)[stream.source]
                out[stream.index] = ChosenLogprobs(base)(
                    hidden, here.tokens[stream.index], here.temperature[stream.index]
                )[0]
        self.processes.add([out])
        return out.cpu()

    @torch.no_grad()
    def scores(self, batch: Batch) -> Scores:
        here = self.here(batch)
        out = Scores(*(torch.zeros(len(batch), device=self.base.device) for _ in range(3)))
        for stream in self.streams(batch):
            with self.precision():
                hidden = self._hidden(self.base, stream, self.name)[stream.source]
                part = self.scores_of(hidden, here.each(lambda column, at=stream.index: column[at]))  # type: ignore[misc]
            for name, column in vars(out).items():
                if (numbers := getattr(part, name)) is not None and len(numbers):  # a critic has values alone
                    column[stream.index] = numbers
        self.processes.add(list(vars(out).values()))
        return Scores(*(column.cpu() for column in vars(out).values()))

    def fit(self, batch: Batch, weights: Tensor, loss: Loss, measure: Measure | None = None) -> Metrics:
        return fit_together([FitJob(self, batch, weights, loss, measure)])[0]

    def fit_together(self, lessons: Sequence[tuple[TorchLearner, Batch, Tensor, Loss, Measure]]) -> list[Metrics]:
        return fit_together([FitJob(*lesson) for lesson in lessons])

    def descend(self) -> Tensor:
        """One optimiser step; says how long the gradient was before it was clipped."""
        assert self.optimizer is not None
        trained = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        self.processes.add_gradients(trained)
        norm = nn.utils.clip_grad_norm_(trained, self.learning.clip_norm)
        if not norm.isfinite():
            self.optimizer.zero_grad(set_to_none=True)
            who, key = f"policy {self.policy}", f"policies.{self.policy}.lr"
            if not self.speaks:
                who, key = self.policy, f"critics.{self.policy.removeprefix('critic ')}.lr or algorithm.value_lr"
            raise NotFinite(
                f"{who}: its gradient is {float(norm)}, so its weights were left as they were. A lower {key} in the "
                "run's config.yaml may help; `coterie train --resume` then goes on from the latest checkpoint."
            )
        self.optimizer.step()
        torch.autograd.graph.increment_version(trained)  # the fused optimiser does not, and the engine keeps copies
        self.optimizer.zero_grad(set_to_none=True)
        self.version += 1
        return norm

    def state(self) -> dict[str, Any]:
        """What resuming needs beside the weights."""
        return {
            "version": self.version,
            "optimizer": self.optimizer.state_dict() if self.optimizer else None,
            "value_head": self.head.state_dict() if self.head else None,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.version = state["version"]
        if self.optimizer is not None and state["optimizer"] is not None:
            told = [(group["peak"], group["weight_decay"]) for group in self.optimizer.param_groups]
            self.optimizer.load_state_dict(state["optimizer"])
            for group, (peak, decay) in zip(self.optimizer.param_groups, told, strict=True):
                group["peak"], group["weight_decay"] = peak, decay  # as the config says now
        if self.head is not None and state["value_head"] is not None:
            self.head.load_state_dict(state["value_head"])

    def save(self, folder: Path) -> None:
        """The weights: an adapter in PEFT layout, or a whole model in Hugging Face layout."""
        if self.adapter is not None:
            save_adapter(self.adapter, folder, str(self.base.folder))
        elif not self.frozen:
            with no_progress_bars():
                self.base.model.save_pretrained(folder)
            self.base.tokenizer.save_pretrained(folder)

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """Saved weights, into the very tensors that the engine speaks with."""
        if self.adapter is not None:
            load_tensors(self.adapter, read_adapter_tensors(folder), folder)
        elif not self.frozen:
            saved = load_model(folder, torch.float32, self.base.own_attention).state_dict()
            for name, parameter in self.base.model.named_parameters():
                parameter.copy_(saved[name])

    @property
    def name(self) -> str | None:
        return self.adapter.name if self.adapter else None

    def precision(self) -> torch.autocast:
        return torch.autocast(self.base.device.type, torch.bfloat16, enabled=self.base.bf16)

    def here(self, batch: Batch) -> Batch:
        """The batch on the model's device: moved once, and then cut there."""
        return batch.each(lambda column: to_device_async(column, self.base.device))

    def streams(self, batch: Batch) -> Iterator[Stream]:
        """Of this process's rows; `index` is into the whole batch."""
        own = self.processes.rows(batch)
        part = batch.each(lambda column: column[own])
        part.row = part.row - part.row[:1]
        for stream in streams(part, self.budget, self.base.device, share=self.base.native):
            yield replace(stream, index=stream.index + own.start)

    def _hidden(self, base: Base, stream: Stream, adapter: str | None) -> Tensor:
        return base.hidden(stream.tokens, stream.positions, stream.layout, [(0, len(stream.tokens), adapter)])

    def _values(self, hidden: Tensor) -> Tensor:
        """In full precision also under autocast: returns differ by less than half precision can tell."""
        assert self.head is not None
        with torch.autocast(hidden.device.type, enabled=False):
            return self.head(hidden.float())[:, 0]

    def scores_of(self, hidden: Tensor, part: Batch) -> Scores:
        """What the hidden states before sampled tokens say of them; `part` is the batch cut to these."""
        values = self._values(hidden) if self.head is not None else None
        if not self.speaks:
            return Scores(hidden.new_zeros(0), hidden.new_zeros(0), values)
        return Scores(*self.chosen(hidden, part.tokens, part.temperature), values)


def scheduled(step: int, steps: int, learning: Learning) -> float:
    """The share of the peak learning rate at a step: a linear rise, then the schedule."""
    if step < learning.warmup:
        return (step + 1) / (learning.warmup + 1)
    done = (step - learning.warmup) / max(1, steps - learning.warmup)
    if learning.schedule == "linear":
        return max(0.0, 1 - done)
    if learning.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
    return 1.0
