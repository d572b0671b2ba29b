"""Log-probs of chosen tokens: the hand-written backward equals autograd."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from coterie.learners import logprobs
from coterie.learners.logprobs import ChosenLogprobs
from coterie.models.base import Base

COUNT, WIDTH, VOCABULARY = 7, 5, 11


def head(scale: float, softcap: float | None, bias: bool) -> Base:
    """The LM head of a base, in double precision."""
    draw = torch.Generator().manual_seed(0)
    weight = torch.randn(VOCABULARY, WIDTH, generator=draw, dtype=torch.float64)
    linear = SimpleNamespace(weight=weight, bias=torch.randn(VOCABULARY, generator=draw).double() if bias else None)
    made = SimpleNamespace(
        lm_head=linear, logit_scale=scale, softcap=softcap, vocab_size=VOCABULARY, on_device=nullcontext
    )
    return cast(Base, made)


def plain(base: Base, hidden: Tensor, tokens: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """By autograd, all logits at once."""
    logits = torch.nn.functional.linear(hidden, base.lm_head.weight, base.lm_head.bias) * base.logit_scale
    if base.softcap is not None:
        logits = base.softcap * torch.tanh(logits / base.softcap)
    logp = (logits / temperature[:, None]).log_softmax(-1)
    return logp.gather(1, tokens[:, None])[:, 0], -(logp.exp() * logp).sum(-1)


KINDS: list[tuple[float, float | None, bool]] = [(1.0, None, False), (0.25, None, True), (1.0, 2.0, False)]


@pytest.mark.parametrize(("scale", "softcap", "bias"), KINDS, ids=["plain", "scaled, bias", "capped"])
@pytest.mark.parametrize("frozen", [True, False], ids=["frozen head", "trained head"])
@pytest.mark.parametrize("loss", ["log-probs", "entropy", "both"])
def test_gradients_of_chosen_log_probs_are_those_of_autograd(
    scale: float, softcap: float | None, bias: bool, frozen: bool, loss: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logprobs, "CHUNK", 3)  # several chunks, the last one smaller
    base = head(scale, softcap, bias)
    draw = torch.Generator().manual_seed(1)
    hidden = torch.randn(COUNT, WIDTH, generator=draw, dtype=torch.float64, requires_grad=True)
    tokens = torch.randint(0, VOCABULARY, (COUNT,), generator=draw)
    temperature = 0.5 + torch.rand(COUNT, generator=draw, dtype=torch.float64)
    first, second = torch.randn(2, COUNT, generator=draw, dtype=torch.float64)
    leaves = [
        hidden,
        *([] if frozen else [x.requires_grad_() for x in (base.lm_head.weight, base.lm_head.bias) if x is not None]),
    ]

    def by(found: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        costs = {"log-probs": found[0] * first, "entropy": found[1] * second}
        wanted = [cost.sum() for name, cost in costs.items() if loss in (name, "both")]
        return torch.autograd.grad(torch.stack(wanted).sum(), leaves)

    ours, theirs = ChosenLogprobs(base)(hidden, tokens, temperature), plain(base, hidden, tokens, temperature)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(by(ours), by(theirs), rtol=1e-10, atol=1e-12)


def test_a_loss_of_log_probs_alone_computes_logits_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss with entropy computes them twice from the second call on, not three times."""
    products = []
    true = logprobs.lm_head_logits
    monkeypatch.setattr(logprobs, "lm_head_logits", lambda *given: products.append("logits") or true(*given))
    chosen = ChosenLogprobs(head(1.0, None, False))
    tokens, temperature = torch.zeros(COUNT, dtype=torch.long), torch.ones(COUNT, dtype=torch.float64)

    def fit(entropy: float) -> int:
        hidden = torch.randn(COUNT, WIDTH, dtype=torch.float64, requires_grad=True)
        products.clear()
        found: Any = chosen(hidden, tokens, temperature)
        (found[0] + entropy * found[1] if entropy else found[0]).sum().backward()
        return len(products)

    assert fit(0.0) == 1 and chosen.eager_grad
    assert fit(0.1) == 2 and not chosen.eager_grad
