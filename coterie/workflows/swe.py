"""SWE: an analyzer finds the place, a writer changes the files, a validator judges the change."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from coterie.envs.swe.checkout import Checkout
from coterie.envs.swe.edits import EditError, diff_of
from coterie.prompts import check, fill
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
TREE = 200  # paths that are listed
LETTERS = 8000  # of a file that the writer sees
FORM = 0.1  # of a reward: for a file that exists, for a change that can be made


@dataclass(frozen=True)
class Swe:
    """Analyzer → writer → validator, and again from the writer until the validator is content or the limit is reached.

    The writer sees the files that the analyzer named. The validator judges before a test has run, and earns 1 for
    being right. Analyzer and writer earn the share of tests that pass, and a tenth for naming a file that exists and
    for a change that can be made.
    """

    judges_turns: ClassVar[bool] = True

    max_rounds: int = 2  # changes, at most
    max_files: int = 3  # files shown to the writer, at most
    analyze: str = ANALYZE  # the analyzer's prompt
    write: str = WRITE  # the writer's prompt
    validate: str = VALIDATE  # the validator's prompt

    def __post_init__(self) -> None:
        check(self.analyze, ["issue", "tree"], "analyze")
        check(self.write, ["issue", "analysis", "files", "before"], "write")
        check(self.validate, ["issue", "diff"], "validate")
        for name in ("max_rounds", "max_files"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: at least 1, not {getattr(self, name)}")

    @property
    def roles(self) -> tuple[str, ...]:
        return ("analyzer", "writer", "validator")

    async def run(self, task: Task, team: Team, world: Any) -> Outcome:
        if not isinstance(world, Checkout):
            raise ValueError("swe needs an environment with projects: env swe")
        issue = {"issue": task.prompt}
        tree = "\n".join(sorted(world.texts)[:TREE])
        analysis = await team.analyzer.say(fill(self.analyze, issue | {"tree": tree}))
        named = self._named(analysis.text, world)
        shown = "\n\n".join(f"{path}\n```\n{world.texts[path][:LETTERS]}```" for path in named) or "(no file was named)"
        before, rounds = "", list[Round]()
        while not (rounds and rounds[-1].accepted) and len(rounds) < self.max_rounds:
            asked = issue | {"analysis": analysis.text, "files": shown, "before": before}
            change = await team.writer.say(fill(self.write, asked))
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
            return await judged(analysis, named, rounds, world)

        made = [each for each in rounds if each.judgement is not None]
        said = {
            "total_iterations": float(len(rounds)),
            "analyzer_found": float(bool(named)),
            "writer_applied": len(made) / len(rounds),
            "accepted": float(rounds[-1].accepted),
        }
        return Outcome(made[-1].diff if made else "", said, judge=judge)

    def _named(self, text: str, world: Checkout) -> list[str]:
        """Files of the project whose whole paths stand in a text, in that order."""
        found = {path: re.search(rf"(?<![\w/.-]){re.escape(path)}(?![\w/-]|\.\w)", text) for path in world.texts}
        places = {path: match.start() for path, match in found.items() if match is not None}
        return sorted(places, key=lambda path: places[path])[: self.max_files]


@dataclass(frozen=True)
class Round:
    """A change, and where it could be made, what the validator said of it and the files after it."""

    change: Turn
    judgement: Turn | None = None
    diff: str = ""
    texts: Mapping[str, str] = field(default_factory=dict)

    @property
    def accepted(self) -> bool:
        return self.judgement is not None and verdict(self.judgement.text) is True


async def judged(analysis: Turn, named: Sequence[str], rounds: Sequence[Round], world: Checkout) -> Metrics:
    """Tests run when all is said: nothing that is said depends on them, and nobody has to wait. The last change that
    could be made counts."""
    passed, true, fraction = list[bool](), list[bool](), 0.0
    for each in rounds:
        each.change.reward = 0.0
        if each.judgement is not None:
            tested = await world.test(each.texts)
            fraction = tested.fraction
            passed.append(tested.passed == tested.total)
            true.append(verdict(each.judgement.text) is passed[-1])
            each.change.reward, each.judgement.reward = FORM + (1 - FORM) * fraction, float(true[-1])
    analysis.reward = FORM * bool(named) + (1 - FORM) * fraction
    said = {"writer_success_rate": sum(passed) / len(rounds), "final_success": float(bool(passed) and passed[-1])}
    return said | ({"validator_accuracy": sum(true) / len(true)} if true else {})
