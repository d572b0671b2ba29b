"""What a run does otherwise than its config may be read is told before the first step."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from coterie.check import dry_run, findings
from coterie.config import load
from coterie.episode_rows import read_episodes
from coterie.models.store import load_tokenizer
from coterie.training.build import build
from tests.commands import coterie
from tests.games import game
from tests.models import CONTEXT
from tests.units.test_chat import NO_SYSTEM

GRAPH = Path(__file__).parents[2] / "recipes" / "graph" / "two_agents.yaml"
MUTE = """\
class Mute:
    roles = ("reasoner", "actor")
    async def run(self, task, team, world):
        return task.prompt
"""
LONG = """\
class Long:
    roles = ("reasoner", "actor")
    async def run(self, task, team, world):
        return (await team.actor.say(task.prompt * 500)).text
"""


@pytest.fixture(scope="module")
def model(model_folder: Callable[[str], Path]) -> Path:
    return model_folder("llama")


def with_template(model: Path, folder: Path, template: str | None) -> Path:
    shutil.copytree(model, folder)
    tokenizer = load_tokenizer(folder)
    tokenizer.chat_template = template
    (folder / "chat_template.jinja").unlink()
    tokenizer.save_pretrained(folder)
    return folder


def test_a_model_without_a_chat_template_is_told_with_the_one_that_is_used(tmp_path: Path, model: Path) -> None:
    bare = with_template(model, tmp_path / "bare", None)
    result = coterie("check", game(tmp_path, bare), "--tasks", 1, "--episodes", 2)
    told = [line for line in result.stderr.splitlines() if "has no chat template" in line]
    assert len(told) == 1  # two policies share the model
    assert told[0].startswith(
        f"policies.thinker.model: {bare} has no chat template; a conversation is written as 'User"
    )
    assert "User:" in result.stdout and "<|im_start|>" not in result.stdout


def test_a_template_without_a_system_role_is_told_and_its_text_goes_to_the_user(tmp_path: Path, model: Path) -> None:
    bare = with_template(model, tmp_path / "bare", NO_SYSTEM)
    workflow = {"name": "chain", "systems": {"actor": "Answer with one word."}}
    result = coterie("train", game(tmp_path, bare, workflow=workflow), "steps=1", "--out", tmp_path)
    assert result.exit_code == 0, result.stderr
    told = [line for line in result.stderr.splitlines() if "without a system role" in line]
    assert len(told) == 1 and told[0].endswith("system texts go into the first user message")
    (file,) = (tmp_path / "game" / "episodes").glob("*.jsonl.gz")
    turn = next(turn for turn in read_episodes(file)[0].turns if turn.role == "actor")
    read = load_tokenizer(bare).decode(list(turn.prompt_ids))
    assert str(read).startswith("<|im_start|>user\nAnswer with one word.\n\n")


def test_an_evaluation_that_never_comes_is_told(tmp_path: Path, model: Path) -> None:
    result = coterie("train", game(tmp_path, model), "steps=1", "eval.every=3", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert "eval.every=3: the run ends at steps=1, so it is evaluated" in result.stderr


def test_more_tasks_a_step_than_there_are_is_told(tmp_path: Path, model: Path) -> None:
    result = coterie("train", game(tmp_path, model), "steps=1", "tasks_per_step=7", "--out", tmp_path)
    assert result.exit_code == 0, result.stderr
    told = "tasks_per_step=7: there are only 6 training tasks, so a step has some of them more than once"
    assert told in result.stderr.splitlines()


@pytest.mark.parametrize("key", ["sampling.max_tokens", "roles.actor.max_tokens"])
def test_a_turn_that_fills_the_context_alone_is_refused_before_a_model_loads(
    key: str, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coterie.training.models.ModelPool.load", lambda *_: pytest.fail("a model was loaded"))
    who = "actor" if key.startswith("roles") else "reasoner"
    result = coterie("train", game(tmp_path, model), f"{key}={CONTEXT}", "--out", tmp_path)
    assert result.exit_code == 2
    said = f"{key}: {CONTEXT} tokens for {who} leave no room for a prompt: the context of {model} is {CONTEXT} tokens"
    assert result.stderr.startswith(said) and f"(override {key}={CONTEXT})" in result.stderr


def test_a_workflow_in_which_nobody_speaks_ends_the_run_at_its_first_step(tmp_path: Path, model: Path) -> None:
    (tmp_path / "mute.py").write_text(MUTE)
    config = game(tmp_path, model, workflow="mute.py:Mute")
    trained = coterie("train", config, "--out", tmp_path)
    told = "workflow: no role took a turn in any of 12 episodes of Mute, so there is nothing to learn from"
    assert trained.exit_code == 2 and trained.stderr.splitlines()[-1].startswith(told)
    assert "await team[role].say" in trained.stderr and "Traceback" not in trained.stderr
    checked = coterie("check", config)
    assert (
        checked.exit_code == 1 and "error: no role took a turn in any of 16 episodes; its `run` must" in checked.stdout
    )


def test_prompts_that_all_fill_the_context_end_the_run_at_its_first_step(tmp_path: Path, model: Path) -> None:
    (tmp_path / "long.py").write_text(LONG)
    trained = coterie("train", game(tmp_path, model, workflow="long.py:Long"), "--out", tmp_path)
    told = r"workflow: no turn of 12 episodes had room for a token: prompts fill the context \(actor was asked with \d+"
    assert trained.exit_code == 2 and re.match(told, trained.stderr.splitlines()[-1])


def test_a_check_of_the_graph_recipe_passes_on_the_words_that_it_puts_in(tmp_path: Path, model: Path) -> None:
    rows = [{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(3, 7)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = [f"data.train_files={tmp_path / 'rows.jsonl'}", f"data.val_files={tmp_path / 'rows.jsonl'}"]
    small = [f"actor_rollout_ref.model.path={model}", "engine.context=512", "device=cpu", "data.max_response_length=4"]
    run = build(load(GRAPH, [*files, *small]), tmp_path / "run", console=False)
    dry = dry_run(run, tasks=2, repeats=2)
    assert [probe.episode.reward for probe in dry.references] == [1.0, 1.0]
    broken = [probe.episode.reward for probe in dry.probes if probe.whole]
    assert broken and max(broken) == 0.0
    assert [finding for finding in findings(dry) if finding.level == "error"] == []
