"""Laws of dropped turns: what nobody learns from moves no baseline."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from coterie.algorithms.base import Algorithm
from coterie.algorithms.group_estimator import AVERAGES
from coterie.algorithms.ippo import Ippo
from coterie.algorithms.magrpo import Magrpo
from coterie.algorithms.ppo import Ppo
from coterie.algorithms.rae import Rae
from coterie.credit.difference import Difference
from coterie.credit.team import Team
from coterie.episode_rows import read_episodes
from coterie.training import loop
from coterie.types import Episode, Turn
from tests.episodes import episode, turn
from tests.laws.test_presets import PRESETS
from tests.runs import naming_config, started, trained

Folder = Callable[[str], Path]
JUDGES: dict[str, Algorithm] = {**PRESETS, "magrpo": Magrpo(), "ppo": Ppo(), "ippo": Ippo(whiten="role")}


def played(*rewards: float) -> list[Episode]:
    """One task, one role, one episode for each reward, with all that any algorithm asks of a turn."""
    turns = [turn(response=(3, 4, 5)) for _ in rewards]
    for i, said in enumerate(turns):
        said.ref_logprobs = torch.tensor([-1.0, -1.1, -0.8])
        said.values = torch.tensor([0.1, 0.2, 0.3]) * (i + 1)
    return [episode([said], r, repeat=i) for i, (said, r) in enumerate(zip(turns, rewards, strict=True))]


def judged(algorithm: Algorithm, episodes: list[Episode], memory: dict[str, Any]) -> list[list[float] | None]:
    Team().assign(episodes, {}, team_chain=algorithm.chain == "team")
    algorithm.compute_advantages(episodes, memory)
    found = [t.advantages for e in episodes for t in e.turns]
    return [None if advantages is None else advantages.tolist() for advantages in found]


@pytest.mark.parametrize("why", ["stale", "round"])
@pytest.mark.parametrize("name", JUDGES)
def test_a_dropped_turn_changes_no_advantage_and_nothing_that_is_remembered(name: str, why: Any) -> None:
    kept, memory = played(1.0, 0.0, 0.5), {}
    wanted = judged(JUDGES[name], kept, memory)
    with_dropped, other_memory = played(1.0, 0.0, 0.5, 100.0), {}
    with_dropped[-1].turns[0].dropped = why
    found = judged(JUDGES[name], with_dropped, other_memory)
    assert found[-1] is None
    assert found[:-1] == wanted and any(any(row) for row in wanted if row is not None)
    assert other_memory == memory


def test_a_critic_still_learns_from_a_dropped_turn() -> None:
    episodes = played(1.0, 0.0)
    episodes[1].turns[0].dropped = "round"
    judged(Ppo(), episodes, {})
    assert episodes[1].turns[0].returns is not None


def test_a_dropped_episode_is_no_baseline_of_the_difference_to_the_others() -> None:
    episodes = played(1.0, 0.0, 100.0)
    episodes[2].turns[0].dropped = "stale"
    Difference(by="leave_one_out").assign(episodes, {}, team_chain=False)
    assert [e.turns[0].credit for e in episodes[:2]] == [1.0, -1.0]


@pytest.mark.parametrize("late", [False, True])
def test_the_running_average_of_rae_is_not_moved_by_turns_of_other_weights(
    late: bool, model_folder: Folder, tmp_path: Path
) -> None:
    """As of an engine that has missed an update."""
    tree = naming_config(model_folder("llama"), algorithm="rae")
    run = started(tree, tmp_path)
    episodes, counterfactuals = loop.collect_episodes(run, run.plan(run.step), run.config.episodes_per_task)
    said: list[Turn] = [t for e in episodes for t in e.turns if t.role == "left"]
    for one in said if late else ():
        one.version -= 1
    metrics = loop.assign_credit(run, episodes, counterfactuals)
    assert metrics["stale"] == (len(said) if late else 0)
    assert all((t.advantages is None) == (late and t.role == "left") for e in episodes for t in e.turns)
    roles = {dict(key)["role"] for key in run.memory[AVERAGES]}
    assert roles == ({"right"} if late else {"left", "right"})


def test_the_running_average_of_rae_is_moved_by_the_round_that_trains_alone() -> None:
    memory: dict[str, Any] = {}
    first, later = turn(round=0), turn(round=1)
    first.reward, later.reward, later.dropped = 1.0, 5.0, "round"
    judged(Rae(gamma_turn=0.0), [episode([first, later])], memory)
    assert list(memory[AVERAGES].values()) == [1.0]


def test_turns_of_one_round_are_compared_with_that_round_alone(model_folder: Folder, tmp_path: Path) -> None:
    tree = naming_config(model_folder("llama"), steps=3)
    tree["algorithm"] = {"name": "grpo", "scale": "none", "rotate_turns": 1, "gamma_turn": 0.5}
    tree["workflow"] |= {"rounds": 3}
    trained(tree, tmp_path)
    sums: dict[Any, float] = {}
    for path in sorted((tmp_path / "episodes").glob("*.jsonl.gz")):
        for stored in read_episodes(path):
            for said in (t for t in stored.turns if t.advantages is not None and len(t.advantages)):
                key = path.name, stored.task.id, said.role
                sums[key] = sums.get(key, 0.0) + float(said.advantages[0])
    assert len(sums) > 6 and all(abs(total) < 1e-4 for total in sums.values())
