"""Laws of the algorithms that compare groups: each against its definition, written out slowly."""

from __future__ import annotations

import copy
import inspect
import math
import random
import statistics
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from coterie.algorithms.at_grpo import AtGrpo
from coterie.algorithms.base import Algorithm
from coterie.algorithms.dapo import Dapo
from coterie.algorithms.dr_grpo import DrGrpo
from coterie.algorithms.dr_mas import DrMas
from coterie.algorithms.grpo import Grpo, RoleSettings
from coterie.algorithms.gspo import Gspo
from coterie.algorithms.rae import Rae
from coterie.algorithms.reinforce_pp import ReinforcePp
from coterie.algorithms.rloo import Rloo
from coterie.config import ConfigError, load
from coterie.config.conflicts import check_conflicts
from coterie.config.registry import BUILTIN, find
from coterie.credit.team import Team
from coterie.episode_rows import read_episodes
from coterie.learners.batch import make_batches
from coterie.rl.losses import token_weights
from coterie.types import Episode, Scores, Turn
from tests.episodes import credited, episode, random_episodes, turn
from tests.laws.test_resume import assert_same_run
from tests.runs import naming_config, resumed, trained, written

Said = list[tuple[Episode, Turn]]
BY_TURN: dict[str, Grpo] = {
    "grpo": Grpo(),
    "dr_grpo": DrGrpo(reduce_length=128),
    "rloo": Rloo(),
    "gspo": Gspo(),
    "dapo": Dapo(),
    "dr_mas": DrMas(),
    "at_grpo": AtGrpo(),
    "rae": Rae(),
}
PRESETS = BY_TURN | {"reinforce++": ReinforcePp(kl=0.3)}


def ragged(seed: int) -> list[Episode]:
    """Conversations with rewards of the team and of single turns, a reference, and turns that were cut."""
    draw = random.Random(seed)
    episodes = random_episodes(seed, count=14, policies=("p", "q"))
    for played in episodes:
        for spoken in played.turns:
            spoken.reward = draw.choice([None, draw.random()])
            spoken.ref_logprobs = torch.tensor([draw.gauss(-1, 1) for _ in spoken.response_ids])
            spoken.stop = draw.choice(["end", "end", "length"])
    twins = [episode([turn("twin")], 0.25, "flat", i) for i in range(2)]
    for played in twins:
        played.turns[0].ref_logprobs = torch.tensor([-1.0])
    return [*episodes, *twins]


def slow_reward(played: Episode, spoken: Turn) -> float:
    """The team's reward, and the role's own from here on."""
    place = next(i for i, t in enumerate(played.turns) if t is spoken)
    return played.reward + sum(t.reward or 0.0 for t in played.turns[place:] if t.role == spoken.role)


def task_and_role(played: Episode, spoken: Turn) -> Hashable:
    return played.task.id, spoken.role


def opponents(played: Episode, spoken: Turn) -> Hashable:
    return spoken.role, frozenset(t.policy for t in played.turns if t.policy != spoken.policy)


KEYS: dict[str, Callable[[Episode, Turn], Hashable]] = {
    **dict.fromkeys(("grpo", "dr_grpo", "rloo", "gspo", "dapo", "dr_mas"), task_and_role),
    "at_grpo": lambda played, spoken: (played.task.id, spoken.role, spoken.round, spoken.prompt_ids),
    "rae": opponents,
}


def slow_advantage(name: str, reward: float, peers: list[float]) -> float | None:
    """The table of presets: what a reward is worth among those of its group, itself among them."""
    mean, spread = statistics.fmean(peers), statistics.stdev(peers) if len(peers) > 1 else 0.0
    if name == "rae":
        return reward - mean  # of a first step, which has no history
    if name == "rloo":
        return reward - (sum(peers) - reward) / (len(peers) - 1) if len(peers) > 1 else 0.0
    if name == "dapo" and spread == 0:
        return None
    return reward - mean if name == "dr_grpo" else (reward - mean) / (spread + 1e-6)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", BY_TURN)
def test_every_preset_is_its_definition(name: str, seed: int) -> None:
    algorithm, episodes = PRESETS[name], ragged(seed)
    metrics = credited(algorithm, episodes)
    said: Said = [(e, t) for e in episodes for t in e.turns]
    rewards = [slow_reward(e, t) for e, t in said]
    keys = [KEYS[name](e, t) for e, t in said]
    missing = 0
    for (_, spoken), key, reward in zip(said, keys, rewards, strict=True):
        expected = slow_advantage(name, reward, [r for r, k in zip(rewards, keys, strict=True) if k == key])
        if expected is None or (name == "dapo" and spoken.stop == "length"):
            assert spoken.advantages is None
            missing += 1
        else:
            assert spoken.advantages is not None
            assert spoken.advantages.tolist() == pytest.approx([expected] * len(spoken.response_ids), abs=1e-5)
    assert metrics["groups"] == len(set(keys)) and metrics["groups/singleton"] == sum(keys.count(k) == 1 for k in keys)
    assert (missing > 0) == (name == "dapo")
    assert max(metrics["dropped/truncated"], metrics["dropped/constant"]) <= missing
    assert missing <= metrics["dropped/truncated"] + metrics["dropped/constant"]


@pytest.mark.parametrize("seed", range(3))
def test_reinforce_pp_whitens_the_reward_less_the_kl_still_to_come_over_all_tokens(seed: int) -> None:
    """arXiv 2501.03262, equations 8 to 10; verl's compute_reinforce_plus_plus_outcome_advantage, in which the KL of a
    conversation's later turns flows back as well."""
    episodes = ragged(seed)
    metrics = credited(ReinforcePp(kl=0.3), episodes)
    said: Said = [(e, t) for e in episodes for t in e.turns]
    by_token: list[list[float]] = []
    for played, spoken in said:
        place = next(i for i, t in enumerate(played.turns) if t is spoken)
        later = [t for t in played.turns[place:] if t.role == spoken.role]
        off = [a - b for t in later for a, b in zip(t.logprobs, t.ref_logprobs.tolist(), strict=True)]
        size = len(spoken.response_ids)
        by_token.append([slow_reward(played, spoken) - 0.3 * sum(off[t:]) for t in range(size)])
    whole = [x for row in by_token for x in row]
    mean, spread = statistics.fmean(whole), statistics.stdev(whole)
    for (_, spoken), row in zip(said, by_token, strict=True):
        assert spoken.advantages is not None
        assert spoken.advantages.tolist() == pytest.approx([(x - mean) / spread for x in row], abs=1e-5)
    assert metrics["groups"] == 1


def test_reinforce_pp_by_hand() -> None:
    """Two answers, of two tokens and of one, with β = 1: returns 1 − (0.5 + 0.5), 1 − 0.5 and 0."""
    long, short = turn("a", response=(3, 4)), turn("b", response=(5,))
    long.ref_logprobs, short.ref_logprobs = torch.tensor([-1.5, -1.5]), torch.tensor([-1.0])
    credited(ReinforcePp(kl=1.0), [episode([long], 1.0), episode([short], 0.0, "other")])
    third = 1 / 12**0.5  # the deviation of 0, 0.5 and 0
    assert long.advantages.tolist() == pytest.approx([-1 / 6 / third, 1 / 3 / third], abs=1e-5)
    assert short.advantages.tolist() == pytest.approx([-1 / 6 / third], abs=1e-5)


def test_a_gain_weighs_a_message_of_reinforce_pp_as_a_whole() -> None:
    def played(**options: Any) -> list[Turn]:
        turns = [turn("a", response=(3, 4, 5), logprobs=(-0.1,) * 3), turn("a", response=(6,), logprobs=(-2.0,))]
        for spoken in turns:
            spoken.ref_logprobs = torch.linspace(-1.0, -3.0, len(spoken.response_ids))
        rewards = zip(turns, (1.0, 0.0), strict=True)
        credited(ReinforcePp(kl=0.1, **options), [episode([t], r, repeat=i) for i, (t, r) in enumerate(rewards)])
        return turns

    for plain, gained, up in zip(played(), played(confidence_weight="nll"), (0.25, -0.25), strict=True):
        assert len(set(plain.advantages.tolist())) == len(plain.response_ids)
        torch.testing.assert_close(gained.advantages, plain.advantages * math.exp(up))


def test_the_known_values_of_a_win_and_a_loss_on_each_of_two_tasks() -> None:
    episodes = [episode([turn()], r, task, i) for task in "xy" for i, r in enumerate((1.0, 0.0))]
    for algorithm, win in ((Grpo(), 0.70711), (Rloo(), 1.0), (DrGrpo(reduce_length=8), 0.5)):
        credited(algorithm, episodes)
        assert [float(e.turns[0].advantages[0]) for e in episodes] == pytest.approx([win, -win] * 2, abs=1e-5)


@pytest.mark.parametrize("name", PRESETS)
def test_permuting_episodes_and_renaming_roles_changes_no_advantage(name: str) -> None:
    straight, shuffled = ragged(7), ragged(7)
    memory: dict[str, Any] = {}
    for played in shuffled:
        for spoken in played.turns:
            spoken.role = {"role 0": "z", "role 1": "role 0"}.get(spoken.role, spoken.role)
    mixed = random.Random(3).sample(shuffled, len(shuffled))
    credited(PRESETS[name], straight)
    Team().assign(mixed, {}, team_chain=False)
    PRESETS[name].compute_advantages(mixed, memory)
    for one, other in zip(straight, shuffled, strict=True):
        for a, b in zip(one.turns, other.turns, strict=True):
            assert (a.advantages is None) == (b.advantages is None)
            if a.advantages is not None:
                torch.testing.assert_close(a.advantages, b.advantages)


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "gspo", "dr_mas", "at_grpo"])
def test_the_advantages_of_every_group_sum_to_zero(name: str) -> None:
    episodes = [replace(e, turns=[t for t in e.turns if t.response_ids]) for e in ragged(5)]
    credited(PRESETS[name], episodes)
    sums: dict[Hashable, float] = {}
    for played in episodes:
        for spoken in played.turns:
            assert spoken.advantages is not None
            key = KEYS[name](played, spoken)
            sums[key] = sums.get(key, 0.0) + float(spoken.advantages[0])
    assert len(sums) > 2 and all(abs(total) < 1e-5 for total in sums.values())


def test_dr_mas_never_lets_one_role_s_rewards_touch_another_s_advantages() -> None:
    plain, other = ragged(2), ragged(2)
    for played in other:
        for spoken in played.turns:
            if spoken.role == "role 1":
                spoken.reward = (spoken.reward or 0.0) * 100 - 7
    credited(DrMas(), plain)
    credited(DrMas(), other)
    kept = [
        (a, b)
        for one, two in zip(plain, other, strict=True)
        for a, b in zip(one.turns, two.turns, strict=True)
        if a.role != "role 1"
    ]
    assert len(kept) > 10 and all(torch.equal(a.advantages, b.advantages) for a, b in kept)


# Losses and weights


def two_turns() -> list[Episode]:
    return [episode([turn("a", (1, 2), (3, 4, 5))], 1.0), episode([turn("a", (1, 2), (6,))], 0.0, repeat=1)]


def test_dr_grpo_adds_up_tokens_and_divides_by_the_same_length_for_all() -> None:
    episodes = two_turns()
    algorithm = DrGrpo(reduce_length=10)
    credited(algorithm, episodes)
    batch = make_batches(episodes)["policy"]
    assert algorithm.loss_weights(batch)[batch.mask].tolist() == pytest.approx([1 / 10 / 2] * 4)


def test_gspo_clips_a_turn_by_the_geometric_mean_of_its_tokens_ratios() -> None:
    episodes = two_turns()
    algorithm = Gspo(clip=0.1, clip_high=0.2)
    credited(algorithm, episodes)
    whole = make_batches(episodes)["policy"]
    batch = whole.each(lambda column: column[whole.mask])
    moved = torch.tensor([0.9, -0.3, 0.6, -0.5])  # the first turn's mean is 0.4, the other's −0.5
    scores = Scores(batch.old_logprobs + moved, torch.zeros(4))
    # Better and likelier: clipped at 1.2. Worse and less likely: clipped at 0.9.
    expected = -torch.tensor([1.2, 1.2, 1.2, 0.9]) * batch.advantages
    torch.testing.assert_close(algorithm.loss(scores, batch), expected)
    assert algorithm.loss_weights(whole)[whole.mask].tolist() == pytest.approx([1 / 6] * 3 + [1 / 2])


def test_a_policy_that_is_still_its_reference_loses_nothing_for_leaving_it(
    model_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    """The sampler's log-probs differ from the learner's by rounding; so weighed, it would be a reward."""
    tree = naming_config(model_folder("llama"), steps=1, algorithm={"name": "reinforce++", "kl": 1000.0})
    tree["env"] = tree["env"] | {"letters": {"left": "never said", "right": "never said"}}
    run = trained(tree, tmp_path)
    episodes = read_episodes(run.folder / "episodes" / "000001.jsonl.gz")
    assert {x for e in episodes for t in e.turns for x in t.advantages.tolist()} == {0.0}
    assert any(list(t.logprobs) != t.ref_logprobs.tolist() for e in episodes for t in e.turns)


# Role by role


ACTOR = {"actor": RoleSettings(baseline="others", scale="none", group_by=("task", "turn"))}


def two_roles() -> list[Episode]:
    rewards = [0.9, 0.1, 0.4, 0.4, 1.0, 0.0]
    return [episode([turn("reasoner"), turn("actor")], r, f"task {i % 2}", i) for i, r in enumerate(rewards)]


def advantages(episodes: Sequence[Episode], role: str) -> list[float]:
    return [float(t.advantages[0]) for e in episodes for t in e.turns if t.role == role]


def test_a_role_with_settings_of_its_own_has_them_alone() -> None:
    mixed, plain, others = two_roles(), two_roles(), two_roles()
    metrics = credited(Grpo(roles=ACTOR), mixed)
    assert metrics == credited(Grpo(), plain)
    credited(Rloo(), others)
    assert advantages(mixed, "reasoner") == advantages(plain, "reasoner")
    assert advantages(mixed, "actor") == advantages(others, "actor") != advantages(plain, "actor")


def test_a_role_with_settings_of_its_own_is_compared_with_no_other() -> None:
    apart, together = two_roles(), two_roles()
    credited(Grpo(group_by=("batch",), roles={"actor": RoleSettings(scale="none")}), apart)
    credited(Grpo(group_by=("batch", "role"), scale="none"), together)
    assert advantages(apart, "actor") == advantages(together, "actor")


def test_a_role_s_filters_and_their_counts_are_its_own() -> None:
    episodes = two_roles()
    for played in episodes:
        played.turns[0].stop = played.turns[1].stop = "length"
    metrics = credited(Grpo(roles={"actor": RoleSettings(drop_truncated=True)}), episodes)
    assert metrics["dropped/truncated"] == 6
    assert all(e.turns[0].advantages is not None and e.turns[1].advantages is None for e in episodes)


def test_a_role_s_tokens_are_added_up_in_its_own_way() -> None:
    episodes = [
        episode([turn("a", (1,), (3, 4, 5)), turn("b", (2,), (6, 7))], r, repeat=i) for i, r in enumerate((1, 0))
    ]
    mixed = Grpo(roles={"b": RoleSettings(reduce="fixed", reduce_length=10)})
    credited(mixed, episodes)
    batch = make_batches(episodes)["policy"]
    turns, numbers = batch.turn[batch.mask], batch.episode[batch.mask]
    by_token, fixed = token_weights(turns, numbers, "token"), token_weights(turns, numbers, "fixed", 10)
    of_b = batch.role[batch.mask] == batch.roles.index("b")
    assert torch.equal(mixed.loss_weights(batch)[batch.mask], torch.where(of_b, fixed, by_token))


# In a config


def checked(tmp_path: Path, **algorithm: Any) -> Any:
    config = written(naming_config(tmp_path, algorithm=algorithm), tmp_path)
    check_conflicts(config)
    return config.algorithm.instance


@pytest.mark.parametrize("name", [name for name in PRESETS if name != "dr_grpo"] + ["magrpo"])
def test_a_preset_is_one_word(name: str, tmp_path: Path) -> None:
    made = checked(tmp_path, name=name)
    assert type(made).__doc__.count("arXiv") == 1


def test_settings_of_a_role_are_read_and_written(tmp_path: Path) -> None:
    made = checked(tmp_path, name="grpo", roles={"left": {"baseline": "others", "group_by": ["task", "role", "turn"]}})
    assert made.for_role("left").baseline == "others" and made.for_role("left").group_by == ("task", "role", "turn")
    assert made.for_role("right") is made


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown role": (
        {"roles": {"lefty": {}}},
        "algorithm.roles.lefty: there is no such role; the roles are left, right",
    ),
    "an unknown key": (
        {"roles": {"left": {"basline": "others"}}},
        r"algorithm.roles.left.basline: unknown key; .*mean baseline\?",
    ),
    "an unknown value": ({"roles": {"left": {"baseline": "median"}}}, "algorithm.roles.left.baseline: .*median"),
    "no peers": ({"roles": {"left": {"group_by": []}}}, r"algorithm.roles.left.group_by"),
    "a length for nothing": ({"roles": {"left": {"reduce": "fixed"}}}, "algorithm.roles.left.reduce_length"),
    "a role's length for nothing": (
        {"roles": {"left": {"reduce_length": 4}}},
        "algorithm.roles.left.reduce_length: has no effect without reduce: fixed",
    ),
    "a role's decay for nothing": (
        {"roles": {"left": {"decay": 0.5}}},
        "algorithm.roles.left.decay: has no effect with baseline: mean",
    ),
    "a role like all others": ({"roles": {"left": {}}}, "algorithm.roles.left: is empty"),
    "one round to take turns with": ({"rotate_turns": 2}, "algorithm.rotate_turns: has no effect: in .* speaks once"),
    "seats that never change": ({"name": "cory", "swap": 4}, "algorithm.swap: is 4 in a run of steps=4"),
    "a stale option": ({"max_stale": 1}, "algorithm.max_stale: unknown key"),
    "a decay for nothing": ({"decay": 0.5}, "algorithm.decay: has no effect with baseline: mean"),
    "a gain for nothing": ({"confidence_alpha": 0.5}, "algorithm.confidence_alpha: has no effect"),
    "an average of what never comes again": (
        {"baseline": "ema", "group_by": ["prompt"]},
        "algorithm.baseline: ema needs",
    ),
    "roles mixed": ({"name": "dr_mas", "group_by": ["task"]}, "algorithm.group_by: lacks role"),
    "no length": ({"name": "dr_grpo"}, "algorithm.reduce_length: is not given.*; 6 is usual"),
    "one branch": ({"name": "magrpo", "branches": 1}, "algorithm.branches"),
    "no siblings": ({"name": "at_grpo", "siblings": 1}, "algorithm.siblings"),
    "siblings without a past": ({"name": "magrpo", "baseline": "ema"}, "algorithm.baseline: ema needs"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_mistake_in_the_settings_is_named(what: str, tmp_path: Path) -> None:
    options, message = WRONG[what]
    with pytest.raises(ConfigError, match=message):
        checked(tmp_path, **{"name": "grpo"} | options)


def test_trees_need_no_second_episode_of_a_task_and_plain_groups_do(tmp_path: Path) -> None:
    tree = naming_config(tmp_path, episodes_per_task=1)
    for name, fine in {"at_grpo": True, "magrpo": True, "rae": True, "reinforce++": True, "grpo": False}.items():
        path = tmp_path / "one.yaml"
        path.write_text(yaml.safe_dump(tree | {"algorithm": name}))
        config = load(path)
        found = [key for key, _ in config.algorithm.instance.problems(config)]
        assert ("episodes_per_task" not in found) == fine


# Running averages


def game(*rewards: float, against: str = "rival") -> list[Episode]:
    return [episode([turn("me", policy="p"), turn("you", policy=against)], r, repeat=i) for i, r in enumerate(rewards)]


def earned(algorithm: Grpo, episodes: list[Episode], memory: dict[str, Any]) -> list[float]:
    Team().assign(episodes, {}, team_chain=False)
    algorithm.compute_advantages(episodes, memory)
    return advantages(episodes, "me")


def test_the_running_average_is_used_first_and_then_moved() -> None:
    memory: dict[str, Any] = {}
    rae = Rae(decay=0.9)
    assert earned(rae, game(1.0, 0.0), memory) == [0.5, -0.5]  # nothing before: against its own mean
    assert earned(rae, game(1.0, 1.0, 1.0), memory) == [0.5] * 3  # the average was 0.5 when they were played
    assert earned(rae, game(1.0), memory) == pytest.approx([1 - (0.9 * 0.5 + 0.1 * 1.0)])


def test_every_opponent_has_an_average_of_its_own() -> None:
    memory: dict[str, Any] = {}
    earned(Rae(), game(1.0), memory)
    assert earned(Rae(), game(0.0, against="stranger"), memory) == [0.0]
    assert earned(Rae(), game(0.0), memory) == [-1.0]
    assert len(memory["averages"]) == 3  # the other role meets one policy only, whoever plays it


def test_roles_with_settings_of_their_own_have_averages_of_their_own() -> None:
    average = RoleSettings(baseline="ema", group_by=("batch",))
    memory: dict[str, Any] = {}
    earned(Grpo(scale="none", roles={"me": average, "you": average}), game(1.0), memory)
    assert len(memory["averages"]) == 2


def test_running_averages_survive_a_checkpoint_to_the_bit(tmp_path: Path) -> None:
    memory: dict[str, Any] = {}
    earned(Rae(), game(0.3, 0.7, 0.9), memory)
    torch.save(memory, tmp_path / "memory.pt")
    again = torch.load(tmp_path / "memory.pt", weights_only=True)
    straight, later = copy.deepcopy(memory), again
    assert earned(Rae(), game(0.1, 0.2), straight) == earned(Rae(), game(0.1, 0.2), later)
    assert straight == later


def test_a_run_with_running_averages_resumes_exactly(model_folder: Callable[[str], Path], tmp_path: Path) -> None:
    tree = naming_config(model_folder("llama"), steps=4, algorithm={"name": "rae"})
    straight = trained(tree, tmp_path / "straight")
    trained(tree | {"steps": 2}, tmp_path / "halves")
    halves = resumed(tree, tmp_path / "halves")
    assert_same_run(halves, straight)
    assert halves.memory == straight.memory and len(straight.memory["averages"]) == 2


def test_an_algorithm_is_one_file_of_180_lines_at_most_and_a_variant_of_100() -> None:
    classes = [find("algorithm", name) for name in BUILTIN["algorithm"]]
    sizes = {cls: len(Path(inspect.getfile(cls)).read_text().splitlines()) for cls in classes}
    assert {cls: n for cls, n in sizes.items() if n > (180 if cls.__base__ is Algorithm else 100)} == {}
