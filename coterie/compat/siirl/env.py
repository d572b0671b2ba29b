"""Tasks in siiRL's Parquet layout, with the environments of a graph beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.compat.siirl.world import Worlds, world_class
from coterie.data.row import Raw, other_fields
from coterie.envs.rows import Rows
from coterie.rewards import Grader
from coterie.types import Episode, Task, is_correct


@dataclass(frozen=True)
class GraphTasks(Rows):
    """Rows as verl and siiRL have them: `prompt` is a list of messages, `reward_model.ground_truth` the answer.

    Other rows are read as `rows` reads them. What an answer is worth, the config's reward says.
    """

    prompt_key: str = "prompt"  # the name of the field with the messages
    worlds: dict[str, str] = field(default_factory=dict)  # by role: the environment it acts on, file.py:Class

    def __post_init__(self) -> None:
        for role, name in self.worlds.items():
            try:
                world_class(name)
            except ValueError as error:
                raise ValueError(f'worlds."{role}": {error}') from error

    def open(self, task: Task) -> Worlds | None:
        return Worlds(self.worlds, self.reference(task)) if self.worlds else None

    def _task(self, path: Path, number: int, raw: Raw) -> Task:
        judged = raw.get("reward_model")
        if self.prompt_key not in raw or not isinstance(judged, Mapping):
            return super()._task(path, number, raw)
        if "ground_truth" not in judged:
            raise ValueError(f"{path}, row {number}: reward_model has no ground_truth; it has {', '.join(judged)}")
        talk = _messages(raw[self.prompt_key], f"{path}, row {number}: {self.prompt_key}")
        meta = other_fields(raw, self.prompt_key, "reward_model") | {"messages": talk}
        return Task(f"{path.stem}/{number}", talk[-1]["content"], judged["ground_truth"], meta)


@dataclass(frozen=True)
class GraphEnv(GraphTasks):
    """As `graph`; what is earned, the environments say while they are acted on: `reward: native`."""

    async def score(self, episode: Episode) -> None:
        """What the last environment to answer gave; an answer that none has seen is put before a fresh one."""
        given = [turn.reward for turn in episode.turns if turn.reward is not None]
        if not given:
            await super().score(episode)
            return
        episode.reward = given[-1]
        episode.metrics["accuracy"] = float(is_correct(episode.reward))

    def native(self, deadline: float) -> Grader:
        if not self.worlds:
            raise ValueError("reward native: no agent has an environment that could say what an answer is worth")
        return WorldGrader("native", {"name": list(self.worlds.values())[-1]}, deadline)


@dataclass(frozen=True)
class WorldGrader(Grader):
    """Grades a lone answer, such as that of one agent without the graph, by a fresh environment."""

    async def __call__(self, answer: Any, truth: Any, task: Task | None = None) -> float:
        worlds = Worlds({"answer": self.options["name"]}, truth)
        try:
            return await worlds.worth(str(answer))
        finally:
            await worlds.close()


def _messages(prompt: Any, where: str) -> list[dict[str, str]]:
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    if not isinstance(prompt, list) or not prompt or not all(_is_message(one) for one in prompt):
        raise ValueError(f"{where} is {prompt!r:.60}, neither text nor a list of messages with role and content")
    return [{"role": one["role"], "content": one["content"]} for one in prompt]


def _is_message(one: Any) -> bool:
    return isinstance(one, Mapping) and all(isinstance(one.get(key), str) for key in ("role", "content"))
