"""Input that cannot be meant is refused in one line, with its key and what would be right, before a model loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coterie.config import dump, load
from coterie.config.conflicts import check_conflicts
from tests.commands import coterie
from tests.games import GAME, game

BRACKETS = "[" * 2000
PARTS = """\
class Quits:
    roles = ("reasoner", "actor")
    def __init__(self):
        raise SystemExit("no licence")

    async def run(self, task, team, world): return "?"

class Fails(Quits):
    def __init__(self):
        raise ValueError("no licence")

class Unknown(Quits):
    def __init__(self, size: "Size" = 3): pass

class Asks(Quits):
    def __init__(self): pass
    roles = property(lambda self: {}["roles"])

class Nobody(Quits):
    roles = ()
    def __init__(self): pass

class One(Quits):
    roles = "solver"
    def __init__(self): pass
"""

REFUSED = {
    "rate over one": ("policies.doer.lr=5", "policies.doer.lr: got 5, expected a number > 0 and ≤ 1"),
    "rate of a critic": ("critics={all: {lr: 2}}", "critics.all.lr: got 2, expected a number > 0 and ≤ 1"),
    "hot": ("sampling.temperature=11", "sampling.temperature: got 11, expected a number ≥ 0 and ≤ 10"),
    "hot role": ("roles.actor.temperature=11", "roles.actor.temperature: got 11, expected a number ≥ 0 and ≤ 10"),
    "hot evaluation": ("eval.temperature=11", "eval.temperature: got 11, expected a number ≥ 0 and ≤ 10"),
    "a billion tasks": (
        "tasks_per_step=1000000000",
        "tasks_per_step: got 1000000000, expected a whole number ≥ 1 and",
    ),
    "a billion steps": ("steps=1000000000", "steps: got 1000000000, expected a whole number ≥ 1 and ≤ 1000000"),
    "a billion episodes": (
        "episodes_per_task=1000000",
        "tasks_per_step: 3 tasks with 1,000,000 episodes each are 3,000,000 episodes at once; at most 1,000,000",
    ),
    "an encoder as it is": ("encoder=hidden", "encoder: has no effect: Grpo encodes no texts; only vdn and qmix"),
    "a dot at the end": ("steps.=3", "override steps.=3: an override looks like key=value", "did you mean steps=3?"),
    "a dot at the beginning": (".steps=3", "override .steps=3: an override looks", "did you mean steps=3?"),
    "two dots": ("eval..tasks=3", "override eval..tasks=3: an override looks", "did you mean eval.tasks=3?"),
    "half a quote": ('"steps=3', 'override "steps=3: an override looks', "did you mean steps=3?"),
    "2,000 brackets": (f"steps={BRACKETS}", "steps: '[[[[", "…' is not YAML: nested more than 50 deep"),
    "2,000 that close": (f"steps={BRACKETS}{']' * 2000}", "is not YAML: nested more than 50 deep"),
    "2,000 mappings": (f"steps={'{a: ' * 2000}{'}' * 2000}", "is not YAML: nested more than 50 deep"),
    "a long name": (
        f"name={'x' * 300}",
        "name: 'xxxxxxxxxxxxxxxxxxxx…' names a folder and has 300 bytes",
        "at most 200",
    ),
    "a long name of a policy": (
        f"policies={{{'x' * 300}: {{}}}}",
        "policies: 'xxxxxxxxxxxxxxxxxxxx…' names a folder and has 300 bytes; at most 200",
    ),
    "NUL in a name": ('name="a\\0b"', r"name: 'a\x00b' has an unprintable character"),
    "an object": ("steps=!!python/object:os.system {}", "steps: unknown tag tag:yaml.org,2002:python/object:os.system"),
    "a call": (
        "steps=!!python/object/apply:os.system [x]",
        "steps: unknown tag tag:yaml.org,2002:python/object/apply:os",
    ),
    "a tagged list": (
        "roles.actor.stop=!!python/tuple [a]",
        "roles.actor.stop: unknown tag tag:yaml.org,2002:python/tup",
    ),
    "a tag that lies": ("steps=!!int many", "steps: 'many' is tagged tag:yaml.org,2002:int, which it is not; remove"),
    "a long number": (f"steps={'9' * 5000}", "steps: a number of 5,000 digits; at most 4,000 are possible"),
    "a part that quits": ("workflow=parts.py:Quits", "parts.py, line 4: SystemExit: no licence (override workflow="),
    "a part that fails": ("workflow=parts.py:Fails", "parts.py, line 10: ValueError: no licence (override workflow="),
    "a type that is none": ("workflow=parts.py:Unknown", "parts.py: NameError: name 'Size' is not defined"),
    "roles that fail": ("workflow=parts.py:Asks", "parts.py, line 17: KeyError: 'roles' (override workflow="),
    "nobody": (
        "workflow=parts.py:Nobody",
        "workflow: Nobody.roles is empty, so nobody would speak; name at least one role",
    ),
    "roles that are a text": (
        "workflow=parts.py:One",
        "workflow.name: One.roles is 'solver', expected a list of role names",
    ),
}


def refused(*words: Any) -> str:
    """The one line of a user's mistake: on stderr, with exit code 2 and without a traceback."""
    result = coterie(*words)
    assert result.exit_code == 2 and isinstance(result.exception, SystemExit), (result.output, result.exception)
    lines = result.stderr.splitlines()
    assert len(lines) == 1 and len(lines[0]) < 600, result.stderr
    return str(lines[0])


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A config that is right but for its model, which is not there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "parts.py").write_text(PARTS)
    return game(tmp_path, tmp_path / "no-model")


@pytest.mark.parametrize("mistake", REFUSED)
def test_what_cannot_be_meant_is_refused_with_its_key(config: Path, mistake: str) -> None:
    override, *expected = REFUSED[mistake]
    said = refused("train", config, override, "--out", config.parent)
    for words in expected:
        assert words in said
    assert not list(config.parent.glob("*/config.yaml"))


PROMPTS = {
    "half a field": ("{question", "the { in '{question' is unbalanced; fields are {question}, and \\{ is kept as"),
    "the other half": ("{question} = }", "the } in '{question} = }' is unbalanced; fields are {question}"),
    "an attribute": (
        "{task.__class__}",
        "unknown field {task.__class__}; it may use {question}, and {{task.__class__}}",
    ),
    "an attribute of a field": ("{question.__class__}", "unknown field {question.__class__}; it may use {question}"),
    "an item": ("{question[0]}", "unknown field {question[0]}; it may use {question}"),
    "a conversion": ("{question!r}", "unknown field {question!r}; it may use {question}"),
    "a format": ("{question:>9}", "unknown field {question:>9}; it may use {question}"),
    "spaces": ("{ question }", "unknown field { question }; it may use {question}"),
}


@pytest.mark.parametrize("mistake", PROMPTS)
def test_braces_that_nothing_fills_are_refused(config: Path, mistake: str) -> None:
    prompt, expected = PROMPTS[mistake]
    said = refused("check", config, f"workflow={{name: chain, prompts: {{reasoner: '{prompt}'}}}}")
    assert said.startswith(f"workflow.prompts.reasoner: {expected}")


def test_a_field_in_a_system_text_is_refused(config: Path) -> None:
    said = refused("check", config, "workflow={name: chain, systems: {actor: 'You answer {question}'}}")
    assert said.startswith("workflow.systems.actor: {question} is filled in prompts only; put it into prompts.actor")


@pytest.mark.parametrize(
    "prompt", ["\\frac{1}{2} {question}", "\\boxed{}", "{{answer}}", "\\left\\{ x", '{"a": {"b": 1}}', "{if x > 0}"]
)
def test_braces_of_other_languages_are_text(config: Path, prompt: str) -> None:
    escaped = prompt.replace("'", "''")
    said = refused("check", config, f"workflow={{name: chain, prompts: {{reasoner: '{escaped}'}}}}")
    assert "no-model" in said  # nothing before it was wrong


def test_a_file_of_brackets_or_of_anchors_in_anchors_is_refused_with_its_line(config: Path) -> None:
    written = config.read_text()
    config.write_text(written + f"log: {BRACKETS}\n")
    last = len(written.splitlines()) + 1
    assert refused("check", config) == f"{config}: not YAML on line {last}: nested more than 50 deep"
    doubled = "".join(f"  a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9))
    config.write_text(f"{written}log:\n  a0: &a0 [x]\n{doubled}")
    assert refused("check", config).startswith("log: more than 100,000 values, through anchors that are used inside")


def with_tasks(config: Path, lines: str) -> None:
    start = GAME.index("        return [Task(")
    (config.parent / "vowels.py").write_text(GAME[:start] + lines + GAME[GAME.index("\n", start) + 1 :])


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("        return {}['rows']\n", "vowels.py, line 11: KeyError: 'rows' (game.yaml, line"),
        ("        raise ValueError('no rows')\n", "vowels.py, line 11: ValueError: no rows (game.yaml, line"),
        ("        exit('no rows')\n", "vowels.py, line 11: SystemExit: no rows (game.yaml, line"),
        ("        return [Task('a', '?', None), None]\n", "Vowels.tasks returned a list of NoneType, expected Task"),
        (
            "        return [Task(name, '?', None) for name in 'abca']\n",
            "tasks 0 and 3 of train, counted from 0, have the same id 'a'; ids must be unique",
        ),
    ],
)
def test_tasks_that_fail_or_share_a_name_are_told_with_the_line(config: Path, lines: str, expected: str) -> None:
    with_tasks(config, lines)
    said = refused("train", "game.yaml", "--out", config.parent)
    assert said.startswith("env: ") and expected in said


def test_an_encoder_that_nothing_reads_is_refused_in_a_file_too(config: Path) -> None:
    config.write_text(config.read_text() + "encoder: hidden\n")
    last = len(config.read_text().splitlines())
    said = refused("train", config, "--out", config.parent)
    assert said.startswith("encoder: has no effect: Grpo encodes no texts") and said.endswith(f"line {last})")


def test_the_usual_encoder_is_not_written_down_where_it_would_be_refused(config: Path) -> None:
    for algorithm in ("grpo", "vdn"):
        (config.parent / "again.yaml").write_text(dump(load(config, [f"algorithm={algorithm}"])))
        made = load(config.parent / "again.yaml", ["algorithm=grpo"])
        check_conflicts(made)
