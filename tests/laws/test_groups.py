"""Laws of groups: who is compared with whom."""

from __future__ import annotations

import random

import pytest
import torch

from coterie.algorithms.grpo import Grpo
from coterie.rl.groups import GroupBy, group_index, group_key
from coterie.types import Episode, Turn
from tests.episodes import credited, episode, random_episodes, turn


def advantage(spoken: Turn) -> float:
    assert spoken.advantages is not None and len(spoken.advantages) == len(spoken.response_ids)
    assert len(set(spoken.advantages.tolist())) == 1
    return float(spoken.advantages[0])


def pair(*rewards: float, task: str = "task", role: str = "solver") -> list[Episode]:
    return [episode([turn(role, response=(3, 4))], r, task, i) for i, r in enumerate(rewards)]


def test_a_win_and_a_loss_on_each_of_two_tasks_give_the_known_values() -> None:
    episodes = pair(1, 0, task="x") + pair(1, 0, task="y")
    credited(Grpo(), episodes)
    assert [advantage(e.turns[0]) for e in episodes] == pytest.approx([0.70711, -0.70711] * 2, abs=1e-5)
    credited(Grpo(scale="none"), episodes)
    assert [advantage(e.turns[0]) for e in episodes] == [0.5, -0.5] * 2


def test_a_turn_is_worth_the_team_s_reward_and_its_own() -> None:
    episodes = pair(1, 1)
    episodes[0].turns[0].reward = 2.0
    credited(Grpo(scale="none"), episodes)
    assert [advantage(e.turns[0]) for e in episodes] == [1.0, -1.0]


def test_a_lone_agent_gets_no_group_credit() -> None:
    episodes = [episode([turn("one"), turn("two")], 1.0), *pair(0.0, task="other")]
    metrics = credited(Grpo(), episodes)
    assert [advantage(t) for e in episodes for t in e.turns] == [0.0] * 3
    assert metrics["groups/singleton"] == 3


def test_names_that_would_collide_in_a_string_do_not() -> None:
    names = [("a_b", "c"), ("a", "b_c"), ("a/b", "c"), ("a", "b/c"), ("0", "1"), ("01", "")]
    keys = [group_key(episode([t := turn(role)], task=task), t, ("task", "role")) for task, role in names]
    assert group_index(keys) == list(range(len(names)))


def test_a_task_and_a_role_of_the_same_name_are_two_things() -> None:
    spoken = turn("x")
    played = episode([spoken], task="x")
    assert group_key(played, spoken, ("task",)) != group_key(played, spoken, ("role",))


KEYS: dict[tuple[GroupBy, ...], int] = {
    ("batch",): 1,
    ("task",): 2,
    ("role",): 3,
    ("policy",): 2,
    ("turn",): 2,
    ("prompt",): 4,
    ("task", "role"): 6,
    ("task", "role", "turn"): 8,
    ("batch", "role"): 3,
}


@pytest.mark.parametrize("peers", KEYS)
def test_turns_are_compared_when_all_declared_peers_agree(peers: tuple[GroupBy, ...]) -> None:
    episodes = [
        episode(
            [
                turn("a", (t,), policy="p"),
                turn("b", (t,), policy="q"),
                turn("c", (t,), policy="q"),
                turn("c", (t, 9), policy="q", round=1),
            ],
            task=f"task {t}",
        )
        for t in (1, 2, 1)
    ]
    assert credited(Grpo(group_by=peers), episodes)["groups"] == KEYS[peers]


@pytest.mark.parametrize("peers", [("task", "role"), ("batch", "role"), ("task",), ("role", "turn")])
def test_permuting_rows_episodes_or_roles_changes_no_advantage(peers: tuple[GroupBy, ...]) -> None:
    straight, shuffled = random_episodes(4, count=12), random_episodes(4, count=12)
    order = random.Random(1)
    mixed = order.sample(shuffled, len(shuffled))
    for played in mixed:
        order.shuffle(played.turns)
    credited(Grpo(group_by=peers), straight)
    credited(Grpo(group_by=peers), mixed)
    for one, other in zip(straight, shuffled, strict=True):
        by_round = {t.round: t.advantages for t in other.turns}
        for spoken in one.turns:
            torch.testing.assert_close(spoken.advantages, by_round[spoken.round])


def test_the_advantages_of_every_group_sum_to_zero() -> None:
    episodes = random_episodes(5, count=12)
    for played in episodes:
        played.turns = [t for t in played.turns if t.response_ids]
    credited(Grpo(), episodes)
    sums: dict[tuple[str, str], float] = {}
    for played in episodes:
        for spoken in played.turns:
            key = (played.task.id, spoken.role)
            sums[key] = sums.get(key, 0.0) + advantage(spoken)
    assert len(sums) > 3 and all(abs(total) < 1e-5 for total in sums.values())


def test_constant_groups_are_left_out_where_asked_and_only_they() -> None:
    episodes = pair(1, 1, task="flat") + pair(1, 0, task="steep")
    metrics = credited(Grpo(drop_constant=True), episodes)
    assert [e.turns[0].advantages is None for e in episodes] == [True, True, False, False]
    assert metrics["groups/constant"] == 1 and metrics["dropped/constant"] == 2
    kept = pair(1, 1)
    credited(Grpo(), kept)
    assert [advantage(e.turns[0]) for e in kept] == [0.0, 0.0]


def test_turns_that_were_cut_are_left_out_where_asked_and_still_count_for_their_group() -> None:
    episodes = pair(1, 0, 0)
    episodes[0].turns[0].stop = "length"
    assert credited(Grpo(scale="none"), episodes)["dropped/truncated"] == 0
    whole = [advantage(e.turns[0]) for e in episodes]
    assert credited(Grpo(scale="none", drop_truncated=True), episodes)["dropped/truncated"] == 1
    assert episodes[0].turns[0].advantages is None
    assert [advantage(e.turns[0]) for e in episodes[1:]] == whole[1:]


@pytest.mark.parametrize("reward", [0.0, 1.0, -1.0])
def test_rounding_in_the_rewards_of_a_constant_group_is_not_blown_up_to_advantages(reward: float) -> None:
    """A KL in the reward that is zero but for rounding; divided by its own deviation it would be about one."""
    episodes = pair(*(reward * (1 + 1e-7 * i) for i in range(3)))
    for i, played in enumerate(episodes):
        spoken = played.turns[0]
        spoken.ref_logprobs = torch.tensor(spoken.logprobs) + 3e-7 * (i - 1)
    metrics = credited(Grpo(kl=0.5, kl_in="reward"), episodes)
    assert [advantage(e.turns[0]) for e in episodes] == [0.0] * 3
    assert metrics["groups/constant"] == 1
    episodes[0].reward += 1e-2 * max(1.0, abs(reward))
    credited(Grpo(kl=0.5, kl_in="reward"), episodes)
    assert advantage(episodes[0].turns[0]) == pytest.approx(1.1547, abs=1e-3)  # two thirds over √(1/3)


@pytest.mark.parametrize("mean", [0.0, 1.0, 1e4, -1e4])
def test_a_group_is_constant_by_its_spread_whatever_its_mean(mean: float) -> None:
    episodes = pair(mean, mean + 1e-3, task="steep") + pair(mean, mean, task="flat")
    metrics = credited(Grpo(drop_constant=True), episodes)
    assert metrics["groups/constant"] == 1 and metrics["dropped/constant"] == 2
    assert [e.turns[0].advantages is None for e in episodes] == [False, False, True, True]
    assert [advantage(e.turns[0]) for e in episodes[:2]] == pytest.approx([-0.70711, 0.70711], abs=2e-3)


def test_equal_rewards_are_constant_however_large() -> None:
    """The mean of three equal numbers is off by rounding, and so is their deviation; their spread is exactly zero."""
    episodes = pair(*[1e15 / 3] * 3)
    assert credited(Grpo(), episodes)["groups/constant"] == 1
    assert [advantage(e.turns[0]) for e in episodes] == [0.0] * 3


def test_the_report_counts_groups_that_teach_nothing_or_mix_prompts() -> None:
    alone = [episode([turn("lone")], 0.3, "x")]
    flat = pair(1, 1, task="flat")
    mixed = [episode([turn(prompt=(i, 5))], float(i), "mixed", i) for i in range(3)]
    good = pair(1, 0, task="good")
    assert credited(Grpo(), alone + flat + mixed + good) == {
        "groups": 4,
        "groups/singleton": 1,
        "groups/constant": 2,  # the lone one, too
        "groups/mixed_prompts": 1,
        "dropped/constant": 0,
        "dropped/truncated": 0,
    }


def test_a_step_in_which_nothing_was_played_has_no_groups() -> None:
    names = (
        "groups",
        "groups/singleton",
        "groups/constant",
        "groups/mixed_prompts",
        "dropped/constant",
        "dropped/truncated",
    )
    assert credited(Grpo(), []) == dict.fromkeys(names, 0.0)


def test_leaving_the_reference_costs_reward_where_the_kl_is_in_it() -> None:
    episodes = pair(1, 1)
    for played, off in zip(episodes, (0.5, 0.0), strict=True):
        spoken = played.turns[0]
        spoken.ref_logprobs = torch.tensor(spoken.logprobs) - off  # the reference found both tokens less likely
    credited(Grpo(scale="none", kl=0.1, kl_in="reward"), episodes)
    # The first one's reward is 1 − 0.1·(0.5 + 0.5), the other's 1.
    assert [advantage(e.turns[0]) for e in episodes] == pytest.approx([-0.05, 0.05])
    credited(Grpo(scale="none", kl=0.1), episodes)
    assert [advantage(e.turns[0]) for e in episodes] == [0.0, 0.0]
