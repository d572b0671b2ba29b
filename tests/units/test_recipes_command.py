"""`coterie recipes`, `init` and `demo`, and the versions that an install brings."""

from __future__ import annotations

import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from coterie.cli import commands
from coterie.cli.recipes import recipes
from coterie.config import load
from coterie.config.conflicts import check_conflicts
from tests.commands import coterie, stdout_of

ROOT = Path(__file__).parents[2]


def test_every_recipe_is_listed_with_a_sentence() -> None:
    shown = stdout_of("recipes").splitlines()
    assert shown[::2] == list(recipes()) and "demo" in shown and "results/split_work/team" in shown
    assert all(len(line.split()) > 4 for line in shown[1::2])


def test_a_recipe_is_copied_with_its_code_and_never_over_a_file(tmp_path: Path) -> None:
    assert stdout_of("init", "demo", "--out", tmp_path).split() == [f"{tmp_path}/demo.yaml", f"{tmp_path}/relay.py"]
    check_conflicts(load(tmp_path / "demo.yaml"))
    (tmp_path / "demo.yaml").unlink()
    again = coterie("init", "demo", "--out", tmp_path)
    assert again.exit_code == 2 and "relay.py exists already" in again.output and not (tmp_path / "demo.yaml").exists()
    assert "did you mean demo" in coterie("init", "dmeo").output


def test_the_demo_trains_the_demos_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[object] = []
    monkeypatch.setattr(commands, "train", lambda *words: given.extend(words) or 0)
    assert coterie("demo", "seed=1", "--out", "x").exit_code == 0
    assert given == [recipes()["demo"], ["seed=1"], Path("x"), 3]


def test_what_is_installed_is_within_the_tested_versions() -> None:
    """So the bounds of a plain install have been tested at least here."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for text in [*project["dependencies"], *extras["serve"], *extras["view"], *extras["ray"]]:
        needed = Requirement(text)
        assert needed.specifier.contains(version(needed.name), prereleases=True), f"{text}: {version(needed.name)}"
        assert any(bound.operator == "<" for bound in needed.specifier), f"{text} has no upper bound"


def test_the_extras_are_those_that_the_docs_name() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {"view", "serve", "hub", "wandb", "vllm", "ray"} <= extras.keys()
