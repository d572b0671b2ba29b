"""Learns one policy with PyTorch: a LoRA adapter on a shared base, or a whole model."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from coterie.config import Learning
from coterie.learners.packing import Stream, streams
from coterie.models.base import Base
from coterie.models.lora import Adapter
from coterie.models.peft import WEIGHTS, fill, save_adapter
from coterie.models.store import load_model
from coterie.types import Batch, Loss, Metrics, Scores

CHUNK = 256  # sampled tokens whose logits exist at the same time


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
    ) -> None:
        """`value_lr` None means no value head. A whole model (no adapter) has a frozen copy as its reference.
        Who does not speak is a critic: of it only values are asked, and no logits are computed."""
        self.policy, self.base, self.adapter, self.frozen = policy, base, adapter, frozen
        self.lr, self.learning, self.steps, self.reference = lr, learning, steps, reference
        self.version, self.speaks = 0, speaks
        self.head: nn.Linear | None = None
        groups: list[dict[str, Any]] = []
        if not frozen:
            groups.append({"params": list(self.parameters().values()), "lr": lr, "peak": lr})
        if value_lr is not None and not frozen:
            self.head = nn.Linear(base.width, 1).to(base.device)
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

    def begin(self, step: int) -> None:
        """Set the learning rate of this step."""
        for group in self.optimizer.param_groups if self.optimizer else ():
            group["lr"] = group["peak"] * scheduled(step, self.steps, self.learning)

    @torch.no_grad()
    def logprobs(self, batch: Batch, reference: bool = False) -> Tensor:
        base = self.base if not reference or self.reference is None else self.reference
        name = None if reference else self._name
        out = torch.zeros(len(batch))
        for stream in self._streams(batch):
            tokens, temperature = batch.tokens[stream.index], batch.temperature[stream.index]
            with self._precision():
                hidden = self._hidden(base, stream, name)[stream.source]
                out[stream.index] = chosen_logprobs(base, hidden, tokens, temperature)[0].cpu()
        return out

    @torch.no_grad()
    def scores(self, batch: Batch) -> Scores:
        out = Scores(*(torch.zeros(len(batch)) for _ in range(3)))
        for stream in self._streams(batch):
            with self._precision():
                part = self._score(stream, batch.each(lambda column, at=stream.index: column[at]))  # type: ignore[misc]
            for name, column in vars(out).items():
                if (numbers := getattr(part, name)) is not None and len(numbers):  # a critic has values alone
                    column[stream.index] = numbers.cpu()
        return out

    def fit(self, batch: Batch, weights: Tensor, loss: Loss) -> Metrics:
        assert self.optimizer is not None, f"{self.policy} is frozen"
        self.optimizer.zero_grad(set_to_none=True)
        sums: defaultdict[str, float] = defaultdict(float)
        gap_max = 0.0
        for stream in self._streams(batch):
            part = batch.each(lambda column, at=stream.index: column[at].to(self.base.device))  # type: ignore[misc]
            # Around `backward` too: gradient checkpointing runs the layers again there.
            with self.base.routing.on([(0, len(stream.tokens), self._name)]), self._precision():
                scores = self._score(stream, part)
                cost = (loss(scores, part) * weights[stream.index].to(self.base.device)).sum()
                cost.backward()
            sums["loss"] += float(cost.detach())
            if self.speaks:
                off = (scores.logprobs - part.logprobs).detach()
                sums["entropy"] += float(scores.entropy.detach().sum())
                sums["gap"] += float(off.abs().sum())
                sums["kl_step"] -= float((scores.logprobs.detach() - part.old_logprobs).sum())
                gap_max = max(gap_max, float(off.abs().max()))
        norm = self._descend()
        count = int(batch.mask.sum())
        metrics = {"loss": sums["loss"], "grad_norm": norm, "lr": self.optimizer.param_groups[0]["lr"]}
        if self.speaks:
            # kl_step: from the policy before this step's updates, seen just before this one
            metrics |= {name: sums[name] / count for name in ("entropy", "gap", "kl_step")} | {"gap_max": gap_max}
        return metrics

    def _descend(self) -> float:
        """One optimiser step; says how long the gradient was before it was clipped."""
        assert self.optimizer is not None
        trained = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        norm = nn.utils.clip_grad_norm_(trained, self.learning.clip_norm)
        self.optimizer.step()
        torch.autograd.graph.increment_version(trained)  # the fused optimiser does not, and the engine keeps copies
        self.optimizer.zero_grad(set_to_none=True)
        self.version += 1
        return float(norm)

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
            self.optimizer.load_state_dict(state["optimizer"])
        if self.head is not None and state["value_head"] is not None:
            self.head.load_state_dict(state["value_head"])

    def save(self, folder: Path) -> None:
        """The weights: an adapter in PEFT layout, or a whole model in Hugging Face layout."""
        if self.adapter is not None:
            save_adapter(self.adapter, folder, str(self.base.folder))
        elif not self.frozen:
            self.base.model.save_pretrained(folder)
            self.base.tokenizer.save_pretrained(folder)

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """Saved weights, into the very tensors that the engine speaks with."""
        if self.adapter is not None:
            fill(self.adapter, load_file(folder / WEIGHTS), folder)
        elif not self.frozen:
            saved = load_model(folder, torch.float32, self.base.own_attention).state_dict()
            for name, parameter in self.base.model.named_parameters():
                parameter.copy_(saved[name])

    @property
    def _name(self) -> str | None:
        return self.adapter.name if self.adapter else None

    def _precision(self) -> torch.autocast:
        return torch.autocast(self.base.device.type, torch.bfloat16, enabled=self.base.device.type == "cuda")

    def _streams(self, batch: Batch) -> Iterator[Stream]:
        return streams(batch, self.learning.microbatch_tokens, self.base.device, share=self.base.native)

    def _hidden(self, base: Base, stream: Stream, adapter: str | None) -> Tensor:
        return base.hidden(stream.tokens, stream.positions, stream.layout, [(0, len(stream.tokens), adapter)])

    def _values(self, hidden: Tensor) -> Tensor:
        """In full precision also under autocast: returns differ by less than half precision can tell."""
        assert self.head is not None
        with torch.autocast(hidden.device.type, enabled=False):
            return self.head(hidden.float())[:, 0]

    def _score(self, stream: Stream, part: Batch) -> Scores:
        """The sampled tokens of one stream; `part` is the batch cut to them."""
        hidden = self._hidden(self.base, stream, self._name)[stream.source]
        values = self._values(hidden) if self.head is not None else None
        if not self.speaks:
            return Scores(hidden.new_zeros(0), hidden.new_zeros(0), values)
        return Scores(*chosen_logprobs(self.base, hidden, part.tokens, part.temperature), values)


def chosen_logprobs(base: Base, hidden: Tensor, tokens: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """Log-prob of each chosen token and the entropy beside it: [N, width] → [N], [N].

    In chunks whose logits are forgotten and, for the gradient, computed again: [N, vocabulary] never exists.
    """

    def chunk(h: Tensor, chosen: Tensor, heat: Tensor) -> tuple[Tensor, Tensor]:
        logp = (base.logits(h).float() / heat[:, None]).log_softmax(dim=-1)
        return logp.gather(1, chosen[:, None])[:, 0], -(logp.exp() * logp).sum(dim=-1)

    tokens, temperature = tokens.to(hidden.device), temperature.to(hidden.device)
    parts = []
    for i in range(0, len(hidden), CHUNK):
        cut = slice(i, i + CHUNK)
        again = torch.is_grad_enabled()
        args = (hidden[cut], tokens[cut], temperature[cut])
        parts.append(checkpoint(chunk, *args, use_reentrant=False, preserve_rng_state=False) if again else chunk(*args))
    return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])


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
