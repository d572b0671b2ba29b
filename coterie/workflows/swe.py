"""SWE: an analyzer finds the place, a writer changes the files, a validator judges the change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from coterie.envs.checkout import Checkout, Tested
from coterie.types import Metrics, Outcome, Task, Team, Turn
from coterie.workflows.edits import EditError, diff_of
from coterie.workflows.reading import verdict
from coterie.workflows.template import check, fill

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

    The writer sees the files that the analyzer named. The validator judges before anyone sees a test, and earns 1 for
    being right. Analyzer and writer earn the share of tests that pass, and a tenth for naming a file that exists and
    for a change that can be made.
    """

    max_rounds: int = 2
    max_files: int = 3  # that the writer sees
    analyze: str = ANALYZE
    write: str = WRITE
    validate: str = VALIDATE

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
        before, rounds = "", Rounds()
        while not rounds.accepted and rounds.count < self.max_rounds:
            asked = issue | {"analysis": analysis.text, "files": shown, "before": before}
            change = await team.writer.say(fill(self.write, asked))
            try:
                texts = world.edited(change.text)
            except EditError as error:
                rounds.failed(change)
                before = fill(BEFORE, {"change": change.text, "remarks": f"It cannot be made: {error}"})
                continue
            diff = diff_of(world.texts, texts)
            judgement = await team.validator.say(fill(self.validate, issue | {"diff": diff or "(nothing)"}))
            rounds.tested(change, judgement, diff, await world.test(texts))
            before = fill(BEFORE, {"change": diff, "remarks": judgement.text})
        analysis.reward = FORM * bool(named) + (1 - FORM) * rounds.fraction
        return Outcome(rounds.diff, {"analyzer_found": float(bool(named)), **rounds.metrics()})

    def _named(self, text: str, world: Checkout) -> list[str]:
        """Files of the project whose paths stand in a text, in that order."""
        places = {path: text.find(path) for path in world.texts}
        found = sorted((path for path, place in places.items() if place >= 0), key=lambda path: places[path])
        return found[: self.max_files]


class Rounds:
    """What came of the changes so far. The last one counts."""

    def __init__(self) -> None:
        self.writes: list[Turn] = []
        self.passed: list[bool] = []  # of each change that could be made, whether all tests passed
        self.true: list[bool] = []  # and whether the validator had known
        self.diff, self.fraction, self.accepted = "", 0.0, False

    @property
    def count(self) -> int:
        return len(self.writes)

    def failed(self, change: Turn) -> None:
        change.reward = 0.0
        self.writes.append(change)

    def tested(self, change: Turn, judgement: Turn, diff: str, tested: Tested) -> None:
        self.writes.append(change)
        self.diff, self.fraction = diff, tested.fraction
        self.passed.append(tested.passed == tested.total)
        change.reward = FORM + (1 - FORM) * tested.fraction
        said = verdict(judgement.text)
        self.accepted = said is True
        self.true.append(said is self.passed[-1])
        judgement.reward = float(self.true[-1])

    def metrics(self) -> Metrics:
        said = {
            "total_iterations": float(self.count),
            "writer_applied": len(self.passed) / self.count,
            "writer_success_rate": sum(self.passed) / self.count,
            "accepted": float(self.accepted),
            "final_success": float(bool(self.passed) and self.passed[-1]),
        }
        return said | ({"validator_accuracy": sum(self.true) / len(self.true)} if self.true else {})
