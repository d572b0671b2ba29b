"""Laws of sampled answers: labelled by the grader, the same at every run, whole after every kill."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from coterie.config import ConfigError
from coterie.models.store import load_tokenizer
from coterie.rewards.exact_match import number
from coterie.verifier.answers import Answer, read_answers
from coterie.verifier.generate import OtherPlan
from tests.commands import coterie, stdout_of
from tests.forked import run_python
from tests.hangs import HANG
from tests.killed_generate import MOMENTS, sample

PATTERN = "[a-l]"  # of an answer that the grader calls right: some of a random model's are
QUESTIONS = [f"What is {n} + {n}?" for n in range(5)]


@pytest.fixture(scope="module")
def config(model_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five questions, two of them in a part, for a tiny model."""
    return written(model_folder("llama"), tmp_path_factory.mktemp("generate"))


def written(model: Path, folder: Path, **changes: Any) -> Path:
    rows = [{"question": question, "answer": "?"} for question in QUESTIONS]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tree: dict[str, Any] = {
        "tasks_per_step": 2,
        "policies": {name: {"model": str(model), "lora": {"rank": 2}} for name in ("a", "b")},
        "roles": {"solver": "a"},
        "workflow": "single",
        "env": {"name": "rows", "train": "rows.jsonl", "test": "rows.jsonl"},
        "reward": {"name": "format", "pattern": PATTERN},
        "algorithm": "grpo",
        "sampling": {"max_tokens": 4},
        "device": "cpu",
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(tree | changes))
    return folder / "config.yaml"


def generated(config: Path, out: Path, *words: Any) -> list[Answer]:
    stdout_of("verifier", "generate", config, "--out", out, *words)
    assert not out.with_name(f"{out.name}.parts").exists()
    return read_answers(out)


def labelled(answers: list[Answer]) -> bool:
    """Whether each label is the grader's, and both occur."""
    right = [re.search(PATTERN, answer.text) is not None for answer in answers]
    return right == [answer.right for answer in answers] and len(set(right)) == 2


def test_every_policy_answers_every_question_at_every_temperature(config: Path, tmp_path: Path) -> None:
    words = ["--answers", 3, "--policy", "a", "--policy", "b", "--temperature", 0.5, "--temperature", 1.5]
    answers = generated(config, tmp_path / "a.parquet", *words)
    counts = Counter((one.question, one.policy, one.temperature) for one in answers)
    assert counts == {(q, policy, t): 3 for q in QUESTIONS for policy in "ab" for t in (0.5, 1.5)}
    assert len({(one.task, one.question) for one in answers}) == 5 and labelled(answers)
    assert [one.task for one in answers] == sorted(
        (one.task for one in answers), key=[*dict.fromkeys(one.task for one in answers)].index
    )
    tokenizer = load_tokenizer(Path(yaml.safe_load(config.read_text())["policies"]["a"]["model"]))
    assert all(tokenizer.decode(one.ids, skip_special_tokens=True) == one.text for one in answers)
    assert all(one.logprob < 0 and not one.perturbed for one in answers)


def test_a_debate_gives_an_answer_per_role_and_round(model_folder: Callable[[str], Path], tmp_path: Path) -> None:
    roles = ["first", "second"]
    debate = {"name": "debate", "roles": roles, "rounds": 2, "prompt": "{question}", "revise": "{others}"}
    file = written(model_folder("llama"), tmp_path, workflow=debate, roles=dict(zip(roles, "ab", strict=True)))
    answers = generated(file, tmp_path / "a.parquet", "--answers", 2, "--tasks", 3)
    assert Counter(one.policy for one in answers) == {"a": 3 * 2 * 2, "b": 3 * 2 * 2}
    assert len({one.task for one in answers}) == 3 and labelled(answers)


def test_a_verifier_does_not_label_answers_but_the_reward_that_it_names_does(config: Path, tmp_path: Path) -> None:
    scored = "{name: verifier, run: missing%s}"  # the verifier is not opened: it may not be trained yet
    answers = generated(config, tmp_path / "a.parquet", "reward=" + scored % ", labels: exact", "--tasks", 2)
    assert {one.label for one in answers} == {0.0}  # no answer is "?"
    for reward in (scored % "", f"{{name: compose, parts: [{scored % ''}, exact]}}", scored % ", labels: verifier"):
        result = coterie("verifier", "generate", config, f"reward={reward}", "--out", tmp_path / "b.parquet")
        assert result.exit_code == 2 and "a verifier's score cannot label answers" in result.stderr, result.stderr


def test_greedy_answers_are_sampled_once(config: Path, tmp_path: Path) -> None:
    answers = generated(config, tmp_path / "a.parquet", "--temperature", 0, "--tasks", 2)
    assert len(answers) == 2 and {one.temperature for one in answers} == {0.0}


def test_a_killed_process_continues_and_writes_the_same_rows(config: Path, tmp_path: Path) -> None:
    for moment in MOMENTS:
        (tmp_path / moment).mkdir()
    (tmp_path / "config.yaml").write_text(config.read_text().replace("rows.jsonl", str(config.parent / "rows.jsonl")))
    ran = run_python(["-m", "tests.killed_generate", str(tmp_path)], seconds=HANG)
    assert json.loads(ran.stdout) == dict.fromkeys(MOMENTS, -9), ran.stderr
    sample(tmp_path / "config.yaml", tmp_path / "whole.parquet")
    whole = (tmp_path / "whole.parquet").read_bytes()
    left = {moment: len(list((tmp_path / moment / "answers.parquet.parts").glob("*.parquet"))) for moment in MOMENTS}
    assert left == dict(zip(MOMENTS, (1, 1, 3), strict=True))
    for moment in MOMENTS:
        sample(tmp_path / "config.yaml", tmp_path / moment / "answers.parquet")
        assert (tmp_path / moment / "answers.parquet").read_bytes() == whole, moment
        assert [path.name for path in (tmp_path / moment).iterdir()] == ["answers.parquet"]


def test_other_options_or_references_cannot_continue_what_was_begun(
    model_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = written(model_folder("llama"), tmp_path)

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("coterie.verifier.generate.write_answers", stop)
        sample(config, tmp_path / "a.parquet")
    for changes, text in (({"episodes": 3}, "answers=2, not 3"), ({"tasks": 2}, "tasks=5, not 2")):
        with pytest.raises(OtherPlan, match=text):
            sample(config, tmp_path / "a.parquet", **changes)
    rows = (tmp_path / "rows.jsonl").read_text()
    (tmp_path / "rows.jsonl").write_text(rows.replace('"answer": "?"', '"answer": "!"', 1))
    with pytest.raises(OtherPlan, match="hash of the tasks"):
        sample(config, tmp_path / "a.parquet")
    assert not (tmp_path / "a.parquet").exists()


def test_a_file_that_exists_and_a_policy_that_does_not_are_refused(config: Path, tmp_path: Path) -> None:
    (tmp_path / "a.parquet").touch()
    exists = coterie("verifier", "generate", config, "--out", tmp_path / "a.parquet")
    assert exists.exit_code == 2 and "a.parquet already exists" in exists.stderr
    unknown = coterie("verifier", "generate", config, "--out", tmp_path / "b.parquet", "--policy", "A")
    assert (
        unknown.exit_code == 2
        and "--policy A: no such policy" in unknown.stderr
        and "did you mean a?" in unknown.stderr
    )


def test_a_workflow_that_returns_no_whole_reply_is_refused(model_folder: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "shout.py").write_text(
        "from dataclasses import dataclass\n\n\n@dataclass(frozen=True)\nclass Shout:\n"
        "    roles: tuple[str, ...] = ('solver',)\n\n    async def run(self, task, team, world):\n"
        "        return (await team.solver.say(task.prompt)).text + '!'\n"
    )
    file = written(model_folder("llama"), tmp_path, workflow="shout.py:Shout")
    with pytest.raises(ConfigError, match=r"no turn of .* wrote the team's answer"):
        sample(file, tmp_path / "a.parquet")


SUMS = """
tasks_per_step: 2
policies: {solver: {model: demo}}
roles: {solver: {policy: solver, max_tokens: 12}}
workflow: {name: single, prompt: "{question} = ? Reply with the number only."}
env: {name: rows, train: sums.jsonl, test: sums.jsonl}
reward: number
algorithm: grpo
sampling: {stop: ["\\n"]}
device: cpu
"""


@pytest.mark.slow
def test_a_real_model_that_is_killed_twice_writes_the_same_answers_and_they_can_be_balanced(tmp_path: Path) -> None:
    sums = {f"{a} + {b}": a + b for a in range(2, 8) for b in (3, 9)}
    rows = [{"question": question, "answer": truth} for question, truth in sums.items()]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "sums.yaml").write_text(SUMS)
    words = ["generate", tmp_path / "sums.yaml", "--temperature", "0.4", "--temperature", "0.8", "--answers", "4"]
    for parts in (1, 3):
        kill_after(parts, tmp_path / "killed.parquet", words)
    killed = generated_by(words, tmp_path / "killed.parquet")
    assert killed.read_bytes() == generated_by(words, tmp_path / "whole.parquet").read_bytes()
    answers = read_answers(killed)
    assert len(answers) == len(sums) * 2 * 4
    assert all(one.label == number(one.text, sums[one.question]) for one in answers)
    assert 0.1 < sum(one.right for one in answers) / len(answers) < 0.9
    stdout_of("verifier", "balance", killed, "--out", tmp_path / "b.parquet", "--config", tmp_path / "sums.yaml")
    kept = read_answers(tmp_path / "b.parquet")
    assert len(kept) >= len(sums) and all(one.label == number(one.text, sums[one.question]) for one in kept)
    for question in {one.question for one in kept}:
        labels = [one.label for one in kept if one.question == question]
        assert sum(labels) == len(labels) / 2


def kill_after(parts: int, out: Path, words: list[Any]) -> None:
    """Start the command, and kill it when it has written so many parts."""
    command = [sys.executable, "-m", "coterie", "verifier", *map(str, words), "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while len(list(out.with_name(f"{out.name}.parts").glob("*.parquet"))) < parts:
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL and not out.exists()


def generated_by(words: list[Any], out: Path) -> Path:
    stdout_of("verifier", *words, "--out", out)
    return out


def test_a_runs_own_answers_are_collected_with_the_labels_they_were_trained_on(
    model_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    model = model_folder("llama")
    config = written(model, tmp_path, policies={"a": {"model": str(model), "lora": {"rank": 2}}})
    stdout_of("train", config, "steps=2", "episodes_per_task=3", "name=r", "--out", tmp_path)
    for last, episodes in ((None, 12), (1, 6)):
        out = tmp_path / f"{last}.parquet"
        stdout_of("verifier", "collect", tmp_path / "r", "--out", out, *(["--last", last] if last else []))
        answers = read_answers(out)
        assert len(answers) == episodes and all(
            answer.right == (re.search(PATTERN, answer.text) is not None) for answer in answers
        )


FAILING = """
from dataclasses import dataclass

@dataclass(frozen=True)
class Fails:
    roles = ("solver",)

    async def run(self, task, team, world):
        if " 3 " in task.prompt:
            raise ValueError("three is too many")
        return (await team.solver.say(task.prompt)).text
"""


def test_episodes_that_fail_are_left_out_and_the_first_error_is_told(
    model_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    (tmp_path / "fails.py").write_text(FAILING)
    model = model_folder("llama")
    policies = {"a": {"model": str(model), "lora": {"rank": 2}}}
    config = written(model, tmp_path, workflow="fails.py:Fails", policies=policies, tasks_per_step=5)
    told = re.compile(r"1 of 5 episodes failed \(1 ValueError\) .* left out; .* \S+/0: ValueError: three is too many\n")
    made = coterie("verifier", "generate", config, "--out", tmp_path / "a.parquet", "--answers", 1)
    assert made.exit_code == 0 and told.search(made.stderr), made.output
    stdout_of("train", config, "steps=1", "episodes_per_task=1", "algorithm=reinforce++", "name=r", "--out", tmp_path)
    found = coterie("verifier", "collect", tmp_path / "r", "--out", tmp_path / "b.parquet")
    assert found.exit_code == 0 and told.fullmatch(found.stderr), found.output
    assert [len(read_answers(tmp_path / name)) for name in ("a.parquet", "b.parquet")] == [4, 4]
