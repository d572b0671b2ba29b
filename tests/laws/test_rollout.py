"""Laws of playing: every turn is recorded as it was sampled, and a failure is data."""

from __future__ import annotations

import asyncio
import math
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from coterie.engines.native.engine import NativeEngine
from coterie.envs.base import TaskEnv, attach_reward
from coterie.games.naming import Naming, OneByOne
from coterie.learners.batch import make_batches
from coterie.models.base import Base
from coterie.rollout.agent import AgentTeam, Player, as_messages
from coterie.rollout.collector import Collector
from coterie.rollout.metrics import TooManyFailures, describe_failures, drop_failed, rollout_metrics, turn_metrics
from coterie.types import Episode, Outcome, Sampling, Split, Task, Team
from coterie.workflows.vote import Vote
from tests.episodes import episode, turn
from tests.hangs import HANG

TASKS = [Task(f"task {i}", f"What is {i} + {i}?", None) for i in range(4)]
PLAYERS = {role: Player("policy", Sampling(max_tokens=6)) for role in ("left", "right")}
ENV = Naming({"left": "e", "right": "a"})


@pytest.fixture(scope="module")
def llama(model_folder: Callable[[str], Path]) -> Base:
    return Base(model_folder("llama"))


@pytest.fixture
def collector(llama: Base) -> Collector:
    engine = NativeEngine(llama, {"policy": None})
    return Collector(OneByOne(("left", "right"), rounds=2), ENV, engine, {"policy": llama.chat}, 64, 60.0, 60.0)


def said(episodes: Sequence[Episode]) -> dict[str, list[tuple[str, tuple[int, ...]]]]:
    return {e.id: [(t.role, t.response_ids) for t in e.turns] for e in episodes}


def test_what_is_sampled_does_not_depend_on_concurrency_order_or_company(collector: Collector) -> None:
    together = said(collector.collect(TASKS, 3, PLAYERS, seed=1))
    assert len(together) == 12 and all(len(turns) == 4 for turns in together.values())
    for concurrency in (1, 5):
        assert said(replace(collector, concurrency=concurrency).collect(TASKS, 3, PLAYERS, seed=1)) == together
    assert said(collector.collect(TASKS[::-1], 3, PLAYERS, seed=1)) == together
    alone = said(collector.collect(TASKS[2:3], 1, PLAYERS, seed=1))
    assert alone.items() <= together.items()
    assert said(collector.collect(TASKS, 3, PLAYERS, seed=2)) != together


def test_repeats_roles_and_rounds_each_have_noise_of_their_own(collector: Collector) -> None:
    episodes = collector.collect(TASKS[:1], 6, PLAYERS, seed=1)
    assert len({e.turns[0].response_ids for e in episodes}) > 3
    assert len({t.response_ids for e in episodes for t in e.turns}) > 12


def test_a_task_that_comes_twice_in_a_step_is_played_with_other_noise(collector: Collector) -> None:
    episodes = collector.collect([TASKS[0], TASKS[0]], 2, PLAYERS, seed=1)
    assert [e.repeat for e in episodes] == [0, 1, 2, 3]
    assert len({e.turns[0].response_ids for e in episodes}) > 2


def test_a_conversation_that_goes_on_keeps_the_ids_that_were_sampled(collector: Collector) -> None:
    for played in collector.collect(TASKS, 2, PLAYERS, seed=3):
        first, later = (t for t in played.turns if t.role == "left")
        before = first.prompt_ids + first.response_ids
        assert later.prompt_ids[: len(before)] == before and later.round == 1


@dataclass(frozen=True)
class AllAtOnce:
    """Asks for a long, a short and a middling turn at the same time."""

    roles: Sequence[str] = ("left", "right")

    async def run(self, task: Task, team: Team, world: Any) -> list[str]:
        lengths = {"left": 9, "right": 1}
        turns = await asyncio.gather(
            *(team[role].say(task.prompt, max_tokens=n) for role, n in lengths.items()),
            team.left.say(task.prompt + " Really?", max_tokens=4),
        )
        return [turn.text for turn in turns]


def test_turns_stay_in_the_order_in_which_they_were_asked_for(collector: Collector) -> None:
    for played in replace(collector, workflow=AllAtOnce()).collect(TASKS, 2, PLAYERS, seed=1):
        assert [(t.role, t.round) for t in played.turns] == [("left", 0), ("right", 0), ("left", 1)]
        assert [t.text for t in played.turns] == played.answer
        assert len(played.turns[1].response_ids) == 1


def test_turns_that_one_role_is_asked_for_at_once_have_noise_of_their_own(collector: Collector) -> None:
    voting = replace(collector, workflow=Vote(role="left", voters=5))
    (played,) = voting.collect(TASKS[:1], 1, {"left": PLAYERS["left"]}, seed=1)
    assert len({t.prompt_ids for t in played.turns}) == 1 and len({t.response_ids for t in played.turns}) > 3


# Failures


@dataclass(frozen=True)
class Stumbles(OneByOne):
    """Plays as told, but not on every task."""

    mishaps: Mapping[str, BaseException] | None = None

    async def run(self, task: Task, team: Team, world: Any) -> str:
        answer = await super().run(task, team, world)
        if self.mishaps and task.id in self.mishaps:
            raise self.mishaps[task.id]
        return answer


def test_a_failed_episode_is_data_with_its_traceback_and_the_others_go_on(collector: Collector) -> None:
    mishaps = {"task 1": ValueError("no answer in the reply"), "task 2": KeyError("tool")}
    clumsy = replace(collector, workflow=Stumbles(("left", "right"), 2, mishaps))
    episodes = clumsy.collect(TASKS, 2, PLAYERS, seed=1)
    assert [e.error_kind for e in episodes] == [None, None, *["ValueError"] * 2, *["KeyError"] * 2, None, None]
    broken = episodes[2]
    assert broken.error is not None
    assert "no answer in the reply" in broken.error
    assert "test_rollout.py" in broken.error.splitlines()[1]  # the traceback begins in the user's code
    assert len(broken.turns) == 4  # what was said before it failed
    assert said(episodes) == said(collector.collect(TASKS, 2, PLAYERS, seed=1))
    metrics = rollout_metrics(episodes)
    assert (metrics["failed"], metrics["failed/ValueError"], metrics["failed/KeyError"]) == (4, 2, 2)
    assert metrics["reward"] == pytest.approx(sum(e.reward for e in episodes if e.error is None) / 4)


@pytest.mark.parametrize(
    "mishap", [SystemExit(3), asyncio.CancelledError()], ids=["exit", "a cancelled task of its own"]
)
def test_nothing_that_one_episode_does_ends_the_others(mishap: BaseException, collector: Collector) -> None:
    clumsy = replace(collector, workflow=Stumbles(("left", "right"), 2, {"task 1": mishap}))
    kinds = [e.error_kind for e in clumsy.collect(TASKS, 1, PLAYERS, seed=1)]
    assert kinds == [None, type(mishap).__name__, None, None]


@dataclass(frozen=True)
class Stubborn:
    """Holds everybody up, or does not let itself be cancelled."""

    blocks: bool
    roles: Sequence[str] = ("left", "right")

    async def run(self, task: Task, team: Team, world: Any) -> str:
        if self.blocks:
            time.sleep(0.15)
        else:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(5)
        return "a"


@pytest.mark.parametrize("blocks", [True, False])
def test_an_episode_that_comes_to_its_end_too_late_has_failed(blocks: bool, collector: Collector) -> None:
    slow = replace(collector, workflow=Stubborn(blocks), deadline=0.1)
    (played,) = slow.collect(TASKS[:1], 1, PLAYERS, seed=1)
    assert played.error_kind == "TimeoutError" and "0.1 seconds of rollout.deadline" in (played.error or "")


@dataclass(frozen=True)
class Narrow:
    """Lets a role speak as a workflow may ask it to."""

    how: Mapping[str, Any]
    roles: Sequence[str] = ("left", "right")

    async def run(self, task: Task, team: Team, world: Any) -> str:
        return (await team.left.say(task.prompt, **self.how)).text


@pytest.mark.parametrize("how", [{"top_p": 0.5}, {"top_k": 2}, {"temperature": 0}])
def test_a_turn_that_is_drawn_from_a_part_of_what_could_be_said_is_not_learned_from(
    how: Mapping[str, Any], collector: Collector
) -> None:
    for options, learned in ((how, False), ({"temperature": 0.5, "max_tokens": 2}, True)):
        (played,) = replace(collector, workflow=Narrow(options)).collect(TASKS[:1], 1, PLAYERS, seed=1)
        assert played.error is None and [turn.trainable for turn in played.turns] == [learned]
        assert bool(make_batches([played], require_advantages=False)) == learned
    narrow = {"left": replace(PLAYERS["left"], sampling=Sampling(8, top_p=0.9, top_k=7)), "right": PLAYERS["right"]}
    for options, learned in ((how, False), ({"max_tokens": 2}, True), ({"top_p": 1.0}, True)):
        (played,) = replace(collector, workflow=Narrow(options)).collect(TASKS[:1], 1, narrow, seed=1)
        assert played.error is None and [turn.trainable for turn in played.turns] == [learned]


@pytest.mark.parametrize("stop", ["END", ["END", ""]])
def test_a_stop_text_that_would_end_every_reply_is_refused(stop: Any) -> None:
    with pytest.raises(ValueError, match=r"stop: got .*END.*, expected a list of texts that are not empty"):
        Sampling(stop=stop)


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"max_tokens": 2.5}, "max_tokens: got 2.5, expected a whole number ≥ 1"),
        ({"max_tokens": 0}, "max_tokens: got 0, expected a whole number ≥ 1"),
        ({"temperature": "0.5"}, "temperature: got '0.5', expected a number ≥ 0"),
        ({"temperature": None}, "temperature: got None, expected a number ≥ 0"),
        ({"temperature": math.nan}, "temperature: got nan, expected a number ≥ 0"),
        ({"top_p": math.nan}, "top_p: got nan, expected a number > 0 and ≤ 1"),
        ({"top_k": 1.5}, "top_k: got 1.5, expected a whole number ≥ 0"),
        ({"stop": None}, "stop: got None, expected a list of texts that are not empty"),
        ({"stop": [5]}, "stop: got [5], expected a list of texts that are not empty"),
    ],
)
def test_sampling_of_a_wrong_type_is_told_with_its_option(how: Mapping[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        Sampling(**how)


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        (5, "say() got 5; it takes a text or a list of messages, as [{"),
        ({"role": "user", "content": "hi"}, "say() got {'role': 'user', 'content': 'hi'}; it takes a text or a list"),
        ("a \ud800", "say(): message 1 (user) has a lone surrogate at character 2, which is not valid text"),
        (
            [{"role": "system", "content": "é"}, {"role": "tool", "content": "\udfff"}],
            "say(): message 2 (tool) has a lone surrogate at character 0",
        ),
    ],
)
def test_say_tells_what_it_takes(messages: Any, told: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(told)):
        as_messages(messages)


def ample(collector: Collector) -> float:
    """A deadline that good episodes keep, by how long they take on this machine now."""
    collector.collect(TASKS, 1, PLAYERS, seed=0)  # what is only slow the first time does not count
    started = time.perf_counter()
    collector.collect(TASKS, 1, PLAYERS, seed=1)
    return max(1.0, 20 * (time.perf_counter() - started))


@dataclass(frozen=True)
class Stuck:
    """Never comes back from the second task, and computes or waits there."""

    waits: bool
    roles: Sequence[str] = ("left", "right")

    async def run(self, task: Task, team: Team, world: Any) -> str:
        await team.left.say(task.prompt)
        while task is TASKS[1]:
            time.sleep(60 if self.waits else 0)
        return "a"


@pytest.mark.parametrize("waits", [True, False])
def test_code_that_never_comes_back_is_interrupted_and_the_others_go_on(waits: bool, collector: Collector) -> None:
    # For an eighth of the deadline one episode may hold up all others; they keep it on a slow machine, too.
    stuck = replace(collector, workflow=Stuck(waits), deadline=10 * ample(collector))
    played = stuck.collect(TASKS, 1, PLAYERS, seed=1)
    assert played[1].error_kind == "TimeoutError" and "time.sleep" in (played[1].error or "")
    assert [e.error_kind for i, e in enumerate(played) if i != 1] == [None] * (len(played) - 1)
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL


@dataclass(frozen=True)
class Returns:
    """Forgets what a workflow has to give back."""

    text: bool
    roles: Sequence[str] = ("left", "right")

    async def run(self, task: Task, team: Team, world: Any) -> Any:
        asked = team.left.say(task.prompt)
        return asked if self.text else await asked


@pytest.mark.parametrize(("text", "why"), [(True, "an await is missing"), (False, "a Turn: return its .text")])
@pytest.mark.filterwarnings("error:coroutine")
def test_a_workflow_that_returns_no_answer_is_told_what_it_did(text: bool, why: str, collector: Collector) -> None:
    (played,) = replace(collector, workflow=Returns(text)).collect(TASKS[:1], 1, PLAYERS, seed=1)
    assert (
        played.error_kind == "BadAnswer"
        and f"Returns.run returned {'an awaitable' if text else 'a Turn'}" in played.error
    )
    assert why in played.error


@dataclass(frozen=True)
class Misspelt:
    """Asks for fewer tokens by a wrong name."""

    roles: Sequence[str] = ("left", "right")

    async def run(self, task: Task, team: Team, world: Any) -> str:
        return (await team.left.say(task.prompt, max_token=3)).text


def test_an_unknown_option_of_say_is_named_with_the_nearest(collector: Collector) -> None:
    (played,) = replace(collector, workflow=Misspelt()).collect(TASKS[:1], 1, PLAYERS, seed=1)
    assert "TypeError: say() has no option 'max_token'; it takes max_tokens, " in str(played.error)
    assert "did you mean max_tokens?" in str(played.error)


@dataclass(frozen=True)
class Tuples:
    """Asks with pairs in the place of messages."""

    roles: Sequence[str] = ("left", "right")

    async def run(self, task: Task, team: Team, world: Any) -> str:
        return (await team.left.say([("user", task.prompt)])).text


def test_a_message_in_another_form_is_named_with_the_line_that_sent_it(collector: Collector) -> None:
    (played,) = replace(collector, workflow=Tuples()).collect(TASKS[:1], 1, PLAYERS, seed=1)
    assert played.error_kind == "TypeError" and played.error is not None
    assert "team.left.say([" in played.error and "TypeError: say() got ('user', " in played.error


def test_an_alarm_that_was_set_before_is_heard_after(collector: Collector) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _: heard.append(number))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        collector.collect(TASKS, 1, PLAYERS, seed=1)
        time.sleep(0.3)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert heard == [signal.SIGALRM]


@dataclass(frozen=True)
class Scores:
    """Gives one reward after the other, whatever it is."""

    reward: Any = 1.0
    turn_reward: Any = None
    metric: Mapping[str, Any] = field(default_factory=dict)
    returned: Any = None

    def tasks(self, split: Split) -> Sequence[Task]:
        return TASKS

    def open(self, task: Task) -> None:
        return None

    async def score(self, played: Episode) -> Any:
        played.reward, played.turns[-1].reward = self.reward, self.turn_reward
        played.metrics |= self.metric
        return self.returned


@pytest.mark.parametrize(
    ("env", "complaint"),
    [
        (Scores(math.nan), "its reward is nan; a finite number was expected"),
        (Scores(-1e300), "its reward is -1e+300; a finite number was expected, at most 1e+15 in size"),
        (Scores(None), "its reward is None"),
        (Scores("1"), "its reward is '1'"),
        (Scores(torch.tensor(1.0)), "its reward is tensor"),
        (Scores(turn_reward=math.inf), "the reward of right's turn is inf"),
        (Scores(metric={"found": math.nan}), "its metric found is nan"),
        (Scores(metric={"tokens_per_second": 1.0}), "a metric may not be called tokens_per_second"),
        (Scores(metric={"credit/left": 1.0, "found": 1.0}), "a metric may not be called credit/left: the run has"),
        (Scores(returned=0.5), "Scores.score returned 0.5; write it to episode.reward"),
    ],
)
def test_a_reward_or_metric_that_is_no_number_is_the_failure_of_its_episode(
    env: Scores, complaint: str, collector: Collector
) -> None:
    (played,) = replace(collector, env=env).collect(TASKS[:1], 1, PLAYERS, seed=1)
    assert played.error_kind == "BadReward" and (played.error or "").startswith(complaint)


@dataclass(frozen=True)
class Reports:
    """Reports metrics of its own, some by a judge."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    judge: Any = None
    roles: Sequence[str] = ("left", "right")

    async def run(self, task: Task, team: Team, world: Any) -> Outcome:
        return Outcome((await team.left.say(task.prompt)).text, metrics=dict(self.metrics), judge=self.judge)


async def says_nothing(grade: Any) -> None: ...


async def says_a_number(grade: Any) -> float:
    return 1.0


async def says_found(grade: Any) -> dict[str, float]:
    return {"found": 1.0}


@pytest.mark.parametrize(
    ("workflow", "complaint"),
    [
        (Reports({"found": 0.0}), "the workflow's metric found is one of the environment's"),
        (Reports(judge=says_found), "the workflow's metric found is one of the environment's"),
        (Reports(judge=lambda grade: {}), "a judge gave {}; write `async def judge(grade)`"),
        (Reports(judge=says_a_number), "a judge returned 1.0; return its metrics as a dict, or nothing"),
        (Reports({"asked": 1.0}, judge=says_nothing), ""),
    ],
)
def test_a_workflow_adds_metrics_and_replaces_none(workflow: Reports, complaint: str, collector: Collector) -> None:
    own = replace(collector, env=Scores(metric={"found": 1.0}), workflow=workflow)
    (played,) = own.collect(TASKS[:1], 1, PLAYERS, seed=1)
    assert (played.error or "").startswith(complaint) and (played.error is None) == (complaint == "")
    assert complaint or played.metrics == {"found": 1.0, "asked": 1.0}


def test_a_prompt_that_cannot_be_read_fails_alone(collector: Collector) -> None:
    clumsy = replace(collector, workflow=Misspells())
    assert [e.error_kind for e in clumsy.collect(TASKS, 1, PLAYERS, seed=1)] == [None, "ValueError", "ValueError", None]


@dataclass(frozen=True)
class Misspells:
    """Asks with a token that there is not, with none at all, and well."""

    roles: Sequence[str] = ("left", "right")

    async def run(self, task: Task, team: Team, world: Any) -> str:
        ids = {"task 1": [5, 99999], "task 2": []}.get(task.id, [5, 6])
        return (await team.left.say_ids(ids)).text


def test_too_many_failures_stop_the_run_with_the_first_cause() -> None:
    episodes = [episode([], task=f"task {i}") for i in range(4)]
    for played, kind in zip(episodes[1:3], ("ValueError", "TimeoutError"), strict=True):
        played.error, played.error_kind = f"Traceback …\n{kind}: because", kind
    assert drop_failed(episodes, 0.5) == [episodes[0], episodes[3]]
    with pytest.raises(TooManyFailures) as stopped:
        drop_failed(episodes, 0.49)
    for words in ("2 of 4 episodes failed", "1 ValueError", "1 TimeoutError", "49%", "task 1/0", "ValueError: because"):
        assert words in str(stopped.value)
    assert drop_failed(episodes[:1], 0.0) == episodes[:1]
    told = "2 of 4 episodes failed (1 ValueError, 1 TimeoutError) and are left out; the first was task 1/0: "
    assert describe_failures(episodes[1:3], 4) == f"{told}ValueError: because"
    episodes[1].error = "the prompt is too long\nuse a shorter one"  # the text of a user error
    assert describe_failures(episodes[1:3], 4) == f"{told}the prompt is too long"


@dataclass(frozen=True)
class NeverReturns(OneByOne):
    """On one task it waits for ever, on another it never stops talking."""

    async def run(self, task: Task, team: Team, world: Any) -> str:
        if task.id == "task 1":
            await asyncio.Event().wait()
        while task.id == "task 2":
            await team.left.say(task.prompt)
        return await super().run(task, team, world)


def test_a_workflow_that_never_returns_hits_its_deadline_alone(collector: Collector) -> None:
    endless = replace(collector, workflow=NeverReturns(("left", "right"), 2), deadline=ample(collector))
    episodes = endless.collect(TASKS, 1, PLAYERS, seed=1)
    assert [e.error_kind for e in episodes] == [None, "TimeoutError", "TimeoutError", None]
    assert len(episodes[2].turns) > 1
    straight = said(collector.collect(TASKS, 1, PLAYERS, seed=1))  # and the engine is as good as before
    assert all(said([e])[e.id] == straight[e.id] for e in (episodes[0], episodes[3]))


@dataclass(frozen=True)
class SlowScore(Naming):
    async def score(self, episode: Episode) -> None:
        if episode.task.id == "task 0":
            await asyncio.sleep(3600)
        await super().score(episode)


def test_an_environment_whose_scoring_waits_for_ever_is_cut(collector: Collector) -> None:
    waiting = replace(collector, env=SlowScore(ENV.letters), score_deadline=1.0)
    assert [e.error_kind for e in waiting.collect(TASKS, 1, PLAYERS, seed=1)] == ["TimeoutError", None, None, None]


@dataclass(frozen=True)
class Questions(TaskEnv):
    def tasks(self, split: Split) -> list[Task]:
        return TASKS


def test_graders_that_hang_are_cut_and_those_behind_them_are_answered(collector: Collector, tmp_path: Path) -> None:
    (tmp_path / "grade.py").write_text("def grade(answer, truth):\n    while truth == 'hang': pass\n    return 1.0\n")
    env = attach_reward(Questions(), f"{tmp_path}/grade.py:grade", {}, deadline=1.0)
    # More hang than there are processes to grade in, so that the good ones have to wait for them.
    tasks = [Task(f"task {i}", "Go.", "hang" if i < 4 else "fine") for i in range(8)]
    patient = replace(collector, workflow=OneByOne(("left",)), env=env, score_deadline=None)
    episodes = patient.collect(tasks, 1, {"left": PLAYERS["left"]}, seed=1)
    assert [e.error_kind for e in episodes] == ["GraderTimeout"] * 4 + [None] * 4
    assert [e.reward for e in episodes[4:]] == [1.0] * 4
    assert [e.metrics["grader_timeouts"] for e in episodes] == [2.0] * 4 + [0.0] * 4
    assert rollout_metrics(episodes)["grader_timeouts"] == 1.0


@dataclass(frozen=True)
class SaysGo(OneByOne):
    """Leaves a note when the last task is played."""

    note: Path = Path()

    async def run(self, task: Task, team: Team, world: Any) -> Any:
        answer = await super().run(task, team, world)
        if task.id == TASKS[-1].id:
            self.note.write_text("go")
        return answer


def test_grading_never_keeps_sampling_waiting(collector: Collector, tmp_path: Path) -> None:
    """One episode at a time, and graders that wait until the last one is played."""
    note = tmp_path / "go"
    code = (
        f"import os, time\ndef grade(answer, truth):\n    while not os.path.exists({str(note)!r}): time.sleep(0.01)\n"
    )
    (tmp_path / "grade.py").write_text(code + "    return 1.0\n")
    env = attach_reward(Questions(), f"{tmp_path}/grade.py:grade", {}, deadline=HANG)
    workflow = SaysGo(("left",), note=note)
    narrow = replace(collector, workflow=workflow, env=env, concurrency=1, score_deadline=None)
    episodes = narrow.collect(TASKS, 1, {"left": PLAYERS["left"]}, seed=1)
    assert [(e.error, e.reward, e.metrics["grader_timeouts"]) for e in episodes] == [(None, 1.0, 0.0)] * 4


def test_a_role_that_is_not_there_is_named_beside_those_that_are() -> None:
    with pytest.raises(KeyError, match="no role is called 'solver'; this team has"):
        AgentTeam([])["solver"]


def test_means_have_standard_errors_with_tasks_as_the_unit() -> None:
    """Two tasks whose means are 0 and 1: the standard error is 0.5, however often each is played."""
    played = [
        episode([turn("solver", response=(1,) * (2 + 2 * task))], float(task), task=f"t{task}") for task in (0, 1)
    ]
    for one in played:
        one.metrics["accuracy"] = one.reward
    for repeats in (1, 3):
        found = rollout_metrics(played * repeats)
        names = ("reward", "reward/solver", "accuracy", "tokens/solver")
        assert [found[f"stderr/{name}"] for name in names] == pytest.approx([0.5, 0.5, 0.5, 1.0])
    assert not any(name.startswith("stderr") for name in rollout_metrics(played[:1]))
    own = turn_metrics(played, {"policy": SimpleNamespace(frozen=False)})  # type: ignore[dict-item]
    assert own["stderr/policy/response_length"] == pytest.approx(1.0)
