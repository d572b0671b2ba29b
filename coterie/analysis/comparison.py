"""The YAML file of a comparison: several arms, trained and evaluated on the same held-out tasks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from coterie.config import ConfigError, yamltree
from coterie.config.load import read_text
from coterie.config.problems import Problems, Sources, did_you_mean
from coterie.config.reader import Reader


@dataclass(frozen=True)
class Arm:
    """One arm: `recipe` trains a team; `of` evaluates another arm's team with other settings."""

    recipe: Path | None = None
    of: str | None = None
    train: bool = True  # false evaluates the recipe's untrained team
    set: tuple[str, ...] = ()  # changes to the recipe, as on the command line: `roles.verifier.policy=solver`
    evaluate: tuple[str, ...] = ()  # changes for its evaluation alone

    def __post_init__(self) -> None:
        if (self.recipe is None) == (self.of is None):
            raise ValueError("an arm has either a recipe, or `of`: the arm whose team it evaluates")
        if self.of is not None and (self.set or not self.train):
            raise ValueError(f"set: an arm `of: {self.of}` is not trained; put its changes into evaluate")


@dataclass(frozen=True)
class Comparison:
    """The arms, and the arm that the others are compared with."""

    arms: dict[str, Arm]
    against: str  # the arm that the others are compared with
    evaluate: tuple[str, ...] = ()  # changes for every arm's evaluation

    def __post_init__(self) -> None:
        if self.against not in self.arms:
            raise ValueError(f"against: no arm is called {self.against}{did_you_mean(self.against, self.arms)}")
        trained = [name for name, arm in self.arms.items() if arm.recipe is not None]
        for name, arm in self.arms.items():
            if arm.of is not None and arm.of not in trained:
                listing = ", ".join(trained) or "none"
                raise ValueError(f"arms.{name}.of: no arm with a recipe is called {arm.of}; there is {listing}")


def load(path: Path) -> Comparison:
    """Read a comparison; paths of recipes are relative to it."""
    if not path.is_file():
        raise ConfigError(f"{path}: there is no such file")
    problems = Problems(Sources(str(path)))
    tree = yamltree.read(read_text(path), problems)
    comparison: Comparison = Reader(problems, path.parent).value(Comparison, tree, ())
    problems.raise_any()
    for name, arm in comparison.arms.items():
        if arm.recipe is not None and not arm.recipe.is_file():
            problems.add(("arms", name, "recipe"), f"there is no file {arm.recipe}")
    problems.raise_any()
    return comparison


@dataclass(frozen=True)
class Result:
    """The result of an arm."""

    scores: Mapping[str, float]  # by task: the share of its episodes that were correct
    metrics: Mapping[str, float]
    trained_tokens: int  # sampled in training


def read_result(eval_file: Path, run: Path | None) -> Result:
    """An arm's evaluation, as written by `coterie eval --json`, and the tokens sampled in training."""
    evaluation = json.loads(eval_file.read_text())
    (name,) = evaluation["reports"]
    return Result(evaluation["accuracy"][name], evaluation["reports"][name], sampled_in(run) if run else 0)


def sampled_in(run: Path) -> int:
    """The number of tokens that a run sampled in training."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return int(sum(row["sampled_tokens"] for row in rows if "sampled_tokens" in row))
