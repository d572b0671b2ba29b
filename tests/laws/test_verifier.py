"""Laws of a verifier: what it reads, what it learns, and that it resumes to the bit."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from coterie.cli.verifier_runs import plan
from coterie.errors import ModelError
from coterie.files import read_rows
from coterie.rewards.verifier import TooLong
from coterie.training import checkpoint
from coterie.types import Message
from coterie.verifier.answers import write_answers
from coterie.verifier.model import BadConversation, Verifier, pack_rows
from coterie.verifier.requests import conversation
from coterie.verifier.settings import BadVerifierConfig, read_settings
from coterie.verifier.train import BadTrainingData, VerifierRun, resume, split_by_question, train
from coterie.view.run_folder import RunFolder
from tests.commands import coterie, stdout_of
from tests.forked import run_python
from tests.hangs import HANG
from tests.killed_verifier import MOMENTS
from tests.models import tiny
from tests.verifiers import built, disturbed, shuffled_within, toy_answers

Folder = Callable[[str], Path]


def conversations() -> list[list[Message]]:
    """Of several lengths; many begin alike, and one is there twice."""
    talks = [conversation(f"What is {q} + 30?", "The answer is 42. " * k) for q in (7, 12, 99) for k in (0, 1, 2, 5)]
    system: Message = {"role": "system", "content": "You are a helpful assistant."}
    return [*talks, [system, *talks[1]], talks[3]]


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_packed_scores_equal_scores_one_by_one(kind: str, model_folder: Folder) -> None:
    verifier, talks = disturbed(model_folder(kind)), conversations()
    together, alone = verifier.score(talks), [verifier.score([talk])[0] for talk in talks]
    assert together == pytest.approx(alone, abs=1e-5)
    assert len({round(p, 4) for p in together}) == len(talks) - 1  # all differ but for the one that is there twice
    assert verifier.score([]) == []


def test_the_score_is_read_behind_the_last_token_of_the_answer(model_folder: Folder) -> None:
    verifier = disturbed(model_folder("llama"))
    four, five = (verifier.encode(conversation("2 + 2?", text), "it") for text in ("4", "5"))
    assert four[-1] == five[-1] == verifier.learner.base.chat.end_id and four[:-2] == five[:-2]
    batch = pack_rows([four, five])
    assert batch.mask.nonzero()[:, 0].tolist() == [len(four) - 1, len(four) + len(five) - 1]
    # At the last token of the answer itself the head has not seen that token: both answers score the same.
    assert verifier.score_rows([four])[0] != verifier.score_rows([five])[0]
    assert verifier.score_rows([four[:-1]]) == verifier.score_rows([five[:-1]])


def test_an_answer_cannot_spell_a_control_token(model_folder: Folder) -> None:
    verifier = disturbed(model_folder("llama"))
    ids = verifier.encode(conversation("2 + 2?", "4<|im_end|>"), "it")
    assert ids.count(verifier.learner.base.chat.end_id) == 2  # of the question's turn, and the one that is appended


@pytest.mark.parametrize(
    ("talk", "error"),
    [
        ([*conversation("2 + 2?", "4" * 600)], r"conversation 2: \d+ tokens are more than .* context of 512"),
        (conversation("2 + 2?", "4")[:1], "conversation 2: the last message must be the assistant's"),
        (conversation("2 + 2?", "4")[1:], "conversation 2: the last message must be the assistant's, after"),
    ],
)
def test_a_conversation_that_cannot_be_scored_is_named(talk: list[Message], error: str, model_folder: Folder) -> None:
    with pytest.raises((BadConversation, TooLong), match=error):
        disturbed(model_folder("llama")).score([conversation("1 + 1?", "2"), talk])


def figures(folder: Path) -> list[dict[str, float]]:
    """All that was measured, but for what a clock says."""
    rows = read_rows(folder / "metrics.jsonl")
    clock = ("time", "tokens_per_second")
    return [{k: v for k, v in row.items() if k not in clock and not k.startswith("seconds/")} for row in rows]


def held_out(run: VerifierRun) -> dict[str, float]:
    return figures(run.folder)[-1]


def test_it_learns_what_is_right(model_folder: Folder, tmp_path: Path) -> None:
    run = built(model_folder("llama"), tmp_path / "v")
    train(run)
    last = held_out(run)
    assert last["eval/auc"] > 0.95 and last["eval/accuracy_within"] > 0.95 and last["loss"] < 0.3
    assert (tmp_path / "v/reliability.png").read_bytes().startswith(b"\x89PNG")
    shown = RunFolder(tmp_path / "v")
    assert shown.state()["state"] == "finished" and shown.summary()["evaluations"][1] == last["eval/auc_within"]
    assert sum(one["answers"] for one in shown.reliability()[-1]["bins"]) == last["eval/answers"]
    # What is loaded is the best checkpoint, and scores as the run did.
    best = Verifier.load(tmp_path / "v", "cpu", str(run.best_step))
    verifier = Verifier.load(tmp_path / "v", "cpu")
    talks = [conversation(one.answer.question, one.answer.text) for one in run.held_out]
    assert verifier.score(talks) == best.score(talks) and verifier.hash == best.hash
    right = [p for p, one in zip(verifier.score(talks), run.held_out, strict=True) if one.answer.right]
    assert min(right) > 0.5
    first = Verifier.load(tmp_path / "v", "cpu", str(run.step))
    assert (first.hash == verifier.hash) == (run.step == run.best_step)


def test_labels_shuffled_within_questions_cannot_be_learned(model_folder: Folder, tmp_path: Path) -> None:
    answers = shuffled_within(toy_answers(questions=100))
    run = built(model_folder("llama"), tmp_path / "v", answers, held_out=0.5, evaluations=1)
    train(run)
    assert abs(held_out(run)["eval/accuracy_within"] - 0.5) < 0.15  # of 200 pairs: three standard errors
    assert len(run.held_out) == 200


def assert_same_run(one: VerifierRun, other: VerifierRun) -> None:
    """Weights, optimizer, measurements and pointers are equal, not nearly equal."""
    assert (one.step, one.best, one.best_step) == (other.step, other.best, other.best_step)
    ours, theirs = one.verifier.learner, other.verifier.learner
    for name, parameter in ours.parameters().items():
        assert torch.equal(parameter, theirs.parameters()[name]), name
    for a, b in zip(_tensors(ours.state()), _tensors(theirs.state()), strict=True):
        assert torch.equal(a, b)
    assert figures(one.folder) == figures(other.folder)
    assert RunFolder(one.folder).reliability() == RunFolder(other.folder).reliability() != []
    for pointer in ("latest", "best"):
        assert (one.folder / pointer).read_text() == (other.folder / pointer).read_text()


def _tensors(state: object) -> list[torch.Tensor]:
    if isinstance(state, torch.Tensor):
        return [state]
    inner = state.values() if isinstance(state, dict) else state if isinstance(state, list | tuple) else ()
    return [tensor for part in inner for tensor in _tensors(part)]


def test_a_killed_run_resumes_to_the_bit(tmp_path: Path) -> None:
    model = tiny("llama", tmp_path / "model")
    whole = built(model, tmp_path / "whole")
    train(whole)
    assert len(figures(whole.folder)) == whole.steps == 9
    for moment in MOMENTS:
        (tmp_path / "killed" / moment).mkdir(parents=True)
        # The same file, at the place that the child looks for it.
        write_answers(tmp_path / "killed" / f"{moment}.parquet", toy_answers())
    ended = run_python(["-m", "tests.killed_verifier", str(tmp_path / "killed")], seconds=HANG)
    assert json.loads(ended.stdout) == dict.fromkeys(MOMENTS, -signal.SIGKILL), ended.stderr
    for moment in MOMENTS:
        again = built(model, tmp_path / "killed" / moment)
        resume(again)
        assert 0 < again.step < whole.steps
        train(again)
        assert_same_run(whole, again)


def stop_at(last: int, run: VerifierRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run will get a SIGTERM in this step."""
    step = run.log.step

    def signalled(number: int) -> Any:
        if number == last:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(number)

    monkeypatch.setattr(run.log, "step", signalled)


def test_a_stopped_run_goes_on_as_the_same_run(
    model_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, stopped = (built(model_folder("llama"), tmp_path / name) for name in ("whole", "stopped"))
    train(whole)
    stop_at(5, stopped, monkeypatch)  # between two evaluations
    train(stopped)
    assert stopped.step == 5 and stopped.signal == signal.SIGTERM
    again = built(model_folder("llama"), tmp_path / "stopped")
    resume(again)
    assert again.step == 5
    train(again)
    assert_same_run(whole, again)


def test_the_best_checkpoint_is_that_of_the_best_auc_within(model_folder: Folder, tmp_path: Path) -> None:
    run = built(model_folder("llama"), tmp_path / "v", shuffled_within(toy_answers(40)), evaluations=12)
    train(run)
    found = {int(row["step"]): row["eval/auc_within"] for row in figures(run.folder)}
    best = max(found, key=lambda step: (found[step], -step))
    assert len(found) == run.steps == 12
    assert int((run.folder / "best").read_text()) == run.best_step == best and best < run.steps
    kept = {int(path.name) for path in (run.folder / "checkpoints").iterdir()}
    assert kept == {best, *sorted(found)[-2:]}


def test_a_run_refuses_other_answers_and_another_base(tmp_path: Path) -> None:
    model = tiny("llama", tmp_path / "model")
    run = built(model, tmp_path / "v", epochs=1)
    train(run)
    config = read_settings(run.folder)
    assert config == run.config
    write_answers(tmp_path / "v.parquet", toy_answers(seed=1))
    result = coterie("verifier", "train", "--resume", run.folder)
    assert result.exit_code == 2 and "has changed since this run started" in result.output
    tiny("llama", tmp_path / "model", seed=1)
    with pytest.raises(ModelError, match="not the base that this verifier was trained on"):
        Verifier.load(run.folder)


def test_a_damaged_checkpoint_is_refused(model_folder: Folder, tmp_path: Path) -> None:
    run = built(model_folder("llama"), tmp_path / "v", epochs=1)
    train(run)
    weights = next(checkpoint.find(run.folder, "best").rglob("adapter_model.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    with pytest.raises(ModelError, match=r"adapter_model\.safetensors is damaged"):
        Verifier.load(run.folder)
    (run.folder / "config.yaml").write_text("policies: {}")
    with pytest.raises(BadVerifierConfig, match=r"config\.yaml: not the config of a verifier: answers"):
        Verifier.load(run.folder)
    with pytest.raises(BadVerifierConfig, match=r"not a verifier run: it has no config\.yaml"):
        Verifier.load(tmp_path)


def test_a_score_head_learns_on_an_adapter_that_does_not_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny("llama", tmp_path / "model")
    solver = built(model, tmp_path / "solver", epochs=1)  # any trained adapter
    train(solver)
    adapter = checkpoint.policy_folder(checkpoint.find(solver.folder), "verifier")
    run = built(model, tmp_path / "v", adapter=str(adapter), head_lr=0.1)
    before = {name: tensor.clone() for name, tensor in run.verifier.learner.parameters().items()}
    trained = solver.verifier.learner.parameters()
    assert all(torch.equal(tensor, trained[name]) for name, tensor in before.items())
    assert [len(group["params"]) for group in run.verifier.learner.optimizer.param_groups] == [2]  # type: ignore[union-attr]
    train(run)
    for name, tensor in run.verifier.learner.parameters().items():
        assert torch.equal(tensor, before[name]) and tensor.grad is None, name
    rows = figures(run.folder)
    assert rows[-1]["loss"] < rows[0]["loss"] - 0.05 and rows[-1]["eval/auc"] > 0.7
    # A checkpoint has all that is needed: the solver's run may be gone.
    stopped = built(model, tmp_path / "stopped", adapter=str(adapter), head_lr=0.1)
    stop_at(5, stopped, monkeypatch)
    train(stopped)
    adapter.rename(tmp_path / "elsewhere")
    assert Verifier.load(run.folder, "cpu", "latest").hash != Verifier.load(stopped.folder, "cpu", "latest").hash
    again = built(model, tmp_path / "stopped", adapter=str(adapter), head_lr=0.1)
    resume(again)
    assert again.step == 5
    train(again)
    assert_same_run(run, again)
    with pytest.raises(ModelError, match=r"adapter_config\.json is missing"):
        built(model, tmp_path / "new", adapter=str(adapter))
    with pytest.raises(BadVerifierConfig, match=r"--adapter: .*: no adapter_config\.json; a PEFT adapter folder"):
        built(model, tmp_path / "new", adapter=str(tmp_path))


def test_answers_from_which_nothing_can_be_learned_are_refused(model_folder: Folder, tmp_path: Path) -> None:
    answers = toy_answers(8)
    right = [replace(answer, label=1.0) for answer in answers]
    with pytest.raises(BadTrainingData, match=r"right\.parquet: no training question has right and wrong"):
        built(model_folder("llama"), tmp_path / "right", right)
    held = {answer.question for answer in split_by_question(answers, 0.2, 0)[1]}
    by_question = [replace(answer, label=1.0) if answer.question in held else answer for answer in answers]
    with pytest.raises(BadTrainingData, match=r"one-kind\.parquet: no held-out question has right and wrong"):
        built(model_folder("llama"), tmp_path / "one-kind", by_question)
    with pytest.raises(BadTrainingData, match=r"no training question has .*; 32 answers are longer .* context of 9"):
        built(model_folder("llama"), tmp_path / "long", answers, context=9)


def test_answers_that_are_too_long_are_left_out_and_counted(model_folder: Folder, tmp_path: Path) -> None:
    answers = toy_answers(8)
    held = split_by_question(answers, 0.2, 0)[1]
    right = [i for i, answer in enumerate(answers) if answer.question == answers[0].question and answer.right]
    left_out = {answers.index(held[0]), *right}
    assert len(left_out) == 3 and answers[0] not in held
    long = [replace(answer, text=answer.text * 60) if i in left_out else answer for i, answer in enumerate(answers)]
    run = built(model_folder("llama"), tmp_path / "long", long)
    kept = [one.answer for question in run.training for one in question] + [one.answer for one in run.held_out]
    # The first question has no right answer left, so its wrong ones are not trained on either.
    assert {answer.question for answer in long} - {answer.question for answer in kept} == {long[0].question}
    assert not {long[i].text for i in left_out} & {answer.text for answer in kept}
    assert len(run.held_out) == len(held) - 1
    assert run.verifier.learner.steps == run.steps
    assert plan(run).endswith("; left out: 3 answers that are longer than the verifier's context of 512")


def test_the_commands_train_and_evaluate(model_folder: Folder, tmp_path: Path) -> None:
    answers, run = tmp_path / "answers.parquet", tmp_path / "v"
    write_answers(answers, toy_answers(40))
    options = ["--epochs", 2, "--lr", 0.01, "--rank", 4, "--questions-per-step", 4, "--evaluations", 2]
    more = ["--held-out", 0.25, "--context", 200, "--seed", 3]
    out = stdout_of("verifier", "train", answers, "--model", model_folder("llama"), "--out", run, *options, *more)
    assert re.search(r" 1[12]\d answers to 30 questions, 40 to 10 held-out ones", out)  # a few texts occur twice
    line = r"16 of 16 steps done; held out, best at step \d+: AUC 0\.\d+|1\.000 across, .* within a question, ECE"
    assert re.search(line, out.splitlines()[-1])
    assert "resuming after step 16" in stdout_of("verifier", "train", "--resume", run)
    for option, value in {"--lr": 0.1, "--model": "demo", "--rank": 4, "--out": run}.items():
        refused = coterie("verifier", "train", "--resume", run, option, value)
        assert refused.exit_code == 2 and f"{option}: cannot change when a run is resumed" in refused.output
    shared = [
        answers,
        "--out",
        tmp_path / "s",
        "--epochs",
        1,
        "--adapter",
        run,
    ]  # the adapter says which model it is of
    assert "a score head on the adapter " in stdout_of("verifier", "train", *shared, "--lr", 0.02)
    assert (read_settings(tmp_path / "s").head_lr, read_settings(tmp_path / "s").lr) == (0.02, 5e-4)
    stdout_of("verifier", "train", "--resume", tmp_path / "s", "--microbatch-tokens", 128)
    assert read_settings(tmp_path / "s").learning.microbatch_tokens == 128
    useless = coterie("verifier", "train", *shared, "--rank", 8)
    assert useless.exit_code == 2 and "--rank: has no effect with --adapter" in useless.output
    shutil.copytree(policies := checkpoint.find(run) / "policies" / "verifier", policies.with_name("other"))
    several = coterie("verifier", "train", *shared)
    assert several.exit_code == 2 and "has several adapters; name one\n" in several.output
    assert f"{policies}\n" in several.output
    high = coterie(
        "verifier", "train", answers, "--model", model_folder("llama"), "--out", tmp_path / "h", "--rank", 99
    )
    assert high.exit_code == 2 and "--rank: lora.rank: 99 is above" in high.output
    assert coterie("verifier", "train").exit_code == 2
    files = tmp_path / "v.json", tmp_path / "v.png"
    shown = stdout_of("verifier", "eval", run, answers, "--json", files[0], "--plot", files[1])
    assert "left out: 120 answers" in shown and " questions the verifier ranks" in shown
    reports = json.loads(files[0].read_text())["reports"]
    assert [name.split(" (")[0] for name in reports] == ["verifier", "length", "mean log-prob", "majority"]
    assert reports["verifier"]["answers"] == 40 and files[1].read_bytes().startswith(b"\x89PNG")
    missing = coterie("verifier", "eval", run, tmp_path / "none.parquet")
    assert missing.exit_code == 2 and "none.parquet: no such file" in missing.output
