"""Laws of credit along chains: PPO by token and by turn, over the team and by role, and token-level VDN."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from coterie.algorithms.base import Algorithm
from coterie.algorithms.ippo import Ippo
from coterie.algorithms.mappo import Mappo
from coterie.algorithms.ppo import Ppo
from coterie.algorithms.vdn_token import VdnToken
from coterie.learners.batch import make_batches
from coterie.rl.advantages import first_of_turn, whitened
from coterie.rl.losses import value_loss
from coterie.types import Batch, Episode, Scores, Turn
from tests.episodes import credited, episode, random_episodes, turn

SEEDS = range(5)
DISCOUNTS: dict[str, Any] = {"gamma_turn": 0.7, "lam_turn": 0.6, "whiten": None}
BY_TOKEN = DISCOUNTS | {"gamma_token": 0.97, "lam_token": 0.9}
EVERY: dict[str, Ppo] = {
    "team by token": Ppo(**BY_TOKEN),
    "team by turn": Ppo(**DISCOUNTS, level="turn"),
    "role by token": Ippo(**BY_TOKEN),
    "role by turn": Ippo(**DISCOUNTS, level="turn"),
}


def ragged(seed: int, longest: int = 5) -> Episode:
    """Three roles in no order, one of them perhaps absent, some turns frozen, rewards of their own and the team's."""
    draw = torch.Generator().manual_seed(seed)

    def pick(most: int) -> int:
        return int(torch.randint(most, (1,), generator=draw))

    turns = []
    for _ in range(2 + pick(6)):
        spoken = turn(role="abc"[pick(3)], response=range(3, 4 + pick(longest)))
        spoken.logprobs = tuple((-torch.rand(len(spoken.response_ids), generator=draw)).tolist())
        spoken.reward = float(torch.randn(1, generator=draw))
        if pick(5):
            spoken.values = torch.randn(len(spoken.response_ids), generator=draw)
            spoken.ref_logprobs = -torch.rand(len(spoken.response_ids), generator=draw)
        turns.append(spoken)
    return episode(turns, reward=float(torch.randn(1, generator=draw)))


Beside = Callable[[Turn], float]


def nothing(spoken: Turn) -> float:
    return 0.0


def slow(turns: list[Turn], it: Ppo, penalty: float = 0.0, beside: Beside = nothing) -> dict[tuple[int, int], float]:
    """Section 2 in words, from the end of one chain to its beginning: the advantage of each (turn, token)."""
    steps: list[tuple[int, int, float, float, bool]] = []  # turn, token, value, reward, whether the turn ends with it
    for k, spoken in enumerate(turns):
        if spoken.values is None:  # environment: what it earns is what the step before it brought about
            if steps:
                steps[-1] = (*steps[-1][:3], steps[-1][3] + spoken.credit, steps[-1][4])
            continue
        size = len(spoken.response_ids)
        cost = [penalty * (spoken.logprobs[t] - float(spoken.ref_logprobs[t])) for t in range(size)]
        if it.level == "turn":
            steps.append((k, 0, float(spoken.values[0]), spoken.credit - sum(cost), True))
            continue
        for t in range(size):
            last = t == size - 1
            steps.append((k, t, float(spoken.values[t]), (spoken.credit if last else 0.0) - cost[t], last))
    found: dict[tuple[int, int], float] = {}
    after, carried = 0.0, 0.0
    for k, t, value, reward, last in reversed(steps):
        gamma, lam = (it.gamma_turn, it.lam_turn) if last else (it.gamma_token, it.lam_token)
        team = value + beside(turns[k])
        carried = reward + gamma * after - team + gamma * lam * carried
        after = team
        found[k, t] = carried
    return found


def assert_chain(turns: list[Turn], it: Ppo, penalty: float = 0.0, beside: Beside = nothing) -> None:
    expected = slow(turns, it, penalty, beside)
    for k, spoken in enumerate(turns):
        if spoken.values is None:
            assert spoken.advantages is None and spoken.returns is None
            continue
        places = [0 if it.level == "turn" else t for t in range(len(spoken.response_ids))]
        advantages = torch.tensor([expected[k, place] for place in places])
        torch.testing.assert_close(spoken.advantages, advantages, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(spoken.returns, advantages + spoken.values[places], atol=1e-5, rtol=1e-5)


def chains(played: Episode, chain: str) -> list[list[Turn]]:
    if chain == "team":
        return [played.turns]
    return [[t for t in played.turns if t.role == role] for role in "abc"]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("name", EVERY)
def test_every_chain_is_as_its_definition_says(name: str, seed: int) -> None:
    played = ragged(seed)
    credited(EVERY[name], [played])
    for turns in chains(played, EVERY[name].chain):
        assert_chain(turns, EVERY[name])


@pytest.mark.parametrize("name", EVERY)
def test_leaving_the_reference_costs_where_it_happens_or_at_the_turn_it_is_in(name: str) -> None:
    it = replace(EVERY[name], kl=0.3, kl_in="reward")
    played = ragged(3)
    credited(it, [played])
    for turns in chains(played, it.chain):
        assert_chain(turns, it, penalty=0.3)


def test_roles_do_not_share_what_their_turns_earn_where_each_has_a_chain_of_its_own() -> None:
    turns = [turn("a"), turn("b"), turn("a")]
    for spoken, reward in zip(turns, (1.0, 10.0, 100.0), strict=True):
        spoken.reward, spoken.values = reward, torch.zeros(1)
    played = episode(turns)
    for algorithm, expected in (
        (Ippo(lam_turn=1.0, whiten=None), [101, 10, 100]),
        (Ppo(lam_turn=1.0, whiten=None), [111, 110, 100]),
    ):
        credited(algorithm, [played])
        assert [float(t.advantages[0]) for t in turns if t.advantages is not None] == expected


@pytest.mark.parametrize("level", ["token", "turn"])
def test_a_discount_of_zero_between_turns_cuts_the_chain_there_and_nowhere_else(level: Any) -> None:
    played = ragged(4)
    credited(Ppo(gamma_turn=0.0, whiten=None, level=level), [played])
    for spoken in (t for t in played.turns if t.values is not None):
        assert spoken.returns is not None
        earned = spoken.credit + _of_environment_after(played, spoken)
        assert spoken.returns.tolist() == pytest.approx([earned] * len(spoken.response_ids), abs=1e-5)


def _of_environment_after(played: Episode, spoken: Turn) -> float:
    total = 0.0
    for later in played.turns[[t is spoken for t in played.turns].index(True) + 1 :]:
        if later.values is not None:
            break
        total += later.credit or 0.0
    return total


# Turns of one token: both levels are the same algorithm.


def scored(batch: Batch, seed: int) -> tuple[Scores, Batch]:
    """Random scores of a learner that has moved, and the batch cut to what was sampled."""
    part = batch.each(lambda column: column[batch.mask])
    draw = torch.Generator().manual_seed(seed)
    new, entropy, values = torch.randn(3, len(part), generator=draw) * 0.1
    return Scores((part.old_logprobs + new).requires_grad_(), entropy, values.requires_grad_()), part


@pytest.mark.parametrize("kind", [Ppo, Ippo, Mappo])
@pytest.mark.parametrize("seed", SEEDS)
def test_turns_of_one_token_make_action_level_token_level(kind: type[Ppo], seed: int) -> None:
    options: dict[str, Any] = {"gamma_turn": 0.7, "lam_turn": 0.6, "epochs": 2, "value_clip": 0.2, "value_huber": 0.5}
    results = []
    for level in ("token", "turn"):
        algorithm = kind(level=level, **options)
        episodes = [ragged(seed * 10 + i, longest=1) for i in range(4)]
        credited(algorithm, episodes)
        batch = make_batches(episodes)["policy"]
        scores, part = scored(batch, seed)
        weights = algorithm.loss_weights(batch)[batch.mask]
        loss = algorithm.loss(scores, part)
        (weights * loss).sum().backward()
        results.append(
            (batch.advantages, batch.returns, weights, loss.detach(), scores.logprobs.grad, scores.values.grad)
        )
    torch.testing.assert_close(results[0], results[1])


# The level of turns


@pytest.mark.parametrize("seed", SEEDS)
def test_what_stands_first_in_a_turn_is_found_for_each_of_its_tokens(seed: int) -> None:
    batch = make_batches(random_episodes(seed), require_advantages=False)["policy"]
    turns = batch.turn[batch.mask]
    x = torch.randn(len(turns), generator=torch.Generator().manual_seed(seed), requires_grad=True)
    expected = [x.tolist()[turns.tolist().index(t)] for t in turns.tolist()]
    found = first_of_turn(x, turns)
    assert found.tolist() == expected
    found.sum().backward()
    sizes = [turns.tolist().count(t) if turns.tolist().index(t) == i else 0 for i, t in enumerate(turns.tolist())]
    assert x.grad is not None and x.grad.tolist() == sizes


@pytest.mark.parametrize("seed", SEEDS)
def test_the_value_of_a_turn_is_learned_at_its_first_token_and_every_turn_has_one_vote(seed: int) -> None:
    algorithm = Ppo(level="turn", epochs=2, value_clip=0.2)
    episodes = [ragged(seed * 10 + i) for i in range(4)]
    credited(algorithm, episodes)
    batch = make_batches(episodes)["policy"]
    scores, part = scored(batch, seed)
    loss = (algorithm.loss_weights(batch)[batch.mask] * algorithm.value_loss(scores, part)).sum()
    first = [part.turn.tolist().index(t) for t in sorted(set(part.turn.tolist()))]
    by_hand = [value_loss(scores.values[i], part.values[i], part.returns[i], 0.2) for i in first]
    assert float(loss.detach()) == pytest.approx(float(torch.stack(by_hand).detach().mean()), abs=1e-6)
    loss.backward()
    touched = scores.values.grad.nonzero()[:, 0].tolist()
    assert set(touched) <= set(first)


def test_the_level_decides_how_tokens_are_added_up_unless_that_is_given() -> None:
    batch = make_batches(random_episodes(1), require_advantages=False)["policy"]
    for level, other in (("token", "turn"), ("turn", "token")):
        by_default, given = Ppo(level=level), Ppo(level=level, reduce=other)  # type: ignore[arg-type]
        assert torch.equal(by_default.loss_weights(batch), Algorithm(reduce=level).loss_weights(batch))  # type: ignore[arg-type]
        assert torch.equal(given.loss_weights(batch), Algorithm(reduce=other).loss_weights(batch))  # type: ignore[arg-type]


def test_the_ratio_of_a_turn_is_one_number_however_it_is_normalised() -> None:
    batch = make_batches(random_episodes(2), require_advantages=False)["policy"]
    scores, part = scored(batch, 0)
    part.advantages, part.words = torch.ones(len(part)), torch.full((len(part),), 3.0)
    moved = scores.logprobs - part.old_logprobs
    for normalize in ("sum", "token", "word"):
        algorithm = Ppo(level="turn", normalize=normalize, epochs=2, clip=0.9, clip_high=50.0)  # type: ignore[arg-type]
        loss = Algorithm.loss(algorithm, scores, part)
        for t in part.turn.unique():
            own = moved[part.turn == t]
            count = {"sum": 1, "token": len(own), "word": 3}[normalize]
            torch.testing.assert_close(loss[part.turn == t], -(own.sum() / count).exp().expand(len(own)))


# Whitening


def test_whitening_at_the_level_of_turns_counts_every_turn_once() -> None:
    episodes = [ragged(seed) for seed in range(4)]
    credited(Ppo(level="turn", whiten="batch"), episodes)
    each = torch.stack([t.advantages[0] for e in episodes for t in e.turns if t.advantages is not None])
    assert abs(float(each.mean())) < 1e-5 and float(each.std()) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_whitening_makes_no_advantages_out_of_rounding_noise(dtype: torch.dtype) -> None:
    flat = torch.full((7,), 0.1, dtype=dtype) + torch.tensor([0.3] * 7, dtype=dtype)
    noisy = flat * (1 + 1e-8 * torch.arange(7))
    assert whitened(noisy, torch.zeros(7, dtype=torch.long)).tolist() == [0.0] * 7


# Token-level VDN


def heard(seed: int) -> Episode:
    """A ragged episode in which all have heard what was said before, but for the second turn, said beside the first."""
    played = ragged(seed)
    for place, spoken in enumerate(played.turns):
        spoken.seen = tuple(range(place)) if place != 1 else ()
    return played


def beside_in(played: Episode, others: list[Episode]) -> Beside:
    """What is added to a turn's values: of each other role the mean value of what the turn has heard of it; of one it
    has not heard, the mean over the other episodes of its mean value there, which is nothing where it is absent."""

    def mean_value(turns: list[Turn]) -> float | None:
        values = [float(value) for t in turns if t.values is not None for value in t.values]
        return sum(values) / len(values) if values else None

    def beside(spoken: Turn) -> float:
        total = 0.0
        for role in set("abc") - {spoken.role}:
            part = mean_value([played.turns[i] for i in spoken.seen if played.turns[i].role == role])
            if part is None:
                elsewhere = [mean_value([t for t in other.turns if t.role == role]) or 0.0 for other in others]
                part = sum(elsewhere) / len(elsewhere) if elsewhere else 0.0
            total += part
        return total

    return beside


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("seed", range(8))
def test_the_values_of_token_level_vdn_add_up_to_the_team_s(seed: int, count: int) -> None:
    """V_tot = V_i + Σ_{j≠i} part of j; A = GAE of V_tot; what V_i learns is the return less the others' parts."""
    algorithm = VdnToken(**BY_TOKEN)
    episodes = [heard(seed + 100 * i) for i in range(count)]
    credited(algorithm, episodes)
    for i, played in enumerate(episodes):
        beside = beside_in(played, episodes[:i] + episodes[i + 1 :])
        for turns in chains(played, "role"):
            assert_chain(turns, algorithm, beside=beside)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_value_loss_of_token_level_vdn_is_that_of_the_sum_against_the_team_s_return(seed: int) -> None:
    algorithm = VdnToken(**BY_TOKEN)
    played, other = heard(seed), heard(seed + 100)
    credited(algorithm, [played, other])
    beside = beside_in(played, [other])
    for turns in chains(played, "role"):
        for (k, t), advantage in slow(turns, algorithm, beside=beside).items():
            values, returns = turns[k].values, turns[k].returns
            assert values is not None and returns is not None
            team_value = float(values[t]) + beside(turns[k])
            team_return = advantage + team_value
            learned = float(value_loss(values[t], values[t], returns[t]))
            assert learned == pytest.approx((team_value - team_return) ** 2 / 2, abs=1e-5)


def good_and_bad(count: int) -> list[Episode]:
    """What the left one says decides the result; its critic cannot know, the right one's has heard it."""
    episodes = []
    for repeat in range(count):
        left, right = turn("left"), turn("right")
        right.seen = (0,)
        left.values, right.values = torch.tensor([0.5]), torch.tensor([float(repeat % 2 == 0)])
        episodes.append(episode([left, right], reward=float(repeat % 2 == 0), repeat=repeat))
    return episodes


def test_who_has_read_a_message_is_no_baseline_of_it() -> None:
    episodes = good_and_bad(2)
    credited(Ippo(whiten=None), episodes)
    assert [float(e.turns[0].advantages[0]) for e in episodes] == [0.5, -0.5]
    credited(VdnToken(whiten=None), episodes)
    # 1 − (0.5 + 0) and 0 − (0.5 + 1): the right one's value is that of the other episode.
    assert [float(e.turns[0].advantages[0]) for e in episodes] == [0.5, -1.5]
    many = good_and_bad(40)
    credited(VdnToken(), many)
    assert all((float(e.turns[0].advantages[0]) > 0.5) == (e.reward == 1.0) for e in many)


def test_what_is_said_later_changes_no_advantage_of_token_level_vdn() -> None:
    """But for what was earned, which is the same in both."""
    one, other = good_and_bad(4), good_and_bad(4)
    other[0].turns[1].values = torch.tensor([7.0])
    for episodes in (one, other):
        credited(VdnToken(whiten=None), episodes)
    assert torch.equal(one[0].turns[0].advantages, other[0].turns[0].advantages)
    assert not torch.equal(one[0].turns[1].advantages, other[0].turns[1].advantages)


def test_one_role_makes_token_level_vdn_ippo() -> None:
    one, other = ragged(6), ragged(6)
    for spoken in (*one.turns, *other.turns):
        spoken.role = "a"
    credited(VdnToken(**BY_TOKEN), [one])
    credited(Ippo(**BY_TOKEN), [other])
    for a, b in zip(one.turns, other.turns, strict=True):
        if a.values is not None:
            assert torch.equal(a.advantages, b.advantages) and torch.equal(a.returns, b.returns)


def test_value_that_moves_from_one_role_to_another_changes_no_advantage_of_token_level_vdn() -> None:
    one, other = good_and_bad(4), good_and_bad(4)
    for spoken in (t for played in other for t in played.turns):
        assert spoken.values is not None
        spoken.values = spoken.values + {"left": 0.5, "right": -0.5}[spoken.role]
    for episodes in (one, other):
        credited(VdnToken(whiten=None), episodes)
    for played, moved in zip(one, other, strict=True):
        torch.testing.assert_close(tensors(played.turns), tensors(moved.turns))


# Who is there


@pytest.mark.parametrize("make", [Ppo, Ippo, VdnToken, lambda: Ppo(level="turn")])
def test_a_role_absent_from_some_episodes_is_judged_where_it_speaks(make: Callable[[], Ppo]) -> None:
    both, lone, nobody = episode([turn("a"), turn("b")], 1.0), episode([turn("a")], 0.5), episode([], 0.0)
    for spoken in (*both.turns, *lone.turns):
        spoken.values = torch.zeros(1)
    credited(make(), [both, lone, nobody])
    assert all(t.advantages is not None for t in (*both.turns, *lone.turns))


def test_a_step_in_which_nobody_has_a_value_teaches_nothing() -> None:
    played = episode([turn("a"), turn("b")], 1.0)
    assert credited(Ppo(), [played]) == {}
    assert all(t.advantages is None for t in played.turns)


def tensors(turns: list[Turn]) -> list[Tensor]:
    return [t.advantages for t in turns if t.advantages is not None]


@pytest.mark.parametrize("name", [*EVERY, "vdn"])
def test_permuting_episodes_changes_no_advantage(name: str) -> None:
    algorithm = replace({**EVERY, "vdn": VdnToken(**BY_TOKEN)}[name], whiten="role")
    straight, shuffled = ([ragged(seed) for seed in range(4)] for _ in range(2))
    credited(algorithm, straight)
    credited(algorithm, [shuffled[i] for i in (2, 0, 3, 1)])
    for one, other in zip(straight, shuffled, strict=True):
        torch.testing.assert_close(tensors(one.turns), tensors(other.turns), atol=1e-5, rtol=1e-5)
