"""Log-probs of chosen tokens and the entropy beside them, without ever holding all logits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from coterie.kernels.dispatch import kernels_for
from coterie.kernels.matmul import lm_head_logits
from coterie.kernels.varlen_attention import compute_dtype
from coterie.models.base import Base

FEW = 256  # tokens whose logits exist at the same time on a CPU
LOGITS = 1 << 28  # and how many logits on a GPU: half a gigabyte, and the head's product is at its best


class ChosenLogprobs:
    """A base's head, asked about tokens that were chosen."""

    def __init__(self, base: Base) -> None:
        self.base = base
        self.ahead = True  # until a loss turns out to have a gradient by the entropy: see `_ChosenLogprobs`

    def __call__(self, hidden: Tensor, tokens: Tensor, heat: Tensor) -> tuple[Tensor, Tensor]:
        """Log-prob of each token at its temperature and the entropy there: [N, width] → [N], [N]."""
        weight, bias, dtype = self.base.lm_head.weight, self.base.lm_head.bias, compute_dtype(hidden)
        # The formulas say where they are exact; autocast would not know.
        with self.base.on_device(), torch.autocast(hidden.device.type, enabled=False):
            if not torch.is_grad_enabled():
                logprobs, entropy, _ = self.read(hidden.to(dtype), weight, bias, tokens, heat, ahead=False)
                return logprobs, entropy
            return _ChosenLogprobs.apply(hidden.to(dtype), weight, bias, tokens, heat, self)

    @property
    def formulas(self) -> Any:
        """`logprob_entropy`, or the kernels that do the same on CUDA."""
        return kernels_for(
            self.base.lm_head.weight.device.type,
            "coterie.kernels.logprob_entropy",
            "coterie.kernels.logprob_entropy_triton",
        )

    def chunks(self, hidden: Tensor) -> Iterator[slice]:
        size = FEW if hidden.device.type == "cpu" else max(FEW, LOGITS // self.base.vocab_size)
        yield from (slice(i, i + size) for i in range(0, len(hidden), size))

    def logits(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """As the model has them, but for the constant by which it may multiply them."""
        logits = lm_head_logits(hidden, weight, bias)
        return logits if self.base.softcap is None else logits.mul_(self.steep).tanh_().div_(self.steep)

    @property
    def steep(self) -> float:
        assert self.base.softcap is not None
        return self.base.logit_scale / self.base.softcap

    def slope(self, logits: Tensor, *given: Any) -> Tensor:
        """The gradient by the product with the head."""
        bent = None if self.base.softcap is None else 1 - (logits * self.steep).square_()
        slope: Tensor = self.formulas.backward(logits, *given)
        return slope if bent is None else slope.mul_(bent)

    def read(
        self, hidden: Tensor, weight: Tensor, bias: Tensor | None, tokens: Tensor, heat: Tensor, ahead: bool
    ) -> list[Tensor]:
        """Log-probs, entropies and log-sums [N] and, `ahead`, the gradient of the log-probs [N, width]."""
        weight, bias = _like(hidden, weight, bias)
        factor, parts = self.base.logit_scale / heat, []
        for cut in self.chunks(hidden):
            logits = self.logits(hidden[cut], weight, bias)
            part = list(self.formulas.forward(logits, tokens[cut], factor[cut]))
            if ahead:
                given = tokens[cut], factor[cut], part[2], part[1], torch.ones_like(part[0]), None, hidden.dtype
                part.append(self.slope(logits, *given) @ weight)
            parts.append(part)
        return [torch.cat(column) for column in zip(*parts, strict=True)]


def _like(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    return weight.to(hidden.dtype), None if bias is None else bias.to(hidden.dtype)


class _ChosenLogprobs(torch.autograd.Function):
    """Gradients by formula. Logits are computed again for them, unless the loss is of log-probs alone and the head is
    frozen: a log-prob is one number, so its gradient is taken while its logits are at hand, and scaled later."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        tokens: Tensor,
        heat: Tensor,
        chosen: ChosenLogprobs,
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.chosen, trained = chosen, any(ctx.needs_input_grad[1:3])
        found = chosen.read(hidden, weight, bias, tokens, heat, ahead=chosen.ahead and not trained)
        ctx.save_for_backward(hidden, weight, bias, tokens, heat, *found[1:])
        return found[0], found[1]

    @staticmethod
    def backward(ctx: Any, by_logprob: Tensor | None, by_entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, tokens, heat, entropy, log_sum, *ahead = ctx.saved_tensors
        chosen, (_, train_weight, train_bias, *_) = ctx.chosen, ctx.needs_input_grad
        if ahead and by_entropy is None and by_logprob is not None:
            return (ahead[0] * by_logprob[:, None]).to(hidden.dtype), None, None, None, None, None
        chosen.ahead = chosen.ahead and by_entropy is None
        first = torch.zeros_like(entropy) if by_logprob is None else by_logprob
        by_hidden = torch.empty_like(hidden)
        by_weight = torch.zeros_like(weight) if train_weight else None
        by_bias = torch.zeros_like(bias) if train_bias else None
        light, light_bias = _like(hidden, weight, bias)
        factor = chosen.base.logit_scale / heat
        for cut in chosen.chunks(hidden):
            second = None if by_entropy is None else by_entropy[cut]
            given = tokens[cut], factor[cut], log_sum[cut], entropy[cut], first[cut], second, hidden.dtype
            slope = chosen.slope(chosen.logits(hidden[cut], light, light_bias), *given)
            by_hidden[cut] = slope @ light
            if by_weight is not None:
                by_weight += slope.t() @ hidden[cut]
            if by_bias is not None:
                by_bias += slope.sum(dim=0)
        return by_hidden, by_weight, by_bias, None, None, None
