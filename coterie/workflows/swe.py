"""SWE: an analyzer locates the bug, a writer edits the files, a validator predicts whether the tests pass."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from coterie.envs.swe.checkout import Checkout
from coterie.envs.swe.edits import EditError, diff_of
from coterie.prompts import check, check_counts, fill
from coterie.types import Grade, Metrics, Outcome, Task, Team, Turn
from coterie.workflows.verdict_parsing import verdict

ANALYZE = (
    "{issue}\n\nThe project's files:\n{tree}\n\nWhich files must be changed, and how? Name their whole paths, then "
    "explain briefly."
)
WRITE = (
    "{issue}\n\nAn analysis:\n{analysis}\n\n{files}\n\n{before}Write the change as blocks of this form, with the lines "
    "exactly as they stand in the file:\n\npath/of/file.py\n<<<<<<< SEARCH\nold lines\n=======\nnew lines\n"
    ">>>>>>> REPLACE"
)
VALIDATE = (
    "{issue}\n\nThis change was made:\n{diff}\n\nWill the project's tests pass with it? Say why, briefly, and end with "
    '"Verdict: pass" or "Verdict: fail".'
)
BEFORE = "An earlier change:\n{change}\n\nWhat is wrong with it:\n{remarks}\n\n"
MAX_PATHS = 200  # in the analyzer's prompt
MAX_FILE = 8000  # characters of a file in the writer's prompt
FORMAT_WEIGHT = 0.1  # share of a reward for naming a file that exists, or for an edit that can be applied


@dataclass(frozen=True)
class Swe:
    """Analyzer → writer → validator, repeated from the writer until the validator accepts or for
    `max_refinement_iterations`.

    The writer sees the files that the analyzer named. The validator judges before any test runs, and gets 1 if it is
    right. Analyzer and writer get the fraction of tests that pass, and 0.1 for naming a file that exists or for an edit
    that can be applied.
    """

    judges_turns: ClassVar[bool] = True
    needs_world: ClassVar[bool] = True

    max_refinement_iterations: int = 2  # changes, at most
    max_files: int = 3  # files shown to the writer, at most
    analyze: str = ANALYZE  # the analyzer's prompt
    write: str = WRITE  # the writer's prompt
    validate: str = VALIDATE  # the validator's prompt

    def __post_init__(self) -> None:
        check(self.analyze, ["issue", "tree"], "analyze")
        check(self.write, ["issue", "analysis", "files", "before"], "write")
        check(self.validate, ["issue", "diff"], "validate")
        check_counts(self, "max_refinement_iterations", "max_files")

    @property
    def roles(self) -> tuple[str, ...]:
        return ("analyzer", "writer", "validator")

    async def run(self, task: Task, team: Team, world: Any) -> Outcome:
        if not isinstance(world, Checkout):
            raise ValueError("swe needs an environment with projects: env swe")
        issue = {"issue": task.prompt}
        tree = "\n".join(sorted(world.texts)[:MAX_PATHS])
        analysis = await team.analyzer.say(fill(self.analyze, issue | {"tree": tree}))
        named = self._named(analysis.text, world)
        files = (f"{path}\n```\n{world.texts[path][:MAX_FILE]}```" for path in named)
        shown = "\n\n".join(files) or "(no file was named)"
        before, rounds = "", list[Round]()
        while not (rounds and rounds[-1].accepted) and len(rounds) < self.max_refinement_iterations:
            values = issue | {"analysis": analysis.text, "files": shown, "before": before}
            change = await team.writer.say(fill(self.write, values))
            try:
                texts = world.edited(change.text)
            except EditError as error:
                rounds.append(Round(change))
                before = fill(BEFORE, {"change": change.text, "remarks": f"It cannot be made: {error}"})
                continue
            diff = diff_of(world.texts, texts)
            judgement = await team.validator.say(fill(self.validate, issue | {"diff": diff or "(nothing)"}))
            rounds.append(Round(change, judgement, diff, texts))
            before = fill(BEFORE, {"change": diff, "remarks": judgement.text})

        async def judge(grade: Grade) -> Metrics:
            return await assign_rewards(analysis, named, rounds, world)

        applied = [each for each in rounds if each.judgement is not None]
        metrics = {
            "total_iterations": float(len(rounds)),
            "analyzer_found": float(bool(named)),
            "writer_applied": len(applied) / len(rounds),
            "accepted": float(rounds[-1].accepted),
        }
        return Outcome(applied[-1].diff if applied else "", metrics, judge=judge)

    def _named(self, text: str, world: Checkout) -> list[str]:
        """The project's files whose paths occur in a text, in order of occurrence."""
        found = {path: re.search(rf"(?<![\w/.-]){re.escape(path)}(?![\w/-]|\.\w)", text) for path in world.texts}
        places = {path: match.start() for path, match in found.items() if match is not None}
        return sorted(places, key=lambda path: places[path])[: self.max_files]


@dataclass(frozen=True)
class Round:
    """An edit; if it could be applied, also the validator's turn, the diff and the files after it."""

    change: Turn
    judgement: Turn | None = None
    diff: str = ""
    texts: Mapping[str, str] = field(default_factory=dict)

    @property
    def accepted(self) -> bool:
        return self.judgement is not None and verdict(self.judgement.text) is True


async def assign_rewards(analysis: Turn, named: Sequence[str], rounds: Sequence[Round], world: Checkout) -> Metrics:
    """After the episode, because no turn reads the results: run the tests and set the rewards. The last edit that could
    be applied is the answer."""
    passed, true, fraction = list[bool](), list[bool](), 0.0
    for each in rounds:
        each.change.reward = 0.0
        if each.judgement is not None:
            tested = await world.test(each.texts)
            fraction = tested.fraction
            passed.append(tested.passed == tested.total)
            true.append(verdict(each.judgement.text) is passed[-1])
            each.change.reward, each.judgement.reward = FORMAT_WEIGHT + (1 - FORMAT_WEIGHT) * fraction, float(true[-1])
    analysis.reward = FORMAT_WEIGHT * bool(named) + (1 - FORMAT_WEIGHT) * fraction
    metrics = {"writer_success_rate": sum(passed) / len(rounds), "final_success": float(bool(passed) and passed[-1])}
    return metrics | ({"validator_accuracy": sum(true) / len(true)} if true else {})
