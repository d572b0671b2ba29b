"""Log-probs of the sampled tokens and the entropy, in chunks: the [N, vocabulary] logits are never held at once.

The backward pass through the LM head is written by hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from coterie.kernels.dispatch import kernels_for
from coterie.kernels.matmul import lm_head_logits
from coterie.kernels.varlen_attention import compute_dtype
from coterie.models.base import Base

CHUNK = 256  # tokens per chunk on a CPU, and at least as many on a GPU
GPU_LOGITS = 1 << 28  # logits per chunk on a GPU: half a gigabyte, enough for the LM head's matmul to be efficient


class ChosenLogprobs:
    """The LM head of a base, evaluated at the sampled tokens."""

    def __init__(self, base: Base) -> None:
        self.base = base
        self.eager_grad = True  # False once a loss has depended on the entropy: see `_ChosenLogprobs`

    def __call__(self, hidden: Tensor, tokens: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
        """Log-prob of each token at its temperature, and the entropy: [N, width] → [N], [N]."""
        weight, bias = self.base.lm_head.weight, self.base.lm_head.bias
        hidden = hidden.to(compute_dtype(hidden))
        # The kernels choose their own precision; autocast would override it.
        with self.base.on_device(), torch.autocast(hidden.device.type, enabled=False):
            if not torch.is_grad_enabled():
                found = self.forward_chunks(hidden, weight, bias, tokens, temperature, eager_grad=False)
                return found[0], found[1]
            return _ChosenLogprobs.apply(hidden, weight, bias, tokens, temperature, self)

    @property
    def kernels(self) -> Any:
        """The reference functions, or the Triton kernels on CUDA."""
        device = self.base.lm_head.weight.device.type
        return kernels_for(device, "coterie.kernels.logprob_entropy", "coterie.kernels.logprob_entropy_triton")

    def chunks(self, hidden: Tensor) -> Iterator[slice]:
        size = CHUNK if hidden.device.type == "cpu" else max(CHUNK, GPU_LOGITS // self.base.vocab_size)
        yield from (slice(i, i + size) for i in range(0, len(hidden), size))

    def logits(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Logits with softcap, before the constant factor that some models apply."""
        logits = lm_head_logits(hidden, weight, bias)
        return logits if self.base.softcap is None else logits.mul_(self.softcap_scale).tanh_().div_(self.softcap_scale)

    @property
    def softcap_scale(self) -> float:
        assert self.base.softcap is not None
        return self.base.logit_scale / self.base.softcap

    def grad_logits(self, logits: Tensor, *saved: Any) -> Tensor:
        """The gradient with respect to the LM head's output."""
        softcap_grad = None if self.base.softcap is None else 1 - (logits * self.softcap_scale).square_()
        grad: Tensor = self.kernels.backward(logits, *saved)
        return grad if softcap_grad is None else grad.mul_(softcap_grad)

    def forward_chunks(
        self, hidden: Tensor, weight: Tensor, bias: Tensor | None, tokens: Tensor, temperature: Tensor, eager_grad: bool
    ) -> list[Tensor]:
        """Log-probs, entropies and log-sum-exps [N]; with `eager_grad` also the log-probs' gradients [N, width]."""
        weight, bias = _cast(hidden, weight, bias)
        factor, parts = self.base.logit_scale / temperature, []
        for cut in self.chunks(hidden):
            logits = self.logits(hidden[cut], weight, bias)
            part = list(self.kernels.forward(logits, tokens[cut], factor[cut]))
            if eager_grad:
                saved = tokens[cut], factor[cut], part[2], part[1], torch.ones_like(part[0]), None, hidden.dtype
                part.append(self.grad_logits(logits, *saved) @ weight)
            parts.append(part)
        return [torch.cat(column) for column in zip(*parts, strict=True)]


def _cast(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    return weight.to(hidden.dtype), None if bias is None else bias.to(hidden.dtype)


class _ChosenLogprobs(torch.autograd.Function):
    """Hand-written backward. Logits are recomputed for it, unless the loss depends on log-probs alone and the LM head
    is frozen: then the gradient of each log-prob is computed in the forward pass, while its logits exist, and scaled in
    the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        tokens: Tensor,
        temperature: Tensor,
        chosen: ChosenLogprobs,
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.chosen, trained = chosen, any(ctx.needs_input_grad[1:3])
        eager_grad = chosen.eager_grad and not trained
        found = chosen.forward_chunks(hidden, weight, bias, tokens, temperature, eager_grad=eager_grad)
        ctx.save_for_backward(hidden, weight, bias, tokens, temperature, *found[1:])
        return found[0], found[1]

    @staticmethod
    def backward(ctx: Any, by_logprob: Tensor | None, by_entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, tokens, temperature, entropy, log_sum, *gradient = ctx.saved_tensors
        chosen, (_, train_weight, train_bias, *_) = ctx.chosen, ctx.needs_input_grad
        if gradient and by_entropy is None and by_logprob is not None:
            return (gradient[0] * by_logprob[:, None]).to(hidden.dtype), None, None, None, None, None
        chosen.eager_grad = chosen.eager_grad and by_entropy is None
        grad_logprob = torch.zeros_like(entropy) if by_logprob is None else by_logprob
        by_hidden = torch.empty_like(hidden)
        by_weight = torch.zeros_like(weight) if train_weight else None
        by_bias = torch.zeros_like(bias) if train_bias else None
        cast_weight, cast_bias = _cast(hidden, weight, bias)
        factor = chosen.base.logit_scale / temperature
        for cut in chosen.chunks(hidden):
            grad_entropy = None if by_entropy is None else by_entropy[cut]
            saved = tokens[cut], factor[cut], log_sum[cut], entropy[cut], grad_logprob[cut], grad_entropy, hidden.dtype
            grad = chosen.grad_logits(chosen.logits(hidden[cut], cast_weight, cast_bias), *saved)
            by_hidden[cut] = grad @ cast_weight
            if by_weight is not None:
                by_weight += grad.t() @ hidden[cut]
            if by_bias is not None:
                by_bias += grad.sum(dim=0)
        return by_hidden, by_weight, by_bias, None, None, None
