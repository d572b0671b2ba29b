"""Laws of advantages: each formula against a slow reference in float64, and by hand."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from coterie.algorithms.ppo import Ppo
from coterie.rl.advantages import centered, gae, group_deviation, group_mean, leave_one_out, scaled, whitened
from coterie.types import Episode
from tests.episodes import credited, episode, turn

SEEDS = range(5)


def standardized(rewards: Tensor, group: Tensor) -> Tensor:
    """GRPO: reward minus the group mean, over the standard deviation."""
    return scaled(centered(rewards, group), rewards, group)


def ragged_groups(seed: int) -> tuple[Tensor, Tensor]:
    """Rewards in groups of one to six, shuffled, under numbers that are not in order."""
    draw = torch.Generator().manual_seed(seed)
    sizes = torch.randint(1, 7, (9,), generator=draw)
    names = torch.randperm(50, generator=draw)[:9]
    group = names.repeat_interleave(sizes)
    group = group[torch.randperm(len(group), generator=draw)]
    return torch.randn(len(group), generator=draw, dtype=torch.float64), group


def peers(rewards: Tensor, group: Tensor, i: int) -> list[float]:
    return [r for r, g in zip(rewards.tolist(), group.tolist(), strict=True) if g == int(group[i])]


def deviation(numbers: list[float]) -> float:
    return statistics.stdev(numbers) if len(numbers) > 1 else 0.0


@pytest.mark.parametrize("seed", SEEDS)
def test_group_statistics_are_those_of_each_sample_s_own_group(seed: int) -> None:
    rewards, group = ragged_groups(seed)
    own = [peers(rewards, group, i) for i in range(len(rewards))]
    mean = torch.tensor([statistics.fmean(p) for p in own], dtype=torch.float64)
    spread = torch.tensor([deviation(p) for p in own], dtype=torch.float64)
    torch.testing.assert_close(group_mean(rewards, group), mean)
    torch.testing.assert_close(group_deviation(rewards, group), spread)
    torch.testing.assert_close(centered(rewards, group), rewards - mean)
    torch.testing.assert_close(standardized(rewards, group), (rewards - mean) / (spread + 1e-6))
    others = [sum(p) - float(r) for p, r in zip(own, rewards, strict=True)]
    alone = [
        float(r) - other / (len(p) - 1) if len(p) > 1 else 0.0 for r, other, p in zip(rewards, others, own, strict=True)
    ]
    torch.testing.assert_close(leave_one_out(rewards, group), torch.tensor(alone, dtype=torch.float64))


def test_two_groups_of_a_win_and_a_loss_give_the_known_values() -> None:
    rewards, group = torch.tensor([1.0, 0.0, 1.0, 0.0], dtype=torch.float64), torch.tensor([0, 0, 1, 1])
    expected = torch.tensor([0.70711, -0.70711, 0.70711, -0.70711], dtype=torch.float64)
    torch.testing.assert_close(standardized(rewards, group), expected, atol=1e-5, rtol=0)
    assert centered(rewards, group).tolist() == [0.5, -0.5, 0.5, -0.5]


def test_a_lone_agent_gets_no_group_credit() -> None:
    rewards, group = torch.tensor([3.0, 5.0, 7.0]), torch.tensor([4, 2, 9])
    for advantages in (centered(rewards, group), standardized(rewards, group)):
        assert advantages.tolist() == [0.0, 0.0, 0.0]


def test_a_group_of_equal_rewards_gets_no_credit() -> None:
    advantages = standardized(torch.full((5,), 0.7, dtype=torch.float64), torch.zeros(5, dtype=torch.long))
    assert advantages.abs().max() < 1e-9


@pytest.mark.parametrize("seed", SEEDS)
def test_the_advantages_of_a_group_sum_to_zero(seed: int) -> None:
    rewards, group = ragged_groups(seed)
    for advantages in (centered(rewards, group), standardized(rewards, group)):
        for g in group.unique():
            assert abs(float(advantages[group == g].sum())) < 1e-9


@pytest.mark.parametrize("seed", SEEDS)
def test_permuting_rows_or_renaming_groups_changes_no_advantage(seed: int) -> None:
    rewards, group = ragged_groups(seed)
    order = torch.randperm(len(rewards), generator=torch.Generator().manual_seed(seed + 100))
    renamed = 1000 - 3 * group
    torch.testing.assert_close(standardized(rewards[order], renamed[order]), standardized(rewards, group)[order])


def slow_gae(rewards: Tensor, values: Tensor, gamma: Tensor, lam: Tensor) -> list[float]:
    """A_t = Σ_j (Π_{t≤i<j} γ_i λ_i) δ_j, each sum written out."""
    n = len(rewards)
    after = [*values[1:].tolist(), 0.0]
    delta = [float(rewards[t] + gamma[t] * after[t] - values[t]) for t in range(n)]
    return [sum(float((gamma[t:j] * lam[t:j]).prod()) * delta[j] for j in range(t, n)) for t in range(n)]


@pytest.mark.parametrize("seed", SEEDS)
def test_gae_is_the_discounted_sum_of_surprises(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    n = int(torch.randint(1, 40, (1,), generator=draw))
    rewards, values = torch.randn(2, n, generator=draw, dtype=torch.float64)
    gamma, lam = torch.rand(2, n, generator=draw, dtype=torch.float64)
    advantages, returns = gae(rewards, values, gamma, lam)
    expected = torch.tensor(slow_gae(rewards, values, gamma, lam), dtype=torch.float64)
    torch.testing.assert_close(advantages, expected)
    torch.testing.assert_close(returns, expected + values)


def test_gae_by_hand() -> None:
    def column(*numbers: float) -> Tensor:
        return torch.tensor(numbers, dtype=torch.float64)

    advantages, returns = gae(column(0, 1), column(0.5, 0.25), column(0.5, 1), column(0.8, 1))
    # δ₂ = 1 − 0.25; δ₁ = 0.5·0.25 − 0.5; A₁ = δ₁ + 0.5·0.8·δ₂
    assert advantages.tolist() == pytest.approx([-0.375 + 0.4 * 0.75, 0.75])
    assert returns.tolist() == pytest.approx([0.425, 1.0])


def test_a_discount_of_zero_cuts_the_chain_there_and_nowhere_else() -> None:
    rewards, values = torch.zeros(4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    rewards[3] = 1.0
    gamma = torch.tensor([1.0, 0.0, 1.0, 1.0], dtype=torch.float64)
    advantages, _ = gae(rewards, values, gamma, torch.ones(4, dtype=torch.float64))
    assert advantages.tolist() == [0.0, 0.0, 1.0, 1.0]


@pytest.mark.parametrize("seed", SEEDS)
def test_whitening_gives_each_scope_zero_mean_and_unit_variance(seed: int) -> None:
    x, scope = ragged_groups(seed)
    white = whitened(x, scope)
    for s in scope.unique():
        part = white[scope == s]
        assert abs(float(part.mean())) < 1e-9
        if len(part) > 1:
            assert float(part.var()) == pytest.approx(1.0, abs=1e-6)


# Ppo: the chain over the turns of an episode.


def valued_episode(seed: int) -> Episode:
    """Three roles in turn, ragged answers, rewards of their own and the team's, values everywhere."""
    draw = torch.Generator().manual_seed(seed)
    turns = []
    for i in range(5):
        size = int(torch.randint(1, 6, (1,), generator=draw))
        spoken = turn(role="abc"[i % 3], prompt=(1, 2), response=tuple(range(3, 3 + size)))
        spoken.reward = float(torch.randn(1, generator=draw))
        spoken.values = torch.randn(size, generator=draw)
        turns.append(spoken)
    return episode(turns, reward=float(torch.randn(1, generator=draw)))


def chained(played: Episode, algorithm: Ppo) -> list[float]:
    """Section 2 in words: token by token from the end, over turns whoever plays them."""
    tokens = [(k, t) for k, spoken in enumerate(played.turns) for t in range(len(spoken.response_ids))]
    carried, following, expected = 0.0, 0.0, []
    for k, t in reversed(tokens):
        spoken = played.turns[k]
        assert spoken.values is not None
        last = t == len(spoken.response_ids) - 1
        reward = (spoken.reward if last else 0.0) + (played.reward if (k, t) == tokens[-1] else 0.0)
        gamma = algorithm.gamma_turn if last else algorithm.gamma_token
        lam = algorithm.lam_turn if last else algorithm.lam_token
        carried = reward + gamma * following - float(spoken.values[t]) + gamma * lam * carried
        following = float(spoken.values[t])
        expected.append(carried)
    return expected[::-1]


PLAIN = Ppo(gamma_token=0.97, gamma_turn=0.7, lam_token=0.9, lam_turn=0.6, whiten=None)


@pytest.mark.parametrize("seed", SEEDS)
def test_ppo_chains_tokens_over_the_turns_of_the_whole_team(seed: int) -> None:
    played = valued_episode(seed)
    credited(PLAIN, [played])
    advantages = torch.cat([t.advantages for t in played.turns if t.advantages is not None])
    returns = torch.cat([t.returns for t in played.turns if t.returns is not None])
    values = torch.cat([t.values for t in played.turns if t.values is not None])
    expected = torch.tensor(chained(played, PLAIN))
    torch.testing.assert_close(advantages, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(returns, expected + values, atol=1e-5, rtol=1e-5)


def test_without_values_or_discounts_every_token_of_ppo_gets_what_is_still_to_come() -> None:
    played = valued_episode(0)
    for spoken in played.turns:
        spoken.values = torch.zeros(len(spoken.response_ids))
    credited(Ppo(lam_turn=1.0, whiten=None), [played])
    for k, spoken in enumerate(played.turns):
        to_come = played.reward + sum(later.reward for later in played.turns[k:])
        assert spoken.advantages is not None
        assert spoken.advantages.tolist() == pytest.approx([to_come] * len(spoken.response_ids), abs=1e-5)


def test_leaving_the_reference_costs_ppo_at_the_very_token_where_the_kl_is_in_the_reward() -> None:
    spoken = turn(response=(3, 4, 5), logprobs=(-1.0, -1.0, -1.0))
    spoken.values, spoken.ref_logprobs = torch.zeros(3), torch.tensor([-1.0, -3.0, -0.5])
    credited(Ppo(kl=0.1, kl_in="reward", whiten=None), [episode([spoken], reward=1.0)])
    assert spoken.advantages is not None
    # k1 is 0, 2 and −0.5; each token answers for itself and for those after it.
    assert spoken.advantages.tolist() == pytest.approx([1 - 0.15, 1 - 0.15, 1 + 0.05])


@pytest.mark.parametrize("scope", ["policy", "role", "batch"])
def test_ppo_whitens_over_the_declared_scope(scope: str) -> None:
    episodes = [valued_episode(seed) for seed in range(4)]
    for played in episodes:
        for spoken in played.turns:
            spoken.policy = "one" if spoken.role == "a" else "two"
    credited(replace(PLAIN, whiten=scope), episodes)  # type: ignore[arg-type]
    members: dict[str, list[Tensor]] = {}
    for spoken in (t for played in episodes for t in played.turns):
        name = {"policy": spoken.policy, "role": spoken.role, "batch": "all"}[scope]
        assert spoken.advantages is not None
        members.setdefault(name, []).append(spoken.advantages)
    assert len(members) == {"policy": 2, "role": 3, "batch": 1}[scope]
    for parts in members.values():
        flat = torch.cat(parts)
        assert abs(float(flat.mean())) < 1e-5 and float(flat.std()) == pytest.approx(1.0, abs=1e-4)


def test_permuting_episodes_changes_no_advantage_of_ppo() -> None:
    straight, shuffled = ([valued_episode(seed) for seed in range(4)] for _ in range(2))
    credited(Ppo(), straight)
    credited(Ppo(), [shuffled[i] for i in (2, 0, 3, 1)])
    for one, other in zip(straight, shuffled, strict=True):
        for a, b in zip(one.turns, other.turns, strict=True):
            torch.testing.assert_close(a.advantages, b.advantages, atol=1e-5, rtol=1e-5)


def test_ppo_passes_over_turns_that_nobody_values_and_keeps_what_they_earned() -> None:
    played = valued_episode(1)
    frozen = played.turns[2]
    frozen.values = None
    without = valued_episode(1)
    without.turns[1].reward += without.turns.pop(2).reward
    credited(PLAIN, [played])
    credited(PLAIN, [without])
    assert frozen.advantages is None
    for one, other in zip([t for t in played.turns if t is not frozen], without.turns, strict=True):
        torch.testing.assert_close(one.advantages, other.advantages)
