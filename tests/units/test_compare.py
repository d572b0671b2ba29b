"""Laws of comparing arms: each is trained and evaluated once, on the same tasks, and compared task by task."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path
from threading import Barrier, Event
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from typer.main import get_command
from typer.testing import CliRunner

from coterie.analysis.compare import ArmFailed, Runner, compare, compare_seeds, environment, sampled_in
from coterie.analysis.compare_report import page, sampled_and_score, summary
from coterie.analysis.compare_table import (
    Interval,
    OtherTasks,
    Result,
    differences,
    markdown,
    require_same_tasks,
    rows_of,
)
from coterie.analysis.comparison import VERIFIER_OPTIONS, load
from coterie.cli.app import app
from coterie.cli.verifier import app as verifier
from coterie.config import ConfigError
from coterie.errors import UserError
from coterie.files import OtherPlan
from coterie.training.checkpoint import find
from coterie.view.listing import Listing
from tests.commands import coterie


def rows(path: Path, first: int, count: int) -> Path:
    made = [{"question": f"{n} + 1?", "answer": str(n + 1)} for n in range(first, first + count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in made))
    return path


@pytest.fixture
def comparison(tmp_path: Path, model_folder: Callable[[str], Path]) -> Path:
    """A team and a single agent on a tiny model, in files as a user has them."""
    common: dict[str, Any] = {
        "steps": 2,
        "tasks_per_step": 2,
        "episodes_per_task": 2,
        "env": {
            "name": "rows",
            "train": str(rows(tmp_path / "train.jsonl", 0, 8)),
            "test": str(rows(tmp_path / "test.jsonl", 100, 6)),
        },
        "reward": "number",
        "sampling": {"max_tokens": 4},
        "eval": {"tasks": 3},
        "checkpoint": {"every": 1},
        "device": "cpu",
    }
    model = {"model": str(model_folder("llama"))}
    team = common | {
        "policies": {"solver": model, "verifier": model},
        "roles": {"solver": "solver", "verifier": {"policy": "verifier", "max_tokens": 1}},
        "workflow": {"name": "verified_vote", "answers": 2, "grades": 2},
        "algorithm": {"name": "grpo", "group_by": ["task", "role", "prompt"], "gamma_turn": 0},
        "credit": "own",
    }
    single = common | {
        "policies": {"solver": model},
        "roles": {"solver": "solver"},
        "workflow": "single",
        "algorithm": "grpo",
    }
    arms = {
        "U1": {"recipe": "single.yaml", "train": False},
        "S1": {"recipe": "single.yaml"},
        "S3": {"of": "S1", "evaluate": ["workflow={name: vote, voters: 3}", "eval.temperature=1"]},
        "T": {"recipe": "team.yaml", "set": ["steps=1"], "evaluate": ["workflow.answers=3"]},
    }
    for name, tree in {"team": team, "single": single}.items():
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(tree))
    file = tmp_path / "compare.yaml"
    file.write_text(yaml.safe_dump({"against": "T", "evaluate": ["eval.tasks=5"], "arms": arms}, sort_keys=False))
    return file


class InThisThread(Executor):
    """Works in the calling thread: training in this process sets signal handlers, which only the main thread may."""

    def __init__(self, workers: int) -> None: ...
    def submit(self, function: Callable[..., Result], /, *arguments: Any, **named: Any) -> Future[Result]:
        done: Future[Result] = Future()
        try:
            done.set_result(function(*arguments, **named))
        except ArmFailed as error:
            done.set_exception(error)
        return done


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Commands run in this process, where they start at once; the list tells which."""
    ran: list[str] = []

    def command(self: Runner, name: str, words: Sequence[object]) -> None:
        ran.append(f"{name} {words[0]}")
        result = coterie(*words)
        if result.exit_code:
            raise ArmFailed(result.output)

    monkeypatch.setattr(Runner, "_command", command)
    monkeypatch.setattr("coterie.analysis.compare.ThreadPoolExecutor", InThisThread)
    return ran


def test_every_arm_is_trained_and_evaluated_once_on_the_same_tasks(comparison: Path, here: list[str]) -> None:
    out = comparison.parent / "out"
    compare(comparison, ("seed=3",), out, jobs=1)
    assert here == ["U1 eval", "S1 train", "S1 eval", "T train", "T eval", "S3 eval"]
    found = {name: json.loads((out / f"{name}.json").read_text()) for name in ("U1", "S1", "S3", "T")}
    tasks = {name: list(next(iter(one["accuracy"].values()))) for name, one in found.items()}
    assert len(tasks["T"]) == 5 and all(named == tasks["T"] for named in tasks.values())
    assert [found[name]["step"] for name in ("U1", "S1", "S3", "T")] == [0, 2, 2, 1]
    assert yaml.safe_load((out / "S1" / "config.yaml").read_text())["seed"] == 3
    head, _, *table = (out / "table.md").read_text().splitlines()
    assert "T − arm" in head and [row.split(" | ")[0] for row in table] == ["| U1", "| S1", "| S3", "| T"]
    assert all((out / f"{name}.png").read_bytes().startswith(b"\x89PNG") for name in ("curves", "differences"))
    shown = Listing([out])
    assert shown.result("out")["runs"] == list(shown.refresh()) and shown.result("out")["table"]["rows"][0][0] in found
    report = (out / "report.html").read_text()
    assert all(f'["{name}", ' in report for name in found) and report.count("coterie train") == 2


def test_a_curve_counts_the_tokens_of_training_until_each_evaluation(tmp_path: Path) -> None:
    steps = [{"eval/accuracy": 0.1}, {"sampled_tokens": 5}, {"sampled_tokens": 7}, {"eval/accuracy": 0.4}]
    rows = [{"step": step, **row} for step, row in zip((0, 1, 2, 2), steps, strict=True)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert list(sampled_and_score(tmp_path)) == [(0, 0.1), (12, 0.4)]


def test_graded_rewards_are_compared_on_request_and_not_hidden(
    comparison: Path, here: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (comparison.parent / "mine.py").write_text("def length(answer, truth):\n    return len(answer) / 100\n")
    for name in ("single", "team"):
        recipe = comparison.parent / f"{name}.yaml"
        recipe.write_text(recipe.read_text().replace("reward: number", "reward: mine.py:length"))
    out = comparison.parent / "out"
    tables = {}
    for score in ("accuracy", "reward"):  # with the same evaluations
        comparison.write_text(
            yaml.safe_dump(yaml.safe_load(comparison.read_text()) | {"score": score}, sort_keys=False)
        )
        capsys.readouterr()
        compare(comparison, (), out, jobs=1, only=("S1", "T"))
        tables[score] = (out / "table.md").read_text().splitlines()
        assert ("`score: reward` in the comparison's file compares them" in capsys.readouterr().out) == (
            score == "accuracy"
        )
    assert here == ["S1 train", "S1 eval", "T train", "T eval"]
    assert "| 0.000 (0.000–0.000) |" in tables["accuracy"][2] and tables["reward"][0].startswith("| arm | reward |")
    stored = json.loads((out / "S1.json").read_text())
    (rewards,), (metrics,) = stored["reward"].values(), stored["reports"].values()
    mean_reward = sum(rewards.values()) / len(rewards)
    assert mean_reward == pytest.approx(metrics["reward"]) and f"| {mean_reward:.3f} (" in tables["reward"][2]


def test_a_report_shows_text_as_text() -> None:
    made = page(summary("<b>", [{"arm": "<script>alert(1)</script>"}], [["eval", "a b", "x={y: 1}"]]), {})
    assert "<script>alert" not in made and "<b>" not in made and "coterie eval 'a b'" in made


def test_what_is_already_there_is_not_made_again(comparison: Path, here: list[str]) -> None:
    out = comparison.parent / "out"
    compare(comparison, (), out, jobs=1)
    (out / "S1.json").unlink()
    here.clear()
    compare(comparison, (), out, jobs=1)
    assert here == ["S1 eval"]


def test_arms_can_be_added_later_and_evaluations_brought_from_elsewhere(comparison: Path, here: list[str]) -> None:
    out = comparison.parent / "out"
    compare(comparison, (), out, jobs=1, only=("S3", "T"))
    assert here == ["S1 train", "S1 eval", "T train", "T eval", "S3 eval"]  # S3 is of S1
    whole = (out / "table.md").read_text()
    assert [row.split(" | ")[0] for row in whole.splitlines()[2:]] == ["| S1", "| S3", "| T"]
    elsewhere = comparison.parent / "elsewhere"
    for name in ("S1", "S3", "T"):  # evaluations and metrics, without a checkpoint
        (elsewhere / name).mkdir(parents=True)
        for kind in ("json", "plan.json"):
            shutil.copy(out / f"{name}.{kind}", elsewhere / f"{name}.{kind}")
        if name != "S3":
            for file in ("metrics.jsonl", "config.yaml"):
                shutil.copy(out / name / file, elsewhere / name)
    here.clear()
    compare(comparison, (), elsewhere, jobs=1, only=("U1",))
    assert here == ["U1 eval"]
    added = (elsewhere / "table.md").read_text().splitlines()
    assert added[2].startswith("| U1") and set(whole.splitlines()) <= set(added)
    with pytest.raises(UserError, match=r"--arms: .*compare.yaml has no arm S4; there is U1, S1, S3, T"):
        compare(comparison, (), out, jobs=1, only=("S4",))


def test_training_that_was_stopped_goes_on(comparison: Path, here: list[str]) -> None:
    out = comparison.parent / "out"
    stopped = CliRunner().invoke(
        app, ["train", str(comparison.parent / "single.yaml"), "steps=1", "name=S1", "--out", str(out)]
    )
    assert stopped.exit_code == 0
    Runner(load(comparison), out, ()).run("S1")
    assert json.loads((out / "S1.json").read_text())["step"] == 2


def test_training_killed_while_its_last_checkpoint_was_written_goes_on(comparison: Path, here: list[str]) -> None:
    out, run = comparison.parent / "out", comparison.parent / "out" / "S1"
    compare(comparison, (), out, jobs=1, only=("S1",))
    budget = f"max_sampled_tokens={sampled_in(run)}"
    again = comparison.parent / "again"
    compare(comparison, (budget,), again, jobs=1, only=("S1",))
    (again / "S1.json").unlink()
    shutil.rmtree(again / "S1" / "checkpoints" / "000002")
    (again / "S1" / "latest").write_text("000001")
    here.clear()
    compare(comparison, (budget,), again, jobs=1, only=("S1",))
    assert here == ["S1 train", "S1 eval"] and sampled_in(again / "S1") == sampled_in(run)


def test_an_output_folder_that_cannot_be_made_is_named(comparison: Path, here: list[str]) -> None:
    with pytest.raises(UserError, match=r"compare.yaml/out could not be written: Not a directory"):
        compare(comparison, (), comparison / "out", jobs=1)
    assert here == []


def test_an_arm_that_failed_before_its_first_checkpoint_starts_again_in_its_folder(
    comparison: Path, here: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    out = comparison.parent / "out"
    compare(comparison, (), out, jobs=1, only=("S1",))
    assert "no table yet, T has not been evaluated" in capsys.readouterr().out and not (out / "table.md").exists()
    (out / "S1.json").rename(out / "before.json")
    shutil.rmtree(out / "S1" / "checkpoints")
    (out / "S1" / "latest").unlink()
    here.clear()
    compare(comparison, (), out, jobs=1, only=("S1",))
    assert here == ["S1 train", "S1 eval"] and not (out / "S1-2").exists()
    assert json.loads((out / "S1.json").read_text()) == json.loads((out / "before.json").read_text())


def test_seeds_are_averaged_by_task(comparison: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cost = {"tokens": 10.0, "prompt_tokens": 20.0}
    by_seed = {
        "seed=0": {"T": Result({"a": 1.0, "b": 1.0}, cost, 100), "S": Result({"b": 0.0, "a": 1.0}, cost, 80)},
        "seed=1": {"T": Result({"b": 0.0, "a": 1.0}, cost, 100), "S": Result({"a": 0.0, "b": 0.0}, cost, 90)},
    }
    arms = {"T": {"recipe": "team.yaml", "train": False}, "S": {"recipe": "single.yaml", "train": False}}
    comparison.write_text(yaml.safe_dump({"against": "T", "arms": arms}, sort_keys=False))
    ran: list[str] = []

    def one(self: Runner, name: str) -> Result:
        ran.append(f"{self.out.name} {name}")
        return by_seed[self.changes[-1]][name]

    monkeypatch.setattr(Runner, "run", one)
    compare_seeds(comparison, ("steps=1",), comparison.parent, 1, 2)
    head, _, team, single = (comparison.parent / "table.md").read_text().splitlines()
    assert sorted(ran) == ["seed-0 S", "seed-0 T", "seed-1 S", "seed-1 T"] and ran[0].startswith("seed-0")
    assert head.startswith("| arm | by seed | accuracy |")
    assert team.startswith("| T | 1.000, 0.500 | 0.750 (")
    assert single.startswith("| S | 0.500, 0.000 | 0.250 (") and "| 85 | +0.500 (" in single
    # T leads by 0.5 on both tasks, so one of two signs is as far from 0, and with both seeds.
    assert single.endswith("| +0.500, +0.500 | 0.5 | 0 |")
    assert (comparison.parent / "seed-1" / "table.md").read_text().count("\n") == 2 + 2
    assert differences([by_seed["seed=0"], by_seed["seed=1"]], "T") == {"S": Interval(0.5, 0.5, 0.5)}


def test_arms_of_all_seeds_fill_the_jobs_and_an_arm_waits_only_for_the_one_it_is_of(
    comparison: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    single, team = ({"recipe": f"{name}.yaml", "train": False} for name in ("single", "team"))
    arms = {"S3": {"of": "S1"}, "S1": single, "T": team}
    comparison.write_text(yaml.safe_dump({"against": "T", "arms": arms}, sort_keys=False))
    two_train, s3_is_played = Barrier(2, timeout=20), Event()
    order: list[str] = []

    def run(self: Runner, name: str) -> Result:
        seed = self.changes[-1].removeprefix("seed=")
        order.append(f"{name}-{seed}")
        if order[-1] in ("S1-0", "T-0"):
            two_train.wait()  # at the same time
        if order[-1] == "S3-0":
            s3_is_played.set()
        if name == "T" and seed == "0":
            assert s3_is_played.wait(20)  # S3 does not wait for T
        return Result({"a": 1.0}, {"tokens": 1.0, "prompt_tokens": 1.0}, 0)

    monkeypatch.setattr(Runner, "run", run)
    compare_seeds(comparison, (), comparison.parent, 2, 2)
    assert sorted(order[:2]) == ["S1-0", "T-0"] and order[2] == "S3-0" and sorted(order[3:]) == ["S1-1", "S3-1", "T-1"]


def test_an_arm_may_add_a_verifier_that_learns_from_another_arms_rollouts(comparison: Path, here: list[str]) -> None:
    (comparison.parent / "odd.py").write_text("def odd(answer, truth):\n    return float(len(answer) % 2)\n")
    model = yaml.safe_load((comparison.parent / "single.yaml").read_text())["policies"]["solver"]["model"]
    arms = {
        "S1": {"recipe": "single.yaml", "set": ["episodes_per_task=8", "reward=odd.py:odd"]},
        "T": {
            "of": "S1",
            "verifier": f"--model {model} --rank 2 --epochs 1 --held-out 0.5",
            "evaluate": ["workflow={name: verified_vote, answers: 3}", "eval.temperature=1"],
        },
    }
    comparison.write_text(yaml.safe_dump({"against": "T", "arms": arms}, sort_keys=False))
    out = comparison.parent / "out"
    compare(comparison, ("seed=3",), out, jobs=1)
    assert here == ["S1 train", "S1 eval", "T verifier", "T verifier", "T eval"]
    found = json.loads((out / "T.json").read_text())
    (report,) = found["reports"].values()
    assert "auc_within_task" in report
    row = next(line for line in (out / "table.md").read_text().splitlines() if line.startswith("| T "))
    read = report["prompt_tokens"] + report["tokens"]  # by the reward model: each prompt and each solution once
    assert report["verifier_tokens"] == read and f"| {round(report['prompt_tokens'] + read)} |" in row
    assert yaml.safe_load((out / "T-verifier" / "config.yaml").read_text())["seed"] == 3
    assert "coterie verifier collect" in (out / "report.html").read_text()
    (out / "T.json").unlink()
    here.clear()
    compare(comparison, ("seed=3",), out, jobs=1)
    assert here == ["T verifier", "T eval"] and json.loads((out / "T.json").read_text()) == found


def test_a_shared_verifier_is_a_head_on_the_adapter_of_the_arm_it_learns_from(
    comparison: Path, here: list[str]
) -> None:
    (comparison.parent / "odd.py").write_text("def odd(answer, truth):\n    return float(len(answer) % 2)\n")
    model = yaml.safe_load((comparison.parent / "single.yaml").read_text())["policies"]["solver"]["model"]
    arms = {
        "S1": {"recipe": "single.yaml", "set": ["episodes_per_task=8", "reward=odd.py:odd"]},
        "S4": {
            "of": "S1",
            "shared": True,
            "verifier": f"--model {model} --epochs 1 --held-out 0.5 --microbatch-tokens 64",
            "evaluate": ["workflow={name: verified_vote, answers: 3}", "eval.temperature=1"],
        },
    }
    comparison.write_text(yaml.safe_dump({"against": "S4", "arms": arms}, sort_keys=False))
    out = comparison.parent / "out"
    compare(comparison, (), out, jobs=1)
    assert here == ["S1 train", "S1 eval", "S4 verifier", "S4 verifier", "S4 eval"]
    shutil.rmtree(out / "S4-verifier" / "checkpoints")  # as if it had failed before its first one
    for file in ("S4.json", "S4-verifier/latest", "S4-verifier/best"):
        (out / file).unlink()
    compare(comparison, (), out, jobs=1)
    assert here[5:] == ["S4 verifier", "S4 eval"] and not (out / "S4-verifier-2").exists()
    (out / "S4.json").unlink()
    arms["S4"]["verifier"] = f"--model {model} --epochs 1 --held-out 0.5 --microbatch-tokens=32"  # after an OutOfMemory
    comparison.write_text(yaml.safe_dump({"against": "S4", "arms": arms}, sort_keys=False))
    compare(comparison, (), out, jobs=1)
    made = yaml.safe_load((out / "S4-verifier" / "config.yaml").read_text())
    assert made["learning"]["microbatch_tokens"] == 32
    arms["S4"]["verifier"] = f"--model {model} --epochs 2 --held-out 0.5"
    comparison.write_text(yaml.safe_dump({"against": "S4", "arms": arms}, sort_keys=False))
    with pytest.raises(UserError, match="was begun with verifier --epochs='1', not '2'"):
        compare(comparison, (), out, jobs=1)
    trained = find(out / "S1") / "policies" / "solver"
    assert Path(made["adapter"]) == trained.resolve()
    saved = find(out / "S4-verifier", "best") / "policies" / "verifier"
    ours, theirs = (load_file(folder / "adapter_model.safetensors") for folder in (trained, saved))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_an_arm_runs_in_a_process_of_its_own_and_its_failure_is_told(comparison: Path) -> None:
    out = comparison.parent / "out"
    out.mkdir()
    with pytest.raises(ArmFailed, match=r"U1: coterie eval failed with exit code 2(.|\n)*nothing.jsonl"):
        Runner(load(comparison), out, ("env.test=nothing.jsonl",)).run("U1")


def test_arms_that_run_at_the_same_time_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert [environment(jobs).get("OMP_NUM_THREADS") for jobs in (1, 3, 16)] == [None, "2", "1"]
    monkeypatch.setenv("OMP_NUM_THREADS", "5")  # the user's own choice
    assert environment(3)["OMP_NUM_THREADS"] == "5"


def test_an_arm_that_fails_stops_none_but_those_of_it(
    comparison: Path, here: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = yaml.safe_load(comparison.read_text())
    bad = {"bad": {"recipe": "single.yaml"}, "worse": {"of": "bad"}}
    comparison.write_text(yaml.safe_dump(tree | {"arms": bad | tree["arms"]}, sort_keys=False))
    command = Runner._command

    def failing(self: Runner, name: str, words: Sequence[object]) -> None:
        if name == "bad":
            raise ArmFailed("bad: no memory")
        command(self, name, words)

    monkeypatch.setattr(Runner, "_command", failing)
    with pytest.raises(ArmFailed, match="bad: no memory"):
        compare(comparison, (), comparison.parent / "out", jobs=1)
    assert here == ["U1 eval", "S1 train", "S1 eval", "T train", "T eval", "S3 eval"]
    assert (comparison.parent / "out" / "table.md").read_text().count("\n") == 2 + 4


@pytest.mark.parametrize(
    ("arm", "message"),
    [
        ({"set": ["stepps=1"]}, "arms.bad: stepps: unknown key"),
        ({"evaluate": ["workflow.voters=2"]}, "arms.bad: workflow.voters: unknown key"),
        ({"set": ["episodes_per_task=1"]}, "arms.bad: episodes_per_task: "),
    ],
)
def test_the_configs_of_all_arms_are_checked_first(
    comparison: Path, here: list[str], arm: dict[str, Any], message: str
) -> None:
    tree = yaml.safe_load(comparison.read_text())
    tree["arms"]["bad"] = {"recipe": "single.yaml"} | arm
    comparison.write_text(yaml.safe_dump(tree, sort_keys=False))
    with pytest.raises(ConfigError) as caught:
        compare(comparison, (), comparison.parent / "out", jobs=1)
    assert message in str(caught.value) and here == []


def test_results_of_other_options_are_not_reused(comparison: Path, here: list[str]) -> None:
    out = comparison.parent / "out"
    runner = Runner(load(comparison), out, ())
    out.mkdir()
    runner.run("U1")
    with pytest.raises(OtherPlan, match=r"arm U1 in .*out was begun with seed=0, not 1(.|\n)* another --out"):
        Runner(load(comparison), out, ("seed=1",)).run("U1")
    with pytest.raises(OtherPlan, match=r"evaluate eval.temperature=None, not 0.5"):
        Runner(replace(load(comparison), evaluate=("eval.tasks=5", "eval.temperature=0.5")), out, ()).run("U1")
    (out / "U1.json").write_text("{")
    with pytest.raises(ArmFailed, match=r"U1.json: not an evaluation, or damaged; delete it"):
        runner.run("U1")


def test_an_arm_that_ran_out_of_memory_goes_on_with_less(comparison: Path, here: list[str]) -> None:
    out = comparison.parent / "out"
    out.mkdir()
    Runner(load(comparison), out, ())._command(
        "S1", ["train", comparison.parent / "single.yaml", "steps=1", "name=S1", "--out", out]
    )
    Runner(load(comparison), out, ()).run("U1")
    Runner(load(comparison), out, less := ("learning.microbatch_tokens=64",)).run("U1")
    Runner(load(comparison), out, less).run("S1")
    assert yaml.safe_load((out / "S1" / "config.yaml").read_text())["learning"]["microbatch_tokens"] == 64
    assert here == ["S1 train", "U1 eval", "S1 train", "S1 eval"]


def test_arms_on_other_tasks_are_not_compared() -> None:
    results = {"T": Result({"a": 1.0, "b": 0.0}, {}, 0), "S": Result({"a": 1.0}, {}, 0)}
    for against in results:
        with pytest.raises(OtherTasks, match="1 are the same; all arms need the same"):
            require_same_tasks(results, against)


def test_the_options_of_a_verifier_are_those_of_its_command() -> None:
    options = {option for parameter in get_command(verifier).commands["train"].params for option in parameter.opts}  # type: ignore[attr-defined]
    assert options - set(VERIFIER_OPTIONS) == {"answers", "--adapter", "--out", "--resume", "--seed"}


def test_the_table_compares_task_by_task() -> None:
    cost = {"tokens": 10.0, "prompt_tokens": 20.0}
    team = Result({"a": 1.0, "b": 1.0, "c": 0.0, "d": 1.0}, cost, 100)
    other = Result({"d": 0.0, "c": 0.0, "b": 0.0, "a": 1.0}, cost, 90)
    table = list(rows_of({"S": other, "T": team}, "T"))
    row = next(line for line in markdown(table).splitlines() if line.startswith("| S "))
    assert "0.250" in row and "+0.500" in row and "50%" in row and "| 90 |" in row and row.endswith("| 0.5 |")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"against": "TT"}, "against: no arm is called TT; did you mean T?"),
        ({"arms": {"T": {"recipe": "nothing.yaml"}}}, "arms.T.recipe: there is no file nothing.yaml"),
        ({"arms": {"T": {}}}, "arms.T: an arm has either a recipe, or `of`"),
        ({"arms": {"T": {"recipe": "team.yaml"}, "S": {"of": "X"}}}, "arms.S.of: no arm with a recipe is called X"),
        ({"arms": {"T": {"recipe": "team.yaml", "verifier": ""}}}, "arms.T.verifier: it learns from the rollouts of"),
        (
            {"arms": {"T": {"of": "U", "verifier": ""}, "U": {"recipe": "team.yaml", "train": False}}},
            "arms.T.verifier: U is not trained",
        ),
        ({"arms": {"T": {"recipe": "team.yaml"}, "V": {"of": "T", "verifier": "--modle x"}}}, "did you mean --model?"),
        (
            {"arms": {"T": {"recipe": "team.yaml"}, "V": {"of": "T", "verifier": "'x"}}},
            "verifier: No closing quotation",
        ),
        ({"arms": {"T": {"recipe": "team.yaml", "trian": False}}}, "arms.T.trian: unknown key"),
        (
            {"arms": {"T": {"recipe": "team.yaml"}, "V": {"of": "T", "shared": True}}},
            "arms.V.shared: has no effect without verifier",
        ),
    ],
)
def test_mistakes_are_told_with_their_key(comparison: Path, change: dict[str, Any], message: str) -> None:
    comparison.write_text(yaml.safe_dump(yaml.safe_load(comparison.read_text()) | change))
    with pytest.raises(ConfigError) as caught:
        load(comparison)
    assert message in str(caught.value)
