"""Laws of trees: siblings start from one state, every joint action is judged by what came of it, and trained once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from coterie.algorithms.at_grpo import AtGrpo
from coterie.algorithms.base import Algorithm
from coterie.algorithms.magrpo import Magrpo
from coterie.compat.siirl.workflow import Graph, GraphAgent
from coterie.episode_rows import read_episodes
from coterie.games.naming import Naming
from coterie.learners.batch import make_batches
from coterie.models.chat import Chat
from coterie.rl.trees import joint_actions, team_rounds, tree_returns
from coterie.rollout.agent import Player
from coterie.rollout.collector import Collector
from coterie.types import Episode, Fork, Sample, Sampling, Task, Turn
from tests.episodes import credited, episode, turn
from tests.laws.test_resume import assert_same_run, metrics
from tests.models import tiny_tokenizer
from tests.runs import naming_config, resumed, trained

Name = tuple[str, int]


# The pure part


def test_the_returns_of_a_tree_made_by_hand() -> None:
    parents: dict[Name, Name | None] = {("a", 0): None, ("a", 1): ("a", 0), ("b", 1): ("a", 0), ("b", 2): ("b", 1)}
    rewards = {("a", 0): 1.0, ("a", 1): 2.0, ("b", 1): 0.0, ("b", 2): 8.0}
    found = tree_returns(rewards, parents, gamma=0.5)
    assert found == {("b", 2): 8.0, ("b", 1): 4.0, ("a", 1): 2.0, ("a", 0): 1 + 0.5 * (2 + 4) / 2}


@pytest.mark.parametrize("seed", range(4))
def test_a_node_returns_what_it_earned_and_the_mean_of_what_follows(seed: int) -> None:
    draw = random.Random(seed)
    parents: dict[Name, Name | None] = {}
    for i in range(40):
        above = draw.choice([None, *parents])
        parents[(f"e{i}", 0 if above is None else above[1] + 1)] = above
    names = draw.sample(list(parents), len(parents))
    rewards = {name: draw.gauss(0, 1) for name in names}

    def slow(name: Name) -> float:
        below = [slow(child) for child, parent in parents.items() if parent == name]
        return rewards[name] + (0.7 * sum(below) / len(below) if below else 0.0)

    found = tree_returns(rewards, {name: parents[name] for name in names}, 0.7)
    assert found == pytest.approx({name: slow(name) for name in names})


def test_a_role_that_speaks_seldom_belongs_to_the_round_that_was_reached() -> None:
    def rounds(*spoken: tuple[str, int]) -> list[int]:
        return team_rounds([turn(role, round=nth) for role, nth in spoken])

    assert rounds(("left", 0), ("right", 0), ("left", 1), ("right", 1)) == [0, 0, 1, 1]
    assert rounds(("left", 0), ("left", 1), ("right", 0), ("left", 2)) == [0, 1, 1, 2]


# Grown without a model


class Playing:
    """Plays forks as a collector does, with words drawn at random: two roles, one after the other."""

    def __init__(self, seed: int, rounds: tuple[int, int] = (3, 3), failing: float = 0.0) -> None:
        self.draw, self.rounds, self.failing = random.Random(seed), rounds, failing
        self.waves = 0

    def finish(self, played: Episode) -> Episode:
        """Say what is left to say; whoever was asked after the same words before is asked again."""
        least = max((t.round + 2 for t in played.turns), default=1)
        for nth in range(max(min(least, self.rounds[1]), self.draw.randint(*self.rounds))):
            for role in ("left", "right"):
                if (role, nth) not in {(t.role, t.round) for t in played.turns}:
                    read = tuple(i for t in played.turns for i in t.response_ids)
                    words = tuple(self.draw.randrange(100) for _ in range(self.draw.randint(1, 3)))
                    played.turns.append(turn(role, (1, *read), words, policy=role, round=nth))
                    played.turns[-1].reward = self.draw.random()
        played.reward = self.draw.random()
        if self.draw.random() < self.failing:
            played.error = "Traceback"
        return played

    def forked(self, fork: Fork) -> Episode:
        given = [replace(t, trainable=False, replayed=True) for t in fork.fixed_turns.values() if isinstance(t, Turn)]
        origin = fork.origin
        return self.finish(Episode(fork.id, origin.task, origin.repeat, given, origin=origin.id, fork=fork.purpose))

    def grown(self, algorithm: Algorithm, tasks: int = 2, repeats: int = 1) -> list[Episode]:
        episodes = [self.finish(episode([], task=f"task {t}", repeat=r)) for t in range(tasks) for r in range(repeats)]
        while forks := algorithm.forks(episodes, ("left", "right")):
            self.waves += 1
            assert self.waves < 10
            episodes += [self.forked(fork) for fork in forks]
        assert len({e.id for e in episodes}) == len(episodes)
        return [e for e in episodes if e.error is None]


def state(played: Episode, place: int) -> tuple[Any, ...]:
    """All that had been said before a turn."""
    return played.task.id, tuple((t.role, t.round, t.response_ids) for t in played.turns[:place])


def trained_turns(episodes: list[Episode]) -> list[tuple[Episode, int, Turn]]:
    return [(e, i, t) for e in episodes for i, t in enumerate(e.turns) if t.advantages is not None]


def test_every_turn_that_was_played_has_siblings_from_its_own_state() -> None:
    playing = Playing(1)
    episodes = playing.grown(AtGrpo(siblings=3))
    assert playing.waves == 1 and len(episodes) == 2 * (1 + 6 * 2)
    counts = credited(AtGrpo(siblings=3), episodes)
    sizes = Counter((t.role, t.round, state(e, i)) for e, i, t in trained_turns(episodes))
    assert set(sizes.values()) == {3} and len(sizes) == 2 * 6
    assert counts["groups"] == 12 and counts["groups/singleton"] == counts["groups/mixed_prompts"] == 0


def test_a_sibling_earns_what_came_of_it() -> None:
    episodes = Playing(2).grown(AtGrpo(scale="none", siblings=2))
    credited(AtGrpo(scale="none", siblings=2), episodes)
    by_id = {e.id: e for e in episodes}
    pairs = 0
    for fork, place, spoken in trained_turns(episodes):
        if fork.origin is not None:

            def worth(played: Episode, first: int = place, role: str = spoken.role) -> float:
                return played.reward + sum(t.reward or 0.0 for t in played.turns[first:] if t.role == role)

            expected = (worth(fork) - worth(by_id[fork.origin])) / 2
            assert spoken.advantages is not None and float(spoken.advantages[0]) == pytest.approx(expected, abs=1e-6)
            pairs += 1
    assert pairs == 12


def test_a_failed_episode_has_no_siblings_and_a_failed_sibling_is_missed_by_nobody() -> None:
    for seed in range(5):
        episodes = Playing(seed, failing=0.3).grown(AtGrpo(), tasks=4)
        credited(AtGrpo(), episodes)
        credited(Magrpo(), Playing(seed, failing=0.3).grown(Magrpo(), tasks=4))


@pytest.mark.parametrize(("repeats", "branches"), [(1, 2), (4, 2), (1, 3), (2, 3)])
def test_every_joint_action_branches_until_the_last_round(repeats: int, branches: int) -> None:
    episodes = Playing(3).grown(Magrpo(branches=branches), repeats=repeats)
    firsts = max(repeats, branches)
    assert len(episodes) == 2 * firsts * branches**2
    children = Counter((node.episode.task.id, node.parent) for node in joint_actions(episodes))
    assert all(count == (firsts if parent is None else branches) for (_, parent), count in children.items())
    assert len(joint_actions(episodes)) == 2 * firsts * (1 + branches + branches**2)


def slow_magrpo(episodes: list[Episode], gamma: float) -> dict[tuple[Any, ...], float]:
    """Straight from the definition, by what was said: the advantage of each joint action, named by its history."""
    paths = {}
    for played in episodes:
        history: tuple[Any, ...] = (played.task.id,)
        for nth in range(max(t.round for t in played.turns) + 1):
            own = [t for t in played.turns if t.round == nth]
            last = nth == max(t.round for t in played.turns)
            reward = sum(t.reward or 0.0 for t in own) + (played.reward if last else 0.0)
            parent, history = history, (*history, tuple(t.response_ids for t in own))
            paths[history] = (parent, reward)

    def worth(node: tuple[Any, ...]) -> float:
        below = [worth(child) for child, (parent, _) in paths.items() if parent == node]
        return paths[node][1] + (gamma * sum(below) / len(below) if below else 0.0)

    def siblings(node: tuple[Any, ...]) -> list[float]:
        return [worth(other) for other, (parent, _) in paths.items() if parent == paths[node][0]]

    return {node: worth(node) - sum(siblings(node)) / len(siblings(node)) for node in paths}


@pytest.mark.parametrize("rounds", [(1, 1), (3, 3), (1, 3)])
@pytest.mark.parametrize("seed", range(3))
def test_a_joint_action_is_worth_its_return_less_the_mean_of_its_siblings(seed: int, rounds: tuple[int, int]) -> None:
    algorithm = Magrpo(gamma_turn=0.6)
    episodes = Playing(seed, rounds).grown(algorithm)
    counts = credited(algorithm, random.Random(seed).sample(episodes, len(episodes)))
    expected = slow_magrpo(episodes, 0.6)
    for played, _, spoken in trained_turns(episodes):
        said = [tuple(t.response_ids for t in played.turns if t.round == nth) for nth in range(spoken.round + 1)]
        assert spoken.advantages is not None
        wanted = [expected[played.task.id, *said]] * len(spoken.response_ids)
        assert spoken.advantages.tolist() == pytest.approx(wanted, abs=1e-6)
    assert counts["groups/mixed_prompts"] == counts["groups/singleton"] == 0


def test_every_turn_of_a_tree_is_trained_once_however_many_episodes_repeat_it() -> None:
    episodes = Playing(4).grown(Magrpo())
    credited(Magrpo(), episodes)
    turns = [t for e in episodes for t in e.turns]
    distinct = {(t.role, t.prompt_ids, t.response_ids, state(e, i)) for e in episodes for i, t in enumerate(e.turns)}
    assert len(distinct) == len(trained_turns(episodes)) == 2 * 2 * (2 + 4 + 8) < len(turns)
    assert all((t.advantages is None) != t.trainable for t in turns)
    packed = sum(int(batch.mask.sum()) for batch in make_batches(episodes).values())
    assert packed == sum(len(response) for _, _, response, _ in distinct)
    total = sum(float(t.advantages[0]) for _, _, t in trained_turns(episodes) if t.advantages is not None)
    assert total == pytest.approx(0.0, abs=1e-5)


# With a model


def tree_config(model: Path, **algorithm: Any) -> dict[str, Any]:
    config = naming_config(model, steps=2, episodes_per_task=1, algorithm=algorithm)
    config["workflow"] |= {"rounds": 2}
    return config


@pytest.mark.parametrize("name", ["at_grpo", "magrpo"])
def test_trees_train_and_resume_exactly(name: str, model_folder: Callable[[str], Path], tmp_path: Path) -> None:
    config = tree_config(model_folder("llama"), name=name)
    straight = trained(config, tmp_path / "straight")
    trained(config | {"steps": 1}, tmp_path / "halves")
    assert_same_run(resumed(config, tmp_path / "halves"), straight)
    for row in metrics(straight.folder)[:2]:
        assert row["failed"] == row["groups/mixed_prompts"] == row["groups/singleton"] == 0
        assert row["left/logprob_gap_max"] < 1e-4


def test_sampled_siblings_read_the_very_same_tokens(model_folder: Callable[[str], Path], tmp_path: Path) -> None:
    run = trained(tree_config(model_folder("llama"), name="at_grpo", siblings=3) | {"steps": 1}, tmp_path)
    episodes = read_episodes(run.folder / "episodes" / "000001.jsonl.gz")
    by_id = {e.id: e for e in episodes}
    groups: dict[tuple[str, str, int], list[Turn]] = {}
    for played, place, spoken in trained_turns(episodes):
        groups.setdefault((played.task.id, spoken.role, spoken.round), []).append(spoken)
        first = by_id[played.origin].turns[place] if played.origin else spoken
        assert spoken.prompt_ids == first.prompt_ids
    assert len(groups) == 2 * 2 * 2 and all(len(siblings) == 3 for siblings in groups.values())
    assert all(len({t.prompt_ids for t in siblings}) == 1 for siblings in groups.values())
    assert sum(len({t.response_ids for t in siblings}) > 1 for siblings in groups.values()) > 4
    assert metrics(run.folder)[0]["groups"] == 8


# On a graph, which leaves turns aside and whose forks repeat turns


class AtRandom:
    """An engine that says a letter, drawn with the noise that it is given."""

    def __init__(self) -> None:
        self.tokenizer = tiny_tokenizer()

    async def sample(self, policy: str, prompt_ids: Sequence[int], seed: int, sampling: Sampling) -> Sample:
        said = tuple(self.tokenizer.encode(random.Random(seed).choice("abcdefgh"), add_special_tokens=False))
        return Sample(said, (-1.0,) * len(said), "end", 0)

    def weights_changed(self, policy: str, version: int) -> None: ...


@dataclass(frozen=True)
class Letters(Naming):
    """Every letter is worth something else."""

    async def score(self, episode: Episode) -> None:
        episode.reward = sum(ord(turn.text[0]) / 100 * (place + 1) for place, turn in enumerate(episode.turns))


def on_a_graph(algorithm: Algorithm, use_all_traj: bool, learning: Sequence[str] = ("left", "right")) -> list[Episode]:
    """Two rounds of two agents, and all that the algorithm plays beside them."""
    engine, roles = AtRandom(), ("left", "right")
    graph = Graph(tuple(map(GraphAgent, roles)), max_assistant_turns=2, use_all_traj=use_all_traj)
    players = {role: Player(role, Sampling()) for role in roles}
    chats = dict.fromkeys(roles, Chat(engine.tokenizer))
    collector = Collector(graph, Letters({}), engine, chats, 64, 10.0, None)
    episodes = collector.collect([Task("t", "?", None)], 2, players, seed=3)
    while forks := algorithm.forks(episodes, learning):
        episodes += collector.fork(forks, players)
    assert [e.error for e in episodes if e.error] == []
    assert not any(t.trainable for e in episodes for t in e.turns if t.replayed)
    credited(algorithm, episodes)
    return episodes


@pytest.mark.parametrize("use_all_traj", [True, False])
def test_on_a_graph_every_turn_that_is_learned_from_has_siblings_and_no_repeated_turn_is_judged(
    use_all_traj: bool,
) -> None:
    algorithm = AtGrpo(siblings=3, scale="none")
    episodes = on_a_graph(algorithm, use_all_traj)
    places = [0, 1, 2, 3] if use_all_traj else [2, 3]
    assert len(episodes) == 2 * (1 + 2 * len(places))
    by_id = {e.id: e for e in episodes}
    siblings: dict[tuple[str, int], list[float]] = {}
    for played, place, spoken in trained_turns(episodes):
        assert spoken.trainable and spoken.advantages is not None
        origin = by_id[played.origin or played.id]
        assert spoken.prompt_ids == origin.turns[place].prompt_ids
        siblings.setdefault((origin.id, place), []).append(played.reward)
    assert sorted(siblings) == [(e.id, place) for e in episodes[:2] for place in places]
    assert {len(rewards) for rewards in siblings.values()} == {3}
    for played, place, spoken in trained_turns(episodes):
        group = [
            reward
            for (origin, at), rewards in siblings.items()
            for reward in rewards
            if at == place and by_id[origin].turns[place].prompt_ids == spoken.prompt_ids
        ]
        assert spoken.advantages is not None
        assert float(spoken.advantages[0]) == pytest.approx(played.reward - sum(group) / len(group), abs=1e-6)


@pytest.mark.parametrize("use_all_traj", [True, False])
def test_on_a_graph_the_joint_actions_of_a_round_are_compared_after_the_same_round(use_all_traj: bool) -> None:
    episodes = on_a_graph(Magrpo(), use_all_traj)
    assert len(episodes) == 4  # two beginnings, each of which goes on in two ways
    by_id = {e.id: e for e in episodes}
    for played in episodes:
        repeated = played.origin is not None
        assert [t.replayed for t in played.turns] == [repeated] * 2 + [False] * 2
        first, second = played.turns[0].advantages, played.turns[2].advantages
        assert (first is None) == (repeated or not use_all_traj) and second is not None
        pair = [e.reward for e in episodes if (e.origin or e.id) == (played.origin or played.id)]
        assert float(second[0]) == pytest.approx(played.reward - sum(pair) / 2, abs=1e-6)
        if first is not None:
            whole = sum(e.reward for e in by_id.values()) / 4
            assert float(first[0]) == pytest.approx(sum(pair) / 2 - whole, abs=1e-6)


def test_what_nobody_learns_from_has_no_siblings() -> None:
    assert {e.fork for e in on_a_graph(AtGrpo(), True, ["right"])[2:]} == {"sibling of right 0", "sibling of right 1"}
    assert len(on_a_graph(Magrpo(), True, [])) == 2
