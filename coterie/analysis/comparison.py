"""The file of `coterie compare`: its arms, and a check of all their configs before anything is trained."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from coterie.config import Config, ConfigError, yamltree
from coterie.config.conflicts import check_conflicts
from coterie.config.load import load as load_config
from coterie.config.load import read_text
from coterie.config.problems import Problems, Sources
from coterie.config.reader import Reader
from coterie.errors import did_you_mean

# Of `coterie verifier train`; the comparison itself sets --out, --seed and --adapter.
VERIFIER_MEMORY = "--microbatch-tokens"
Score = Literal["accuracy", "reward"]
VERIFIER_OPTIONS = (
    *("--model", "--epochs", "--lr", "--rank", "--questions-per-step", "--held-out", "--evaluations", "--context"),
    VERIFIER_MEMORY,
)


@dataclass(frozen=True)
class Arm:
    """One arm: `recipe` trains a team; `of` evaluates another arm's team with other settings, or with a verifier that
    learns from that team's training rollouts."""

    recipe: Path | None = None
    of: str | None = None
    train: bool = True  # false evaluates the recipe's untrained team
    set: tuple[str, ...] = ()  # changes to the recipe, as on the command line: `roles.verifier.policy=solver`
    evaluate: tuple[str, ...] = ()  # changes for its evaluation alone
    # options of `coterie verifier train`, as `--model demo --lr 1e-3`; the workflow of its evaluation uses the verifier
    verifier: str | None = None
    shared: bool = False  # true: that verifier is a score head on the policy's own adapter

    def __post_init__(self) -> None:
        if (self.recipe is None) == (self.of is None):
            raise ValueError("an arm has either a recipe, or `of`: the arm whose team it evaluates")
        if self.of is not None and (self.set or not self.train):
            raise ValueError(f"set: an arm `of: {self.of}` is not trained; put its changes into evaluate")
        if self.verifier is not None and self.of is None:
            raise ValueError("verifier: it learns from the rollouts of another arm; name that arm with `of`")
        if self.shared and self.verifier is None:
            raise ValueError("shared: has no effect without verifier, whose score head is on the policy's adapter")
        for option in self.verifier_options:
            name = option.partition("=")[0]
            if name.startswith("-") and name not in VERIFIER_OPTIONS:
                hint = did_you_mean(name, VERIFIER_OPTIONS)
                raise ValueError(f"verifier: no option {name}; there are {', '.join(VERIFIER_OPTIONS)}{hint}")

    @property
    def verifier_options(self) -> list[str]:
        try:
            return shlex.split(self.verifier or "")
        except ValueError as error:
            raise ValueError(f"verifier: {error}: {self.verifier}") from error

    @property
    def verifier_values(self) -> dict[str, str]:
        """The values of these options by name."""
        words = [
            part for word in self.verifier_options for part in (word.split("=", 1) if word[:2] == "--" else [word])
        ]
        return dict(zip(words[::2], words[1::2], strict=False))


@dataclass(frozen=True)
class Comparison:
    """The arms, and the arm that the others are compared with."""

    arms: dict[str, Arm]
    against: str  # the arm that the others are compared with
    evaluate: tuple[str, ...] = ()  # changes for every arm's evaluation
    score: Score = "accuracy"  # what is compared: the share of right answers, or the mean reward, for graded rewards

    def __post_init__(self) -> None:
        if self.against not in self.arms:
            raise ValueError(f"against: no arm is called {self.against}{did_you_mean(self.against, self.arms)}")
        trained = [name for name, arm in self.arms.items() if arm.recipe is not None]
        for name, arm in self.arms.items():
            if arm.of is None:
                continue
            if arm.verifier is not None and arm.of in trained and not self.arms[arm.of].train:
                raise ValueError(f"arms.{name}.verifier: {arm.of} is not trained, so it has no rollouts to learn from")
            if arm.of not in trained:
                listing = ", ".join(trained) or "none"
                raise ValueError(f"arms.{name}.of: no arm with a recipe is called {arm.of}; there is {listing}")

    def recipe_of(self, name: str) -> tuple[Path, tuple[str, ...]]:
        """The recipe of the team that an arm evaluates, and the changes to it."""
        arm = self.arms[name]
        if arm.of is not None:
            return self.recipe_of(arm.of)
        assert arm.recipe is not None
        return arm.recipe, arm.set

    def training_config(self, name: str, changes: Sequence[str]) -> Config:
        """The config of the team that an arm evaluates; `changes` are those to every arm."""
        recipe, own = self.recipe_of(name)
        return load_config(recipe, [*own, *changes, f"name={name}"])

    def evaluation_config(self, name: str, changes: Sequence[str]) -> Config:
        """The config of an arm's evaluation, with a placeholder for its verifier, which is not trained yet."""
        recipe, own = self.recipe_of(name)
        arm = self.arms[name]
        verifier = [] if arm.verifier is None else ["workflow.verifier={run: verifier}"]
        return load_config(recipe, [*own, *changes, *self.evaluate, *arm.evaluate, *verifier, f"name={name}"])

    def check_configs(self, changes: Sequence[str]) -> None:
        """Check the configs of all arms, before the first of them is trained for hours."""
        for name, arm in self.arms.items():
            try:
                if arm.recipe is not None and arm.train:
                    check_conflicts(self.training_config(name, changes))
                check_conflicts(self.evaluation_config(name, changes), training=False)
            except ConfigError as error:
                raise ConfigError(f"arms.{name}: {error}") from error


def load(path: Path) -> Comparison:
    """Read a comparison; paths of recipes are relative to it."""
    if not path.is_file():
        raise ConfigError(f"{path}: there is no such file")
    problems = Problems(Sources(str(path)))
    tree = yamltree.read(read_text(path), problems)
    if isinstance(tree, dict) and "policies" in tree and "arms" not in tree:
        raise ConfigError(f"{path}: a recipe, which `coterie train` trains; a comparison has arms with recipes")
    comparison: Comparison = Reader(problems, path.parent).value(Comparison, tree, ())
    problems.raise_any()
    for name, arm in comparison.arms.items():
        if arm.recipe is not None and not arm.recipe.is_file():
            problems.add(("arms", name, "recipe"), f"there is no file {arm.recipe}")
    problems.raise_any()
    return comparison
