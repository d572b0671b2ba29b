"""Trains one policy with PyTorch and AdamW: a LoRA adapter on a shared base, or a whole model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from coterie.config import Learning
from coterie.learners.distributed import SINGLE_PROCESS, Processes
from coterie.learners.joint_step import FitJob, fit_together
from coterie.learners.logprobs import ChosenLogprobs
from coterie.learners.packing import Microbatch, filler, pack_microbatches, token_budget
from coterie.learners.sharded_step import clip_gradients, gathered_state, optimized, own_state, take_gradients
from coterie.learners.value_head import HEADS, Kind, MlpValueHead, ValueHead, save_head
from coterie.models.attention import to_device_async
from coterie.models.base import Base
from coterie.models.lora import Adapter
from coterie.models.peft import load_tensors, read_adapter_tensors, save_adapter
from coterie.models.progress_bars import no_progress_bars
from coterie.models.sharding import gather, load_shards
from coterie.models.store import load_model
from coterie.rl.validate import NotFinite
from coterie.types import Batch, Learner, Loss, Measure, Metrics, Scores, Weights


class TorchLearner:
    """The weights of one policy, their optimizer, and a value head where the algorithm needs one."""

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
        is_critic: bool = False,
        processes: Processes = SINGLE_PROCESS,
        head: Kind = "linear",
        trains_trunk: bool = True,
    ) -> None:
        """`value_lr` None: no value head. A whole model (no adapter) has a frozen copy as its reference policy.
        A critic only predicts values: no logits are computed. `trains_trunk` False: only the value head learns."""
        self.policy, self.base, self.adapter, self.frozen = policy, base, adapter, frozen
        self.lr, self.learning, self.steps, self.reference = lr, learning, steps, reference
        self.version, self.is_critic, self.processes = 0, is_critic, processes
        # While not None: log-probs and entropies [2, L] of every turn in its first pass of an update, by turn index.
        self.recorded: dict[int, Tensor] | None = None
        self.trains_trunk = trains_trunk and not frozen
        for one in (base, reference) if adapter is None and self.trains_trunk else ():
            if one is not None:
                one.use_hf_modules = True  # same forward for both, so that their KL is zero before the first step
        self.chosen_logprobs, self.token_budget = ChosenLogprobs(base), token_budget(base, learning)
        self.value_head: ValueHead | MlpValueHead | None = None
        groups: list[dict[str, Any]] = []
        self.trained = list(self.parameters().values()) if self.trains_trunk else []
        if self.trains_trunk:
            groups.append({"lr": lr, "peak": lr, "params": optimized(self.trained)})
        if value_lr is not None and not frozen:
            self.value_head = HEADS[head](base.hidden_size).to(base.device)
            own = list(self.value_head.parameters())
            groups.append({"lr": value_lr, "peak": value_lr, "params": own})
            self.trained += own
        for parameter in self.trained:
            parameter.requires_grad_(True)
        decay = learning.weight_decay
        self.optimizer = torch.optim.AdamW(groups, lr=lr, weight_decay=decay, fused=True) if groups else None
        if learning.checkpointing and not frozen:
            base.enable_checkpointing()

    def parameters(self) -> dict[str, nn.Parameter]:
        return self.adapter.parameters() if self.adapter else dict(self.base.model.named_parameters())

    def weights(self) -> Weights:
        """The current weights. All processes gather those of a sharded model; only rank 0 gets them."""
        if self.adapter is None and self.base.sharded:
            return gather(self.parameters(), self.processes.is_main)
        return {name: parameter.detach() for name, parameter in self.parameters().items()}

    def copy_from(self, other: Learner) -> None:
        assert isinstance(other, TorchLearner)
        self.base.load_weights(self.adapter_name, other.parameters())
        self.version = other.version

    @property
    def current_lr(self) -> float:
        assert self.optimizer is not None
        return float(self.optimizer.param_groups[0]["lr"])

    def begin(self, step: int) -> None:
        """Begin a step: set its learning rate by warm-up and schedule."""
        for group in self.optimizer.param_groups if self.optimizer else ():
            group["lr"] = group["peak"] * lr_factor(step, self.steps, self.learning)

    @torch.no_grad()
    def logprobs(self, batch: Batch, reference: bool = False) -> Tensor:
        base = self.base if not reference or self.reference is None else self.reference
        name = None if reference else self.adapter_name
        here = self.on_device(batch)
        out = torch.zeros(len(batch), device=self.base.device)
        for micro in self._inference_microbatches(base, batch):
            with self.autocast():
                hidden = self._hidden(base, micro, name)[micro.source]
                if not len(hidden):
                    continue
                tokens, temperature = here.tokens[micro.index], here.temperature[micro.index]
                out[micro.index] = ChosenLogprobs(base)(hidden, tokens, temperature)[0]
        self.processes.all_reduce_tokens([out])
        return out.cpu()

    @torch.no_grad()
    def scores(self, batch: Batch) -> Scores:
        here = self.on_device(batch)
        out = Scores(*(torch.zeros(len(batch), device=self.base.device) for _ in range(3)))
        for micro in self._inference_microbatches(self.base, batch):
            with self.autocast():
                hidden = self._hidden(self.base, micro, self.adapter_name)[micro.source]
                if not len(hidden):
                    continue
                part = self.scores_of(hidden, here.each(lambda column, at=micro.index: column[at]))  # type: ignore[misc]
            for name, column in vars(out).items():
                if (numbers := getattr(part, name)) is not None and len(numbers):  # a critic has only values
                    column[micro.index] = numbers
        self.processes.all_reduce_tokens(list(vars(out).values()))
        return Scores(*(column.cpu() for column in vars(out).values()))

    def fit(self, batch: Batch, weights: Tensor, loss: Loss, measure: Measure | None = None) -> Metrics:
        return fit_together([FitJob(self, batch, weights, loss, measure)])[0]

    def fit_together(self, jobs: Sequence[tuple[Any, Batch, Tensor, Loss, Measure | None]]) -> list[Metrics]:
        return fit_together([FitJob(*job) for job in jobs])

    def optimizer_step(self) -> Tensor:
        """Reduce and clip the gradients and take one step; returns the gradient norm before clipping."""
        assert self.optimizer is not None
        trained = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        parts = take_gradients(self.trained, trained)
        self.processes.all_reduce_gradients([one for one in trained if one not in parts])
        norm = clip_gradients(trained, parts, self.learning.clip_norm, self.processes)
        if not norm.isfinite():
            self.optimizer.zero_grad(set_to_none=True)
            owner, key = f"policy {self.policy}", f"policies.{self.policy}.lr"
            if self.is_critic:
                owner, key = self.policy, f"critics.{self.policy.removeprefix('critic ')}.lr or algorithm.value_lr"
            raise NotFinite(
                f"{owner}: its gradient norm is {float(norm)}, so its weights were not updated. A lower {key} in the "
                "run's config.yaml may help; `coterie train --resume` then continues from the latest checkpoint."
            )
        self.optimizer.step()
        torch.autograd.graph.increment_version(trained)  # which the fused optimizer omits; cached copies depend on it
        self.optimizer.zero_grad(set_to_none=True)
        self.version += 1
        return norm

    def state(self) -> dict[str, Any]:
        """The part of a checkpoint beside the weights; all processes gather it if the model is sharded."""
        return {
            "version": self.version,
            "optimizer": gathered_state(self.optimizer, self.trained, self.processes.is_main)
            if self.optimizer
            else None,
            "value_head": self.value_head.state_dict() if self.value_head else None,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.version = state["version"]
        if self.optimizer is not None and state["optimizer"] is not None:
            configured = [(group["peak"], group["weight_decay"]) for group in self.optimizer.param_groups]
            self.optimizer.load_state_dict(own_state(state["optimizer"], self.trained))
            for group, (peak, decay) in zip(self.optimizer.param_groups, configured, strict=True):
                group["peak"], group["weight_decay"] = peak, decay  # the config may have changed since
        if self.value_head is not None and state["value_head"] is not None:
            self.value_head.load_state_dict(state["value_head"])

    def save(self, folder: Path) -> None:
        """Write the weights: an adapter in PEFT layout, or a whole model in Hugging Face layout; a critic's value head.

        All processes call it if the model is sharded; rank 0 writes.
        """
        whole = self.adapter is None and self.trains_trunk
        weights = gather(self.base.model.state_dict(), self.processes.is_main) if whole and self.base.sharded else None
        if not self.processes.is_main:
            return
        if self.is_critic and self.value_head is not None:
            save_head(self.value_head, folder)
        if self.adapter is not None:
            save_adapter(self.adapter, folder, str(self.base.folder))
        elif self.trains_trunk:
            with no_progress_bars():
                self.base.model.save_pretrained(folder, state_dict=weights)
            self.base.tokenizer.save_pretrained(folder)

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """Copy saved weights into the existing tensors, which the engine shares."""
        if self.adapter is not None:
            load_tensors(self.adapter, read_adapter_tensors(folder), folder)
        elif self.trains_trunk and self.base.sharded:
            load_shards(self.base.model, folder)
        elif self.trains_trunk:
            saved = load_model(folder, torch.float32, self.base.own_attention).state_dict()
            for name, parameter in self.base.model.named_parameters():
                parameter.copy_(saved[name])

    @property
    def adapter_name(self) -> str | None:
        return self.adapter.name if self.adapter else None

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.base.device.type, torch.bfloat16, enabled=self.base.bf16)

    def on_device(self, batch: Batch) -> Batch:
        """The batch on the model's device: copied once, then indexed there by every microbatch."""
        return batch.each(lambda column: to_device_async(column, self.base.device))

    def microbatches(self, batch: Batch, selected: Tensor | None = None) -> Iterator[Microbatch]:
        """This process's rows, packed; `index` is into the batch. `selected`: True for the tokens [T] of some rows."""
        own, part = self.processes.shard_rows(batch), self.processes.own_rows(batch)
        chosen = None if selected is None else selected[own]
        for micro in pack_microbatches(part, self.token_budget, self.base.device, self.base.native, chosen):
            yield replace(micro, index=micro.index + own.start)

    def _inference_microbatches(self, base: Base, batch: Batch) -> Iterable[Microbatch]:
        """The microbatches of a pass without gradients, padded to the same number in every process if sharded."""
        own = self.microbatches(batch)
        return self.processes.pad(list(own), filler(base.device)) if base.sharded else own

    def _hidden(self, base: Base, micro: Microbatch, adapter: str | None) -> Tensor:
        return base.hidden(micro.tokens, micro.positions, micro.layout, [(0, len(micro.tokens), adapter)])

    def scores_of(self, hidden: Tensor, part: Batch) -> Scores:
        """Log-probs, entropy and values from the hidden states that predict sampled tokens; `part`: these tokens."""
        values = self.value_head(hidden) if self.value_head is not None else None
        if self.is_critic:
            return Scores(hidden.new_zeros(0), hidden.new_zeros(0), values)
        return Scores(*self.chosen_logprobs(hidden, part.tokens, part.temperature), values)


def lr_factor(step: int, steps: int, learning: Learning) -> float:
    """The learning rate of a step over its peak: linear warm-up, then the schedule."""
    if step < learning.warmup:
        return (step + 1) / (learning.warmup + 1)
    done = (step - learning.warmup) / max(1, steps - learning.warmup)
    if learning.schedule == "linear":
        return max(0.0, 1 - done)
    if learning.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
    return 1.0
