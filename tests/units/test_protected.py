"""Programs that a model writes never run unprotected unless the config says so."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from coterie.config import load
from coterie.config.requirements import executing_parts
from coterie.envs.base import attach_reward
from coterie.rewards.grader_pool import GraderFailed, Worker
from coterie.sandbox import Sandbox, SandboxMissing, SandboxReduced, bubblewrap, shared
from coterie.sandbox import sandbox as pool
from tests.commands import coterie
from tests.forked import run_python
from tests.games import game
from tests.hangs import HANG

ROOT = Path(__file__).parents[2]
ROW = {
    "question": "add(2, 3)?",
    "answer": "5",
    "task_id": 1,
    "text": "add",
    "code": "add = sum",
    "test_list": ["assert add"],
}
# Says every step what it earned by a program of its own, without announcing that it executes any.
OWN_WORKFLOW = """\
from coterie.decorators import workflow
from coterie.tools.python import python_tool

@workflow(roles=("reasoner", "actor"){more})
async def computed(task, team, world):
    await team.reasoner.say(task.prompt)
    turn = await team.actor.say(task.prompt)
    return turn.text + await python_tool().function("print('aeiou')")
"""


@pytest.fixture
def hide(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let a tool not be found, as on a machine where it was never installed."""
    which = shutil.which

    def hidden(*tools: str) -> None:
        monkeypatch.setattr(shutil, "which", lambda name, *rest: None if name in tools else which(name, *rest))

    monkeypatch.setattr(bubblewrap, "problem", cache(bubblewrap.problem.__wrapped__))
    monkeypatch.setattr(pool, "_shared", cache(pool._shared.__wrapped__))
    monkeypatch.setattr(pool, "_unsafe", False)
    monkeypatch.setattr("coterie.config.requirements.problem", lambda: bubblewrap.problem())
    return hidden


@pytest.fixture
def no_bubblewrap(hide: Callable[..., None]) -> None:
    hide("bwrap")


def recipe(folder: Path, **parts: Any) -> Path:
    """A config whose model is not there: to be refused before it is looked for."""
    (folder / "rows.jsonl").write_text(json.dumps(ROW) + "\n")
    (folder / "issues.jsonl").write_text(json.dumps({"issue": "x", "repository": ".", "tests": "make"}) + "\n")
    (folder / "corpus.jsonl").write_text(json.dumps({"title": "a", "text": "b"}) + "\n")
    tree: dict[str, Any] = {
        "policies": {"all": {"model": str(folder / "no model")}},
        "workflow": "single",
        "env": {"name": "rows", "train": "rows.jsonl", "test": "rows.jsonl"},
        "reward": "exact",
        "algorithm": "grpo",
        **parts,
    }
    tree["roles"] = dict.fromkeys(ROLES.get(str(tree["workflow"]), ["solver"]), "all")
    path = folder / "team.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


ROLES = {
    "math_tool": ["analyzer", "executor", "verifier"],
    "deepcoder": ["generator", "test_runner", "refiner"],
    "swe": ["analyzer", "writer", "validator"],
    str({"name": "deep_research", "corpus": "corpus.jsonl"}): ["planner", "gatherer", "synthesizer"],
}
MBPP = {"name": "mbpp", "train": "rows.jsonl", "test": "rows.jsonl"}
GYM = {"name": "reasoning_gym", "dataset": "countdown", "size": 2, "test_size": 1}
EXECUTE: dict[str, tuple[dict[str, Any], str]] = {
    "reward code": ({"env": MBPP, "reward": "code"}, "env mbpp with reward code"),
    "a part of a reward": (
        {"env": MBPP, "reward": {"name": "compose", "parts": [{"name": "code", "weight": 1.0}]}},
        "env mbpp with reward compose",
    ),
    "a scorer that evaluates": ({"env": GYM, "reward": "native"}, "env reasoning_gym with reward native"),
    "swe": (
        {
            "workflow": "swe",
            "env": {"name": "swe", "train": "issues.jsonl", "test": "issues.jsonl"},
            "reward": "native",
        },
        "env swe with reward native",
    ),
    "math_tool": ({"workflow": "math_tool"}, "workflow math_tool"),
    "deepcoder": ({"workflow": "deepcoder", "env": MBPP, "reward": "code"}, "workflow deepcoder and env mbpp with"),
    "the python tool": (
        {"workflow": {"name": "deep_research", "corpus": "corpus.jsonl"}, "reward": "qa"},
        "workflow deep_research",
    ),
}


@pytest.mark.usefixtures("no_bubblewrap")
@pytest.mark.parametrize("command", ["train", "eval", "check"])
@pytest.mark.parametrize("which", EXECUTE)
def test_a_team_that_executes_programs_is_refused_before_its_model_is_looked_for(
    which: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    parts, named = EXECUTE[which]
    result = coterie(command, recipe(tmp_path, **parts))
    assert result.exit_code == 2, result.output
    assert result.stderr.count("\n") == 1 and "no model" not in result.stderr
    assert result.stderr.startswith(f"sandbox: {named}") and "bwrap is not installed" in result.stderr
    assert "install bubblewrap` installs it. `sandbox: unsafe` runs them anyway" in result.stderr


@pytest.mark.usefixtures("no_bubblewrap")
@pytest.mark.parametrize("parts", [{}, {"env": MBPP}, {"env": {**GYM, "dataset": "chain_sum"}, "reward": "native"}])
def test_a_team_without_programs_is_never_asked(
    parts: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bubblewrap, "try_start", lambda *words: pytest.fail("the sandbox was tried"))
    result = coterie("check", recipe(tmp_path, **parts))
    assert "no model" in result.stderr and "sandbox" not in result.stderr


@pytest.mark.parametrize("name", ["demo", "search", "sums"])
def test_recipes_without_programs_ask_for_no_sandbox(name: str) -> None:
    config = load(ROOT / "recipes" / f"{name}.yaml")
    env = attach_reward(config.env.instance, config.reward.name, config.reward.options, 1.0)
    assert executing_parts(config, env) == []


def fake_bwrap(folder: Path, words: str) -> None:
    tool = folder / "bwrap"
    tool.write_text(f"#!/bin/sh\n{words}\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)


def test_the_command_itself_refuses_where_bubblewrap_is_forbidden(tmp_path: Path) -> None:
    """The whole way: a process of its own, and a bwrap that is installed and not allowed to do its work."""
    fake_bwrap(tmp_path, "echo 'bwrap: No permissions to\ncreate new namespace' >&2; exit 1")
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    words = ["-m", "coterie", "train", str(recipe(tmp_path, workflow="math_tool"))]
    ran = run_python(words, tmp_path, environment, seconds=HANG)
    assert ran.returncode == 2 and ran.stderr.count("\n") == 1, ran.stderr
    assert "bubblewrap does not work here (bwrap: No permissions to create new namespace)" in ran.stderr
    assert "kernel.unprivileged_userns_clone=1" in ran.stderr
    assert not any((tmp_path / "runs").glob("*"))


@pytest.mark.parametrize(
    ("told", "line"),
    [
        ({"ID": "ubuntu", "ID_LIKE": "debian"}, "apt-get install bubblewrap` installs it"),
        ({"ID": "rocky", "ID_LIKE": "rhel centos fedora"}, "dnf install bubblewrap` installs it"),
        ({"ID": "arch"}, "pacman -S bubblewrap` installs it"),
        ({"ID": "alpine"}, "apk add bubblewrap` installs it"),
        ({"ID": "opensuse-leap", "ID_LIKE": "suse opensuse"}, "zypper install bubblewrap` installs it"),
        ({"ID": "haiku"}, "install bubblewrap with your package manager"),
    ],
)
def test_the_install_line_is_that_of_the_system_at_hand(
    told: dict[str, str], line: str, hide: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    hide("bwrap")
    monkeypatch.setattr(bubblewrap.platform, "freedesktop_os_release", lambda: told)
    assert str(bubblewrap.problem()).endswith(line)


@pytest.mark.usefixtures("hide")
def test_where_there_is_no_bubblewrap_at_all_no_install_line_is_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap.sys, "platform", "darwin")
    monkeypatch.setattr(bubblewrap.platform, "system", lambda: "Darwin")
    assert bubblewrap.problem() == "bubblewrap needs Linux, and this is Darwin; use a Linux machine or container"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root needs it")
def test_a_tool_that_bubblewrap_is_started_with_is_named_with_its_package(hide: Callable[..., None]) -> None:
    hide("setpriv")
    assert "setpriv is not installed" in str(bubblewrap.problem()) and "util-linux`" in str(bubblewrap.problem())


@pytest.mark.usefixtures("no_bubblewrap")
def test_the_sandbox_itself_runs_nothing_without_bubblewrap() -> None:
    for made in (Sandbox, shared):
        with pytest.raises(SandboxMissing, match="bwrap is not installed"):
            made()


OWN_REWARD = """\
import asyncio
from coterie.sandbox import shared

def ran(answer, truth):
    return float(asyncio.run(shared().run("print(1)")).stdout == "1\\n")
"""


@pytest.mark.usefixtures("hide")
def test_a_reward_of_ones_own_may_run_programs_only_as_the_config_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs in a process of its own, which may have served another config before."""
    fake_bwrap(tmp_path, "exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (tmp_path / "own.py").write_text(OWN_REWARD)
    worker = Worker()

    def attach_reward() -> Any:
        return worker.call(f"{tmp_path / 'own.py'}:ran", ("", ""), {}, 60.0)

    with pytest.raises(GraderFailed, match="programs cannot be run safely"):
        attach_reward()
    pool.allow_unsafe(True)
    assert attach_reward() == 1.0
    pool.allow_unsafe(False)
    with pytest.raises(GraderFailed, match="programs cannot be run safely"):
        attach_reward()
    worker.kill()


def own_workflow(folder: Path, model: Path, more: str = "", **changes: Any) -> Path:
    (folder / "own.py").write_text(OWN_WORKFLOW.format(more=more))
    return game(folder, model, workflow="own.py:computed", **changes)


@pytest.mark.usefixtures("no_bubblewrap")
def test_a_workflow_of_ones_own_says_that_it_executes_programs(tmp_path: Path) -> None:
    result = coterie("train", own_workflow(tmp_path, tmp_path / "no model", ", needs_sandbox=True"))
    assert result.exit_code == 2 and "own.py:computed would execute programs" in result.stderr


@pytest.mark.usefixtures("no_bubblewrap")
def test_a_workflow_that_does_not_say_so_is_stopped_by_the_sandbox(
    tmp_path: Path, model_folder: Callable[[str], Path]
) -> None:
    result = coterie("train", own_workflow(tmp_path, model_folder("llama")), "--out", tmp_path / "runs")
    assert result.exit_code == 2 and "programs cannot be run safely: bwrap is not installed" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "runs" / "game" / "metrics.jsonl").exists()


@pytest.mark.usefixtures("no_bubblewrap")
def test_unsafe_has_to_be_said_and_every_step_says_so_again(
    tmp_path: Path, model_folder: Callable[[str], Path]
) -> None:
    config = own_workflow(tmp_path, model_folder("llama"), ", needs_sandbox=True", sandbox="unsafe")
    with pytest.warns(SandboxReduced, match=r"bwrap is not installed.*they can read and change your files"):
        result = coterie("train", config, "--out", tmp_path / "runs")
    assert result.exit_code == 0, result.output
    lines = [line for line in result.stdout.splitlines() if line.startswith("step ")]
    assert len(lines) == 3 and all("sandbox: unsafe, programs run unprotected" in line for line in lines)
    rows = [json.loads(line) for line in (tmp_path / "runs/game/metrics.jsonl").read_text().splitlines()]
    assert [row["sandbox/unsafe"] for row in rows] == [1.0, 1.0, 1.0]


@pytest.mark.usefixtures("no_bubblewrap")
def test_a_run_is_judged_again_by_programs_only_where_that_is_safe(
    tmp_path: Path, model_folder: Callable[[str], Path]
) -> None:
    model = model_folder("llama")
    mbpp = {"env": {**MBPP, "train": str(tmp_path / "rows.jsonl"), "test": str(tmp_path / "rows.jsonl")}}
    (tmp_path / "rows.jsonl").write_text(json.dumps(ROW) + "\n")
    config = game(tmp_path, model, **mbpp, reward="exact", steps=1, tasks_per_step=1)
    assert coterie("train", config, "--out", tmp_path / "runs").exit_code == 0
    run = tmp_path / "runs" / "game"
    assert coterie("replay", run, "credit=own").exit_code == 0
    refused = coterie("replay", run, "reward=code")
    assert refused.exit_code == 2 and refused.stderr.startswith("sandbox: env mbpp with reward code would execute")
    assert coterie("replay", run, "reward=code", "sandbox=unsafe").exit_code == 0


def test_where_bubblewrap_works_unsafe_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    if bubblewrap.problem() is not None:
        pytest.skip("bubblewrap does not work here")
    monkeypatch.setattr(pool, "_unsafe", True)
    assert not pool.unprotected() and not shared().reduced
