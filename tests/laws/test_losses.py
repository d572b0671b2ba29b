"""Laws of losses: each formula, and its gradient, against a slow reference in float64, and by hand."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import get_args

import pytest
import torch
from torch import Tensor

from coterie.algorithms.base import Algorithm
from coterie.algorithms.ppo import Ppo
from coterie.learners.batch import make_batches
from coterie.rl.losses import (
    KlEstimator,
    Level,
    Normalize,
    Reduce,
    clipped_policy_loss,
    kl,
    log_ratio,
    ratio_of,
    token_weights,
    truncated_importance_weight,
    value_loss,
)
from coterie.types import Batch, Scores
from tests.episodes import episode, random_episodes, turn

SEEDS = range(5)


def columns(seed: int, count: int, size: int = 60) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return list(torch.randn(count, size, generator=draw, dtype=torch.float64))


def slow_policy_loss(new: float, old: float, advantage: float, low: float, high: float, dual: float | None) -> float:
    ratio = math.exp(new - old)
    held = min(max(ratio, 1 - low), 1 + high)
    loss = -min(ratio * advantage, held * advantage)
    return min(loss, -dual * advantage) if dual is not None and advantage < 0 else loss


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("low", "high", "dual"), [(0.2, 0.2, None), (0.2, 0.28, None), (0.1, 0.4, 2.0)])
def test_the_policy_loss_is_ppo_s(seed: int, low: float, high: float, dual: float | None) -> None:
    new, old, advantages = columns(seed, 3)
    rows = zip(new.tolist(), old.tolist(), advantages.tolist(), strict=True)
    expected = torch.tensor([slow_policy_loss(*row, low, high, dual) for row in rows], dtype=torch.float64)
    torch.testing.assert_close(clipped_policy_loss((new - old).exp(), advantages, low, high, dual), expected)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (1.0, 2.0, -2.0, -2.0),  # as sampled: the plain policy gradient
        (1.5, 1.0, -1.3, 0.0),  # good, and already likelier than clip_high allows
        (0.5, 1.0, -0.5, -0.5),  # good, and made unlikely: full gradient back
        (0.5, -1.0, 0.8, 0.0),  # bad, and already unlikelier than clip allows
        (1.5, -1.0, 1.5, 1.5),  # bad, and made likely: full gradient
        (4.0, -1.0, 3.0, 0.0),  # so likely that the dual clip of 3 holds
    ],
)
def test_the_policy_loss_and_its_gradient_by_hand(ratio: float, advantage: float, loss: float, slope: float) -> None:
    new = torch.tensor([math.log(ratio)], dtype=torch.float64, requires_grad=True)
    value = clipped_policy_loss(new.exp(), torch.tensor([advantage]), low=0.2, high=0.3, dual=3.0)
    value.sum().backward()
    assert value.tolist() == pytest.approx([loss])
    assert new.grad is not None and new.grad.tolist() == pytest.approx([slope])


LONG = 4096  # tokens of a turn: at 0.022 nats a token their sum overflows float32


def long_turn(advantage: float, drift: float) -> tuple[Scores, Batch, Tensor]:
    """One turn whose tokens have all become likelier by `drift`, in the precision that learners have."""
    said = turn(response=(3,) * LONG)
    said.advantages = torch.full((LONG,), advantage)
    said.old_logprobs, said.ref_logprobs = torch.full((LONG,), -90.0), torch.full((LONG,), -90.0)
    batch = make_batches([episode([said])])["policy"]
    new = (said.old_logprobs + drift).requires_grad_()
    return Scores(new, torch.ones(LONG)), batch.each(lambda column: column[batch.mask]), new


@pytest.mark.parametrize("drift", [0.0, 0.022, -0.022, 1.0, -1.0, 80.0])
@pytest.mark.parametrize("normalize", get_args(Normalize))
@pytest.mark.parametrize("level", get_args(Level))
@pytest.mark.parametrize("advantage", [1.0, -1.0, 0.0])
def test_a_long_turn_has_a_finite_loss_and_gradient(
    advantage: float, level: Level, normalize: Normalize, drift: float
) -> None:
    scores, batch, new = long_turn(advantage, drift)
    algorithm = Algorithm(epochs=2, level=level, normalize=normalize, kl=0.1, truncate=2.0)
    loss = algorithm.loss(scores, batch)
    loss.sum().backward()
    assert new.grad is not None and bool(loss.isfinite().all()) and bool(new.grad.isfinite().all())


@pytest.mark.parametrize("drift", [0.0, 0.022, -0.022, 80.0, -800.0, math.inf, -math.inf])
@pytest.mark.parametrize("dual", [None, 3.0])
@pytest.mark.parametrize("level", get_args(Level))
def test_an_advantage_of_zero_has_no_gradient_whatever_the_ratio(
    level: Level, dual: float | None, drift: float
) -> None:
    scores, batch, new = long_turn(0.0, drift)
    loss = Algorithm(epochs=2, level=level, dual_clip=dual).loss(scores, batch)
    loss.sum().backward()
    assert new.grad is not None and not bool(new.grad.any()) and not bool(loss.any())


def test_log_ratios_are_clamped_to_twenty_before_exp() -> None:
    far = torch.tensor([-1e4, -20.0, 0.0, 20.0, 1e4])
    expected = torch.tensor([-20.0, -20.0, 0.0, 20.0, 20.0]).exp()
    assert torch.equal(ratio_of(far), expected)
    assert torch.equal(truncated_importance_weight(far, torch.zeros(5), cap=1e30), expected)
    assert torch.equal(truncated_importance_weight(far, torch.zeros(5), cap=2.0), expected.clamp(max=2.0))
    assert bool(kl(-far, torch.zeros(5), "k3").isfinite().all())


@pytest.mark.parametrize(
    ("off", "slope"),
    [(30.0, 1.0), (1.0, 1 - math.exp(-1)), (-1.0, 1 - math.e), (-30.0, 0.0)],
)
def test_k3_far_from_the_reference_never_pushes_further_away(off: float, slope: float) -> None:
    """`off` is how much likelier the policy finds the token than the reference does."""
    new = torch.tensor([off], dtype=torch.float64, requires_grad=True)
    kl(new, torch.zeros(1, dtype=torch.float64), "k3").sum().backward()
    assert new.grad is not None and new.grad.tolist() == pytest.approx([slope])


@pytest.mark.parametrize("seed", SEEDS)
def test_kl_estimators_are_as_named(seed: int) -> None:
    new, reference = columns(seed, 2)
    for n, r, k1, k2, k3 in zip(
        *(x.tolist() for x in (new, reference, *(kl(new, reference, k) for k in get_args(KlEstimator)))), strict=True
    ):
        assert k1 == pytest.approx(n - r)
        assert k2 == pytest.approx((n - r) ** 2 / 2)
        assert k3 == pytest.approx(math.exp(r - n) - 1 - (r - n))
        assert k3 >= 0


def test_k1_and_k3_are_the_true_kl_on_average_and_k2_nearly() -> None:
    policy, reference = torch.tensor([[2.0, 1.0, 0.5], [2.1, 0.9, 0.6]], dtype=torch.float64).log_softmax(-1)
    true = float((policy.exp() * (policy - reference)).sum())
    for estimator, near in (("k1", 1e-12), ("k2", 1e-3), ("k3", 1e-12)):
        assert float((policy.exp() * kl(policy, reference, estimator)).sum()) == pytest.approx(true, abs=near)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("clip", [None, 0.3])
def test_the_value_loss_is_the_worse_of_free_and_held(seed: int, clip: float | None) -> None:
    values, old, returns = columns(seed, 3)
    expected = []
    for v, o, r in zip(values.tolist(), old.tolist(), returns.tolist(), strict=True):
        held = v if clip is None else min(max(v, o - clip), o + clip)
        expected.append(max((v - r) ** 2, (held - r) ** 2) / 2)
    torch.testing.assert_close(value_loss(values, old, returns, clip), torch.tensor(expected, dtype=torch.float64))


def slow_huber(off: float, beyond: float) -> float:
    """Half the square near zero; beyond that the straight line which continues it."""
    return off**2 / 2 if abs(off) <= beyond else beyond * abs(off) - beyond**2 / 2


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("clip", [None, 0.3])
def test_a_huber_value_loss_grows_linearly_beyond_its_bound(seed: int, clip: float | None) -> None:
    values, old, returns = columns(seed, 3)
    expected = []
    for v, o, r in zip(values.tolist(), old.tolist(), returns.tolist(), strict=True):
        held = v if clip is None else min(max(v, o - clip), o + clip)
        expected.append(max(slow_huber(v - r, 0.5), slow_huber(held - r, 0.5)))
    found = value_loss(values, old, returns, clip, huber=0.5)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


LOSSES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "policy": lambda x, old, a: clipped_policy_loss((x - old).exp(), a, 0.2, 0.3, 2.0),
    "k1": lambda x, old, a: kl(x, old, "k1"),
    "k2": lambda x, old, a: kl(x, old, "k2"),
    "k3": lambda x, old, a: kl(x, old, "k3"),
    "value": lambda x, old, a: value_loss(x, old, a, 0.3),
    "huber": lambda x, old, a: value_loss(x, old, a, 0.3, huber=0.5),
}


@pytest.mark.parametrize("name", LOSSES)
def test_the_gradient_of_a_loss_is_its_slope(name: str) -> None:
    x, old, advantages = columns(1, 3, size=25)
    assert torch.autograd.gradcheck(lambda y: LOSSES[name](y, old, advantages), (x.requires_grad_(),))


def mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers)


FIXED = 7


def declared_mean(loss: list[float], turn: list[int], episode: list[int], reduce: Reduce) -> float:
    def parts(key: list[int]) -> list[list[float]]:
        return [[x for x, k in zip(loss, key, strict=True) if k == wanted] for wanted in sorted(set(key))]

    if reduce == "token":
        return mean(loss)
    if reduce == "turn":
        return mean([mean(part) for part in parts(turn)])
    if reduce == "turn_sum":
        return mean([sum(part) for part in parts(turn)])
    if reduce == "fixed":
        return mean([sum(part) / FIXED for part in parts(turn)])
    return mean([mean(part) for part in parts(episode)])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("reduce", get_args(Reduce))
def test_token_weights_make_the_declared_mean(seed: int, reduce: Reduce) -> None:
    batch = make_batches(random_episodes(seed), require_advantages=False)["policy"]
    turn, episode = batch.turn[batch.mask], batch.episode[batch.mask]
    loss = torch.randn(len(turn), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    expected = declared_mean(loss.tolist(), turn.tolist(), episode.tolist(), reduce)
    assert float((token_weights(turn, episode, reduce, FIXED) * loss).sum()) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("normalize", get_args(Normalize))
def test_the_ratio_of_a_turn_is_made_of_its_tokens_in_the_declared_way(seed: int, normalize: Normalize) -> None:
    batch = make_batches(random_episodes(seed), require_advantages=False)["policy"]
    turn = batch.turn[batch.mask].tolist()
    draw = random.Random(seed)
    words = {number: float(draw.randrange(5)) for number in turn}  # a turn may have none
    new, old = columns(seed, 2, len(turn))
    expected = []
    for number in turn:
        moved = [float(n - o) for n, o, other in zip(new, old, turn, strict=True) if other == number]
        expected.append(sum(moved) / {"sum": 1, "token": len(moved), "word": max(words[number], 1)}[normalize])
    said = torch.tensor([words[number] for number in turn], dtype=torch.float64)
    found = log_ratio(new, old, torch.tensor(turn), "turn", normalize, said)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))
    assert torch.equal(log_ratio(new, old, torch.tensor(turn), "token", "sum", said), new - old)


def test_token_weights_by_hand() -> None:
    turn, episode = torch.tensor([0, 0, 0, 1, 2, 2]), torch.tensor([0, 0, 0, 0, 1, 1])
    by_hand: dict[Reduce, list[float]] = {
        "token": [1 / 6] * 6,
        "turn": [1 / 9] * 3 + [1 / 3] + [1 / 6] * 2,
        "turn_sum": [1 / 3] * 6,
        "episode": [1 / 8] * 4 + [1 / 4] * 2,
    }
    for reduce, weights in by_hand.items():
        assert token_weights(turn, episode, reduce).tolist() == pytest.approx(weights)


def test_tokens_that_were_not_sampled_weigh_nothing() -> None:
    batch = make_batches(random_episodes(3), require_advantages=False)["policy"]
    for reduce in get_args(Reduce):
        weights = Algorithm(reduce=reduce).loss_weights(batch)
        assert bool((weights[batch.mask] > 0).all()) and not bool(weights[~batch.mask].any())


def test_an_algorithm_s_loss_is_the_sum_of_its_declared_parts() -> None:
    batch = make_batches(random_episodes(2), require_advantages=False)["policy"]
    part = batch.each(lambda column: column[batch.mask].double())
    new, entropy, values, part.advantages, part.ref_logprobs, part.returns, part.values = columns(7, 7, len(part))
    scores = Scores(new, entropy, values)
    plain = Ppo(epochs=2, clip=0.1, clip_high=0.3, dual_clip=2.0, value_clip=0.2, value_weight=0.7)
    policy = clipped_policy_loss((new - part.old_logprobs).exp(), part.advantages, 0.1, 0.3, 2.0)
    value = 0.7 * value_loss(values, part.values, part.returns, 0.2)
    torch.testing.assert_close(plain.loss(scores, part), policy + value)
    distance = 0.4 * kl(new, part.ref_logprobs, "k2")
    whole = replace(plain, kl=0.4, kl_estimator="k2", entropy=0.05)
    torch.testing.assert_close(whole.loss(scores, part), policy + value + distance - 0.05 * entropy)
    in_reward = replace(plain, kl=0.4, kl_in="reward")
    torch.testing.assert_close(in_reward.loss(scores, part), policy + value)
