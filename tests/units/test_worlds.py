"""Laws of worlds that a team acts on, and of the games that come with Coterie."""

from __future__ import annotations

import asyncio
import importlib.util
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy
import pytest

from coterie.config import ConfigError
from coterie.envs.worlds.nim import Nim
from coterie.envs.worlds.pettingzoo import Aec, AecWorld
from coterie.envs.worlds.treasure_hunt import Hunt
from coterie.envs.worlds.world import BadWorld
from coterie.models.chat import Chat
from coterie.rollout.agent import Player
from coterie.rollout.collector import Collector
from coterie.types import Env, Episode, Outcome, Sample, Sampling, Task
from coterie.workflows.multi_turn import MultiTurn
from tests.models import tiny_tokenizer
from tests.runs import started
from tests.scripted import Scripted

TASK = Task("t", "Play.", None)


def play(workflow: MultiTurn, world: Any, lines: dict[str, list[str]], task: Task = TASK) -> tuple[Outcome, Scripted]:
    team = Scripted(lines)
    outcome = asyncio.run(workflow.run(task, team, world))
    assert isinstance(outcome, Outcome)
    return outcome, team


def rewards(team: Scripted, role: str) -> list[float | None]:
    return [turn.reward for turn in team[role].turns]


class Counter:
    """Ends when told to stop; every word is worth one to the team."""

    def __init__(self) -> None:
        self.prompts: list[str] = []

    def observe(self) -> str:
        return f"{len(self.prompts)} so far"

    def act(self, text: str) -> float:
        self.prompts.append(text)
        return 1.0

    @property
    def done(self) -> bool:
        return self.prompts[-1] == "stop"


class AsyncStage:
    """Two roles; the second sees what the first said; each earns the length of what it says, the team 0.5 a step."""

    def __init__(self, by_role: bool) -> None:
        self.by_role = by_role

    async def reset(self) -> dict[str, str]:
        return {"ann": "for ann", "bob": "for bob"}

    async def transition(self, role: str, text: str) -> dict[str, str]:
        return {"bob": f"{role} said {text}"}

    async def step(self, said: Mapping[str, str]) -> tuple[str, Any, bool]:
        earned = {role: float(len(text)) for role, text in said.items()}
        return "again", earned if self.by_role else 0.5, False


def test_a_plain_world_is_acted_on_until_it_is_done() -> None:
    outcome, team = play(MultiTurn(max_steps=9), Counter(), {"player": ["a", "b", "stop"]})
    assert outcome.answer == "stop" and outcome.reward == 3.0
    assert outcome.metrics == {"steps": 3, "finished": 1.0}
    talk = [message["content"] for message in team.player.prompts[-1]]
    assert talk == ["Play.\n\n0 so far", "a", "1 so far", "b", "2 so far"]


def test_a_world_that_never_ends_is_left_at_the_limit() -> None:
    outcome, _ = play(MultiTurn(max_steps=2), Counter(), {"player": ["a", "b"]})
    assert outcome.metrics == {"steps": 2, "finished": 0.0}


@pytest.mark.parametrize("by_role", [False, True])
def test_a_world_may_be_async_and_reward_the_team_or_each_role(by_role: bool) -> None:
    team_of_two = MultiTurn(roles=("ann", "bob"), max_steps=2, prompt="{observation}")
    outcome, team = play(team_of_two, AsyncStage(by_role), {"ann": ["x", "xx"], "bob": ["yyy", "y"]})
    assert outcome.reward == (0.0 if by_role else 1.0)
    assert rewards(team, "ann") == ([1.0, 2.0] if by_role else [None, None])
    assert rewards(team, "bob") == ([3.0, 1.0] if by_role else [None, None])
    assert team.ann.prompts[0][0]["content"] == "for ann" and team.bob.prompts[0][0]["content"] == "ann said x"


def test_roles_that_speak_together_do_not_see_each_other() -> None:
    together = MultiTurn(roles=("ann", "bob"), max_steps=1, together=True, prompt="{observation}")
    _, team = play(together, AsyncStage(True), {"ann": ["x"], "bob": ["y"]})
    assert team.bob.prompts[0][0]["content"] == "for bob"


@pytest.mark.parametrize("said", ["", " \n", "\x00", "{" * 500, "<tool_call>"])
def test_whatever_is_said_reaches_the_world_as_it_is(said: str) -> None:
    world = Counter()
    outcome, team = play(MultiTurn(max_steps=9), world, {"player": [said, "stop"]})
    assert world.prompts == [said, "stop"] and outcome.metrics["finished"] == 1
    assert team.player.prompts[1][1] == {"role": "assistant", "content": said}


class Grid:
    """A world of which one part is replaced."""

    def __init__(self, first: Any = "go", then: Any = ("on", 0.5, False), speaking: Any = ("ann", "bob")) -> None:
        self.first, self.then, self.speaking = first, then, speaking

    def reset(self) -> Any:
        return self.first

    def step(self, said: Mapping[str, str]) -> Any:
        return self.then


BAD_WORLDS = {
    "gymnasium": (Grid(then=("on", 0.5, False, False, {})), "Grid.step returned 5 values; it returns (observation, "),
    "no reward": (Grid(then=("on", True)), "Grid.step returned 2 values; it returns (observation, reward, done)"),
    "nothing": (Grid(then=None), "Grid.step returned None; it returns (observation, reward, done)"),
    "reset with info": (
        Grid(first=("go", {})),
        "Grid.reset returned the observation 2 values; an observation is a text for all, or {role: text}",
    ),
    "reward None": (Grid(then=("on", None, False)), "Grid.step returned the reward None; a finite number was"),
    "reward text": (Grid(then=("on", "1", False)), "Grid.step returned the reward '1'; a finite number was"),
    "reward nan": (Grid(then=("on", float("nan"), False)), "Grid.step returned the reward nan; a finite"),
    "one's reward None": (Grid(then=("on", {"bob": None}, False)), "Grid.step returned the reward None of bob; a"),
    "a stranger's reward": (Grid(then=("on", {"eve": 1.0}, False)), "the world rewards 'eve'; this team has ann, bob"),
    "done by role": (Grid(then=("on", 1.0, {"ann": False})), "Grid.step returned done = {'ann': False}; it is True or"),
    "nothing to see": (Grid(first={"ann": "go"}), "Grid.reset returned an observation without bob; an observation is"),
    "a number to see": (Grid(then=(5, 1.0, False)), "Grid.step returned the observation 5; an observation is a text"),
    "one sees a number": (Grid(then=({"ann": 5}, 1.0, False)), "Grid.step returned 5 for ann to see; an observation"),
    "a stranger speaks": (Grid(speaking=("eve",)), "Grid.speaking is ('eve',), expected a list of this team's roles: "),
    "a text speaks": (Grid(speaking="ann"), "Grid.speaking is 'ann', expected a list of this team's roles: ann, bob"),
    "no world": (object(), "object has no observe and no act; a world has observe, act and done, or reset and step"),
}


@pytest.mark.parametrize(("world", "told"), BAD_WORLDS.values(), ids=BAD_WORLDS)
def test_a_world_that_returns_something_else_is_told_where_and_what_is_right(world: Any, told: str) -> None:
    with pytest.raises(BadWorld, match=re.escape(told)):
        play(MultiTurn(roles=("ann", "bob"), max_steps=2), world, {"ann": ["1", "2"], "bob": ["1", "2"]})


def test_numbers_of_numpy_are_rewards_and_the_last_observation_is_seen_by_nobody() -> None:
    world = Grid(then=(None, numpy.float32(0.5), numpy.bool_(True)))
    outcome, _ = play(MultiTurn(roles=("ann", "bob")), world, {"ann": ["1"], "bob": ["1"]})
    assert outcome.reward == 0.5 and outcome.metrics == {"steps": 1, "finished": 1.0}


def test_an_environment_without_a_world_is_told() -> None:
    with pytest.raises(ValueError, match="no world to act on"):
        play(MultiTurn(), None, {"player": []})


# --- closing


class Fixed:
    """An engine that always says the same."""

    async def sample(self, policy: str, prompt_ids: Any, seed: int, sampling: Sampling) -> Sample:
        return Sample((65, 66), (-0.1, -0.1), "end", 0)

    def weights_changed(self, policy: str, version: int) -> None: ...


class Closes:
    """Counts how often its worlds were closed; each may fail or hang in its step."""

    def __init__(self, trouble: str, is_async: bool) -> None:
        self.trouble, self.is_async, self.closed = trouble, is_async, 0

    def tasks(self, split: str) -> list[Task]:
        return [TASK]

    def open(self, task: Task) -> Any:
        return self

    async def score(self, episode: Episode) -> None: ...

    def reset(self) -> str:
        return "go"

    async def step(self, said: Mapping[str, str]) -> tuple[str, float, bool]:
        if self.trouble == "fails":
            raise ZeroDivisionError
        if self.trouble == "hangs":
            await asyncio.sleep(60)
        return "", 1.0, True

    def close(self) -> Any:
        if self.is_async:
            return self._close()
        self.closed += 1

    async def _close(self) -> None:
        await asyncio.sleep(0)
        self.closed += 1


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("trouble", "kind"), [("none", None), ("fails", "ZeroDivisionError"), ("hangs", "TimeoutError")]
)
def test_a_world_is_closed_once_however_its_episode_ends(trouble: str, kind: str | None, is_async: bool) -> None:
    env: Env = Closes(trouble, is_async)
    chat = Chat(tiny_tokenizer())
    collector = Collector(MultiTurn(), env, Fixed(), {"small": chat}, 4, 0.3, None)
    (episode,) = collector.collect([TASK], 1, {"player": Player("small", Sampling())}, 0)
    assert env.closed == 1  # type: ignore[attr-defined]
    assert episode.error_kind == kind
    assert episode.reward == (1.0 if kind is None else 0.0)
    assert len(episode.turns) == 1


# --- games


def test_in_nim_the_last_stone_wins_and_only_the_other_loses() -> None:
    env = Nim(stones=3, most=3)
    task = env.tasks("train")[0]
    two = MultiTurn(roles=("first", "second"))
    _, team = play(two, env.open(task), {"first": ["I take 1", "1"], "second": ["1 stone"]}, task)
    assert rewards(team, "first") == [0.0, 1.0] and rewards(team, "second") == [-1.0]
    assert "first took 1. 2 stones are left" in team.second.prompts[0][0]["content"]


@pytest.mark.parametrize("move", ["four", "4", "0", "-1", "1.5", ""])
def test_in_nim_a_move_that_is_none_loses_alone(move: str) -> None:
    env = Nim(stones=3, most=3)
    task = env.tasks("train")[0]
    two = MultiTurn(roles=("first", "second"))
    outcome, team = play(two, env.open(task), {"first": ["1"], "second": [move]}, task)
    assert rewards(team, "second") == [-1.0] and rewards(team, "first") == [0.0]
    assert outcome.metrics["finished"] == 1


def test_in_the_hunt_the_walker_hears_only_the_guide_and_the_team_earns_the_way() -> None:
    env = Hunt(board=3)
    task = Task("h", "Hunt.", None, {"walker": [0, 0], "treasure": [2, 1]})
    two = MultiTurn(roles=("guide", "walker"))
    lines = {"guide": ["east", "on", "down"], "walker": ["East!", "east", "south"]}
    outcome, team = play(two, env.open(task), lines, task)
    assert outcome.reward == pytest.approx(1.0) and outcome.metrics == {"steps": 3, "finished": 1.0}
    walker = "".join(message["content"] for message in team.walker.prompts[-1])
    assert "The guide says: east" in walker and "W" not in walker.replace("Where", "")
    assert "W . .\n. . T" in team.guide.prompts[0][0]["content"]


def test_in_the_hunt_going_astray_costs_and_a_word_that_is_no_way_stays() -> None:
    task = Task("h", "Hunt.", None, {"walker": [1, 1], "treasure": [2, 1]})
    two = MultiTurn(roles=("guide", "walker"), max_steps=2)
    outcome, _ = play(two, Hunt().open(task), {"guide": ["", ""], "walker": ["west", "up"]}, task)
    assert outcome.reward == -1.0


@pytest.mark.parametrize("env", [Nim(size=5, test_size=3), Hunt(size=5, test_size=3)], ids=["nim", "hunt"])
def test_a_game_has_the_same_tasks_every_time(env: Env) -> None:
    assert isinstance(env, Env)
    assert env.tasks("train") == env.tasks("train") and len(env.tasks("train")) == 5
    assert len(env.tasks("test")) == 3


# --- PettingZoo


class Space:
    def contains(self, action: int) -> bool:
        return 0 <= action < 3


class Turns:
    """A game with PettingZoo's AEC interface: ann and bob say numbers; each earns what the other said."""

    possible_agents = ("ann", "bob")

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.agents, self.agent_selection, self.closed = list(self.possible_agents), "ann", False
        self.said: list[int] = []
        self.rewards = dict.fromkeys(self.agents, 0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, dict[str, Any]] = {agent: {} for agent in self.agents}

    def observe(self, agent: str) -> dict[str, Any]:
        return {"observation": f"{agent} sees {self.said}", "action_mask": [1, 1, 0]}

    def action_space(self, agent: str) -> Space:
        return Space()

    def step(self, action: int | None) -> None:
        agent = self.agent_selection
        if action is None:
            self.agents.remove(agent)
            self.rewards = dict.fromkeys(self.agents, 0)
        else:
            self.said.append(action)
            self.rewards = {other: 0 if other == agent else action for other in self.agents}
            over = len(self.said) == 3
            self.terminations = dict.fromkeys(self.agents, over)
        if self.agents:
            self.agent_selection = (
                self.agents[(self.agents.index(agent) + 1) % len(self.agents)]
                if agent in self.agents
                else self.agents[0]
            )

    def close(self) -> None:
        self.closed = True


def test_agents_of_pettingzoo_take_turns_and_earn_what_the_game_says() -> None:
    two = MultiTurn(roles=("ann", "bob"), prompt="{observation}")
    outcome, team = play(two, AecWorld(Turns(), 0, -1.0), {"ann": ["1", "I say 0"], "bob": ["1"]})
    assert rewards(team, "ann") == [1.0, 0.0] and rewards(team, "bob") == [0.0]
    assert team.bob.prompts[0][0]["content"] == "bob sees [1]"
    assert outcome.metrics == {"steps": 3, "finished": 1.0}


@pytest.mark.parametrize("action", ["two", "2", "7", "0.5"])
def test_an_action_that_is_none_or_forbidden_ends_a_game_of_pettingzoo(action: str) -> None:
    two = MultiTurn(roles=("ann", "bob"))
    outcome, team = play(two, AecWorld(Turns(), 0, -2.0), {"ann": [action], "bob": []})
    assert rewards(team, "ann") == [-2.0] and outcome.metrics["finished"] == 1


def test_a_game_that_is_not_installed_says_how_to_install_it_before_a_model_is_looked_for(tmp_path: Path) -> None:
    tree = {
        "policies": {"all": {"model": str(tmp_path / "no model")}},
        "roles": {"ann": "all", "bob": "all"},
        "workflow": {"name": "multi_turn", "roles": ["ann", "bob"]},
        "env": {"name": "aec", "game": "no_such_zoo.game_v1"},
        "reward": "native",
        "algorithm": "grpo",
    }
    with pytest.raises(ConfigError, match=r"env.game: .*pip install 'pettingzoo\[classic\]'.*line \d+"):
        started(tree, tmp_path)


def test_a_game_may_be_made_by_a_users_own_file(tmp_path: Path) -> None:
    (tmp_path / "zoo.py").write_text("def make(size):\n    return ['made', size]\n")
    assert Aec(game=f"{tmp_path}/zoo.py:make", options={"size": 3}).open(Task("t", "", None, {"seed": 0})).game == [
        "made",
        3,
    ]


ZOO = pytest.mark.skipif(importlib.util.find_spec("pettingzoo") is None, reason="PettingZoo is not installed")


@ZOO
def test_a_space_of_texts_takes_what_was_said_as_it_is() -> None:
    from gymnasium.spaces import Text

    class Words(Turns):
        def action_space(self, agent: str) -> Any:
            return Text(100)

        def step(self, action: Any) -> None:
            super().step(action if action is None else len(action))

    lines = {"ann": ["to be", "!"], "bob": ["or"]}
    _, team = play(MultiTurn(roles=("ann", "bob")), AecWorld(Words(), 0, -1.0), lines)
    assert rewards(team, "ann") == [2.0, 0.0] and rewards(team, "bob") == [1.0]


@ZOO
def test_tic_tac_toe_of_pettingzoo_is_played_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("pygame") is None:  # it draws the board, which nobody asks for here
        monkeypatch.setitem(sys.modules, "pygame", ModuleType("pygame"))
    env = Aec(game="pettingzoo.classic.tictactoe_v3")
    lines = {"player_1": ["0", "1", "2"], "player_2": ["3", "4"]}
    outcome, team = play(MultiTurn(roles=("player_1", "player_2")), env.open(env.tasks("train")[0]), lines)
    assert outcome.metrics["finished"] == 1
    assert rewards(team, "player_1")[-1] == 1.0 and rewards(team, "player_2")[-1] == -1.0
