"""Laws of confidence: how sure a message was weighs its advantage, and only within its group."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from coterie.algorithms.grpo import Grpo, RoleSettings
from coterie.episode_rows import read_episodes
from coterie.rl.confidence import confidence_factor, nll_factor
from coterie.types import Episode
from tests.episodes import credited, episode, turn
from tests.runs import naming_config, trained

SEEDS = range(4)


def ragged(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Advantages, entropies, those of others, and groups of one to five."""
    draw = torch.Generator().manual_seed(seed)
    group = torch.arange(7).repeat_interleave(torch.randint(1, 6, (7,), generator=draw))
    group = group[torch.randperm(len(group), generator=draw)]
    numbers = torch.rand(3, len(group), generator=draw, dtype=torch.float64)
    return numbers[0] - 0.5, 3 * numbers[1], 3 * numbers[2], group


def slow_scores(x: list[float], group: list[int]) -> list[float]:
    scores = []
    for number, own in zip(x, group, strict=True):
        peers = [other for other, g in zip(x, group, strict=True) if g == own]
        spread = statistics.pstdev(peers)
        scores.append((number - statistics.fmean(peers)) / spread if spread else 0.0)
    return scores


def test_the_known_values_of_the_nll_form() -> None:
    advantages, logprobs = torch.tensor([[1.0, 1, -1, -1], [-0.1, -0.2, -0.3, -0.4]], dtype=torch.float64)
    got = advantages * nll_factor(logprobs, torch.zeros(4, dtype=torch.long), alpha=0.25)
    assert got.tolist() == pytest.approx([1.3985, 1.1183, -0.8942, -0.7150], abs=5e-5)


@pytest.mark.parametrize("seed", SEEDS)
def test_each_confidence_weight_is_its_formula_with_the_vocabulary_in_it(seed: int) -> None:
    advantages, entropy, others, group = ragged(seed)
    vocabulary, a, g = math.log(49152), advantages.tolist(), group.tolist()
    sure = [vocabulary - h for h in entropy.tolist()]
    beyond = [c - (vocabulary - h) for c, h in zip(sure, others.tolist(), strict=True)]

    def signed(c: list[float]) -> list[float]:
        scores = slow_scores(c, g)
        return [x * math.exp(math.copysign(1.0, x) * 0.25 * z) for x, z in zip(a, scores, strict=True)]

    sign = advantages.sign()
    assert (advantages * confidence_factor(sign, entropy, group, 0.25)).tolist() == pytest.approx(signed(sure))
    relative = confidence_factor(sign, entropy - others, group, 0.25)
    assert (advantages * relative).tolist() == pytest.approx(signed(beyond))
    unlikely = [x * math.exp(-0.7 * z) for x, z in zip(a, slow_scores(entropy.tolist(), g), strict=True)]
    assert (advantages * nll_factor(-entropy, group, 0.7)).tolist() == pytest.approx(unlikely)


def test_messages_that_are_equally_sure_keep_their_advantages() -> None:
    advantages, same = torch.tensor([1.0, -2.0, 0.5, 3.0]), torch.full((4,), 0.3) + 1e-8 * torch.arange(4)
    group = torch.tensor([0, 0, 0, 1])
    for factor in (confidence_factor(advantages.sign(), same, group, 0.25), nll_factor(same, group, 0.25)):
        assert torch.equal(advantages * factor, advantages)


# On episodes


def sure_pair(*entropies: tuple[float, float], rewards: tuple[float, float] = (1.0, 0.0)) -> list[Episode]:
    """Two episodes of two roles, with the entropy of each role's message."""
    episodes = [episode([turn("a"), turn("b")], r, repeat=i) for i, r in enumerate(rewards)]
    for played, some in zip(episodes, entropies, strict=True):
        for spoken, entropy in zip(played.turns, some, strict=True):
            spoken.entropy = torch.tensor([entropy])
    return episodes


def advantages_of(episodes: list[Episode], role: str) -> list[float]:
    return [float(t.advantages[0]) for e in episodes for t in e.turns if t.role == role and t.advantages is not None]


UP, DOWN = math.exp(0.25), math.exp(-0.25)


def test_a_message_is_weighed_by_its_own_confidence_or_by_that_beyond_the_other_roles() -> None:
    episodes = sure_pair((1.0, 5.0), (2.0, 7.0))
    credited(Grpo(scale="none", confidence_weight="confidence"), episodes)
    assert advantages_of(episodes, "a") == pytest.approx([0.5 * UP, -0.5 * UP])  # the loser was unsure: −z again
    credited(Grpo(scale="none", confidence_weight="relative"), episodes)
    # Beside the other role the first is 4 surer, the second 5.
    assert advantages_of(episodes, "a") == pytest.approx([0.5 * DOWN, -0.5 * DOWN])
    assert advantages_of(episodes, "b") == pytest.approx([0.5 * UP, -0.5 * UP])


def test_the_nll_form_reads_the_sampler_s_log_probs() -> None:
    episodes = [episode([turn(logprobs=(-0.1,))], 1.0), episode([turn(logprobs=(-3.0,))], 0.0, repeat=1)]
    credited(Grpo(scale="none", confidence_weight="nll"), episodes)
    assert advantages_of(episodes, "solver") == pytest.approx([0.5 * UP, -0.5 * DOWN])


def test_a_turn_that_nobody_read_keeps_its_advantage_and_moves_no_other() -> None:
    episodes = [*sure_pair((1.0, 5.0), (2.0, 7.0)), episode([turn("a")], 2.0, repeat=2)]
    known = [*sure_pair((1.0, 5.0), (2.0, 7.0)), episode([turn("a")], 2.0, repeat=2)]
    credited(Grpo(confidence_weight="confidence"), episodes)
    credited(Grpo(), known)
    plain, weighed = advantages_of(known, "a"), advantages_of(episodes, "a")
    assert weighed[2] == plain[2]
    assert weighed[:2] == pytest.approx([plain[0] * DOWN, plain[1] * UP])  # both earned less than the mean now


def test_a_turn_without_words_is_no_trouble() -> None:
    said = [episode([turn(logprobs=(-0.1,))], 1.0), episode([turn(logprobs=(-3.0,))], 0.0, repeat=1)]
    silent = [episode([turn(response=())], 0.5, repeat=2)]
    credited(Grpo(scale="none", confidence_weight="nll"), said + silent)
    assert advantages_of(said, "solver") == pytest.approx([0.5 * UP, -0.5 * DOWN])


def test_entropies_are_read_only_where_a_gain_asks_for_them() -> None:
    assert not Grpo().needs_entropy and not Grpo(confidence_weight="nll").needs_entropy
    assert Grpo(confidence_weight="confidence").needs_entropy and Grpo(confidence_weight="relative").needs_entropy
    assert Grpo(roles={"actor": RoleSettings(confidence_weight="confidence")}).needs_entropy


@pytest.mark.parametrize("gain", ["confidence", "relative", "nll"])
def test_a_team_trains_with_a_gain(gain: str, model_folder: Callable[[str], Path], tmp_path: Path) -> None:
    tree = naming_config(
        model_folder("llama"), steps=1, algorithm={"name": "grpo", "confidence_weight": gain, "confidence_alpha": 0.5}
    )
    run = trained(tree, tmp_path / "gain")
    plain = trained(tree | {"algorithm": "grpo"}, tmp_path / "plain")
    assert run.learners["left"].version == 1
    stored, without = (read_episodes(r.folder / "episodes" / "000001.jsonl.gz") for r in (run, plain))
    assert [t.response_ids for e in stored for t in e.turns] == [t.response_ids for e in without for t in e.turns]
    one, other = (torch.cat([p.flatten() for p in r.learners["left"].parameters().values()]) for r in (run, plain))
    assert not torch.equal(one, other)
