"""Samples labelled answers: plays tasks with the team of a config, and labels each answer with the config's grader.

Tasks are played in parts. A part is a file that is renamed into place when it is complete, so a killed process resumes
at its first missing part, and gets the same answers as one that was not killed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import nan
from pathlib import Path
from typing import Any

from coterie.config import Config, ConfigError
from coterie.config.load import to_tree
from coterie.envs.base import TaskEnv, is_by_role
from coterie.errors import did_you_mean
from coterie.files import OtherPlan, exclusive_lock, flat, numbered_paths, remove_folder, require_same_plan
from coterie.rewards.verifier import NAME, verifier_part
from coterie.rollout.agent import Player
from coterie.rollout.collector import Collector
from coterie.rollout.metrics import describe_failures, drop_failed
from coterie.seeds import stable_hash
from coterie.statistics import mean
from coterie.training.loop import Run
from coterie.training.tasks import TaskStream
from coterie.types import Episode, Part, Task, Turn, is_correct
from coterie.verifier.answers import Answer, parts_folder, read_answers, refuse_existing, write_answers
from coterie.workflows.debate import Debate

PLAN = "plan.json"
Report = Callable[[int, Sequence[Answer]], None]  # (tasks that are done, all answers so far)


@dataclass(frozen=True)
class Variant:
    """A policy and a temperature to sample with; None: those of the config."""

    policy: str | None = None  # plays all roles
    temperature: float | None = None


@dataclass(frozen=True)
class Plan:
    """Which answers are sampled. The same plan gives the same answers."""

    config: Config
    tasks: tuple[Task, ...]
    episodes: int  # per task and variant
    variants: tuple[Variant, ...] = (Variant(),)
    checkpoint: str | None = None  # the run's checkpoint to sample with; None: an untrained team
    round: int = 0  # later rounds have other seeds

    @property
    def parts(self) -> list[tuple[Task, ...]]:
        """The tasks in chunks of `tasks_per_step`."""
        size = self.config.tasks_per_step
        return [self.tasks[start : start + size] for start in range(0, len(self.tasks), size)]

    def describe(self) -> dict[str, Any]:
        """Everything that the answers depend on, as flat data."""
        played = [f"{one.policy or 'as configured'} at {one.temperature}" for one in self.variants]
        tasks = {
            "tasks": len(self.tasks),
            "hash of the tasks": stable_hash(*(t.id + t.prompt + repr(t.answer) for t in self.tasks)),
        }
        own = {"answers": self.episodes, "policies and temperatures": played, "checkpoint": self.checkpoint}
        return tasks | own | {"round": self.round} | flat(to_tree(self.config))


def labelling_config(config: Config) -> Config:
    """The config with the reward that labels answers. A verifier's score is no label; the reward in its `labels` is."""
    scored = verifier_part(config.reward)
    if scored is None:
        return config
    if scored.options["labels"] in (None, NAME):
        raise ConfigError(
            "reward: a verifier's score cannot label answers; name a reward that grades them, such as "
            "reward={name: verifier, …, labels: number} or reward=number"
        )
    return replace(config, reward=Part(scored.options["labels"]))


def make_plan(
    run: Run, tasks: int | None, episodes: int, policies: Sequence[str], temperatures: Sequence[float], **more: Any
) -> Plan:
    """A plan for the first tasks that training would draw; `tasks` None: all of them."""
    check_policies(run, policies)
    stream = run.tasks
    chosen = TaskStream(stream.tasks, min(tasks or len(stream.tasks), len(stream.tasks)), stream.seed).at_step(0)
    return Plan(run.config, tuple(chosen), episodes, make_variants(policies, temperatures), **more)


def make_variants(policies: Sequence[str], temperatures: Sequence[float]) -> tuple[Variant, ...]:
    """Each policy at each temperature."""
    names: Sequence[str | None] = policies or [None]
    values: Sequence[float | None] = temperatures or [None]
    return tuple(Variant(name, temperature) for name in names for temperature in values)


def generate(run: Run, plan: Plan, out: Path, report: Report) -> list[Answer]:
    """Play the plan, write its answers to `out` and return them. Continues what a killed process left."""
    folder = parts_folder(out)
    refuse_existing(out)
    answers = play_parts(run, plan, folder, report)
    write_answers(out, answers)
    remove_folder(folder)
    return answers


def play_parts(run: Run, plan: Plan, folder: Path, report: Report) -> list[Answer]:
    """Play the parts of a plan that are not in the folder yet; the answers of all parts, in the order of the tasks."""
    folder.mkdir(parents=True, exist_ok=True)
    collector, done, answers = each_reply_graded(run.collector), 0, list[Answer]()
    with exclusive_lock(folder):
        _require_same_plan(folder, plan)
        for number, tasks in enumerate(plan.parts):
            file = folder / f"{number:06d}.parquet"
            if not file.is_file():
                write_answers(file, play(run, collector, plan, tasks))
            answers += read_answers(file)
            done += len(tasks)
            report(done, answers)
    return answers


def play(run: Run, collector: Collector, plan: Plan, tasks: Sequence[Task]) -> list[Answer]:
    """The answers to some tasks by all variants, task by task."""
    found: dict[str, list[Answer]] = {task.id: [] for task in tasks}
    for variant in plan.variants:
        for episode in _episodes(run, collector, plan, tasks, variant):
            found[episode.task.id] += answers_of(episode)
    return [answer for answers in found.values() for answer in answers]


def _episodes(run: Run, collector: Collector, plan: Plan, tasks: Sequence[Task], variant: Variant) -> list[Episode]:
    players = players_of(run, variant)
    greedy = all(player.sampling.temperature == 0 for player in players.values())
    seed = stable_hash(plan.config.seed, "verifier", plan.round, repr(variant))
    # Greedy episodes of a task are all the same.
    episodes = collector.collect(tasks, 1 if greedy else plan.episodes, players, seed)
    run.engine.clear()  # every part starts with an empty cache, so that a resumed process samples the same
    played = drop_failed(episodes, plan.config.rollout.max_failed)
    if failed := [episode for episode in episodes if episode.error is not None]:
        print(describe_failures(failed, len(episodes)), file=sys.stderr)
    return played


def players_of(run: Run, variant: Variant) -> dict[str, Player]:
    """The players of each role: sampled as in training, with the policy and the temperature of the variant."""
    players = {}
    for role, player in run.players(evaluating=True).items():
        sampling = run.config.sampling_of(role)
        if variant.temperature is not None:
            sampling = replace(sampling, temperature=variant.temperature)
        policy = (player.policy, player.later) if variant.policy is None else (variant.policy, ())
        players[role] = Player(policy[0], sampling, policy[1])
    return players


def each_reply_graded(collector: Collector) -> Collector:
    """A debate's replies are all answers, so each gets a label of its own, not only the majority's."""
    workflow = collector.workflow
    if isinstance(workflow, Debate) and isinstance(collector.env, TaskEnv):
        return replace(collector, workflow=replace(workflow, grade="each"))
    return collector


def answers_of(episode: Episode) -> list[Answer]:
    """The graded answers of an episode: of a role each, or the turn that wrote the team's answer."""
    if is_by_role(episode):
        graded = [(turn, turn.reward) for turn in episode.turns if turn.reward is not None]
    else:
        graded = [(_author(episode), episode.reward)]
    return [_answer(episode.task, turn, reward) for turn, reward in graded]


def _author(episode: Episode) -> Turn:
    for turn in reversed(episode.turns):
        if turn.text == episode.answer:
            return turn
    raise ConfigError(
        f"workflow: no turn of {episode.id} wrote the team's answer {str(episode.answer)[:80]!r}; a verifier learns "
        "from whole replies, so use a workflow that returns one, such as single, chain or debate"
    )


def _answer(task: Task, turn: Turn, reward: float) -> Answer:
    logprob = mean(turn.logprobs) if turn.logprobs else nan
    label = float(is_correct(reward))
    return Answer(task.id, task.prompt, turn.text, turn.response_ids, turn.policy, turn.temperature, label, logprob)


def check_policies(run: Run, policies: Sequence[str]) -> None:
    known = list(run.collector.chats)
    for policy in policies:
        if policy not in known:
            hint = did_you_mean(policy, known)
            raise ConfigError(f"--policy {policy}: no such policy; there are {', '.join(known)}{hint}")


def _require_same_plan(folder: Path, plan: Plan) -> None:
    """Write the plan of new parts; reject a plan that differs from that of the parts that are there."""
    file = folder / PLAN
    if not file.is_file() and numbered_paths(folder, ".parquet"):
        raise OtherPlan(f"{folder} has parts but no {PLAN}; delete the folder to begin again")
    require_same_plan(file, plan.describe(), str(folder), "delete the folder")
