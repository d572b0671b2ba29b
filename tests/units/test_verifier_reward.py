"""The reward `verifier`: in process and over HTTP; a server that is down fails episodes and never gives zeros."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from coterie.cli import report
from coterie.cli.run import check_config
from coterie.console import plain_line, reward_table
from coterie.envs.base import attach_reward
from coterie.episode_files import EpisodeFile
from coterie.errors import UserError
from coterie.evaluation.evaluate import evaluate
from coterie.rewards.verifier import TooLong, VerifierSource, open_source, scores_of
from coterie.rollout import scoring
from coterie.rollout.metrics import TooManyFailures, drop_failed, rollout_metrics, verifier_auc
from coterie.training import checkpoint
from coterie.training.checkpoint import BadCheckpoint
from coterie.training.loop import train
from coterie.types import Episode, Task, Turn
from coterie.verifier.client import VerifierChanged, VerifierClient, VerifierRefused, WrongKey
from coterie.verifier.model import Verifier
from coterie.verifier.requests import conversation
from tests.laws.test_failed_scores import Questions, played
from tests.runs import started, trained, written
from tests.units.test_metrics import DESCRIBED, described
from tests.verifier_process import ByLength
from tests.verifier_servers import served, tiny_verifier, wait_until_up

ROWS = [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(4)]


@pytest.fixture(scope="module")
def verifier_run(model_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_verifier(tmp_path_factory.mktemp("verifier"), model_folder("llama"))


def config_of(folder: Path, model: Path, reward: Mapping[str, Any], answers: bool = True) -> dict[str, Any]:
    rows = [row if answers else {"question": row["question"]} for row in ROWS]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {
        "steps": 1,
        "tasks_per_step": 2,
        "episodes_per_task": 4,
        "policies": {"solver": {"model": str(model), "lora": {"rank": 2}}},
        "roles": {"solver": "solver"},
        "workflow": "single",
        "env": {"name": "rows", "train": "rows.jsonl", "test": "rows.jsonl"},
        "reward": {"name": "verifier", **reward},
        "algorithm": "grpo",
        "sampling": {"max_tokens": 4},
        "eval": {"tasks": 2},
        "device": "cpu",
    }


def rows_of(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_run_is_rewarded_by_one_verifier_in_its_process(
    verifier_run: Path, model_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[Verifier] = []
    load = Verifier.load
    monkeypatch.setattr(Verifier, "load", lambda *args, **named: loaded.append(load(*args, **named)) or loaded[-1])
    tree = config_of(tmp_path, model_folder("llama"), {"run": str(verifier_run), "labels": "number"})
    run = trained(tree, tmp_path)
    assert len(loaded) == 1
    episodes = EpisodeFile(tmp_path / "episodes" / "000001.jsonl.gz").rows()
    asked = [conversation(e["task"]["prompt"], e["answer"]) for e in episodes]
    assert [e["reward"] for e in episodes] == pytest.approx(loaded[0].score(asked), abs=1e-4)
    step, evaluation = rows_of(tmp_path)
    assert f"eval accuracy {evaluation['eval/accuracy']:.3f}" in plain_line(1, 1, evaluation)
    assert step["reward"] == step["verifier/score"] == pytest.approx(sum(e["reward"] for e in episodes) / 8)
    assert step["accuracy"] == sum(e["correct"] for e in episodes) / 8
    assert run.memory["model_hashes"] == {"reward": loaded[0].hash}


def test_tasks_without_answers_train_and_every_report_says_whose_figure_it_is(
    verifier_run: Path, model_folder: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = config_of(tmp_path, model_folder("llama"), {"run": str(verifier_run), "labels": "number"}, answers=False)
    config = written(tree, tmp_path)
    assert check_config(config, tmp_path / "config-as-given.yaml", 2, 2)
    shown = capsys.readouterr().out
    assert "rewards are scores of a verifier" in shown
    run = trained(tree, tmp_path)
    step, evaluation = rows_of(tmp_path)
    assert "accuracy" not in step and "verifier/auc" not in step and step["reward"] == step["verifier/score"]
    assert "verifier's reward" in plain_line(1, 1, step) and "verifier's eval" in plain_line(1, 1, evaluation)
    assert "verifier's reward" in rendered(reward_table({"team": [0.5]}, "verifier's "))
    held_out = evaluate(run.collector, run.held_out, 1, run.players(evaluating=True), 0)
    headers = [str(column.header) for column in report.evaluation("", {"team": held_out}).columns]
    assert "verifier's reward" in headers and "verifier's pass@1" in headers and "reward" not in headers
    assert "held-out verifier's reward" in rendered(*report.learning_curve({0: 0.1, 1: 0.2}, "verifier's "))


def rendered(*parts: Any) -> str:
    out = StringIO()
    Console(file=out, width=200).print(*parts)
    return out.getvalue()


def test_a_debate_is_trained_on_scores_with_critics_that_see_replies_and_its_metrics_are_described(
    verifier_run: Path, model_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    model, source = model_folder("llama"), {"run": str(verifier_run)}
    tree = config_of(tmp_path, model, source | {"labels": "number"})
    revise = "{others} Scores: {scores}. Answer again."
    tree |= {
        "policies": {name: {"model": str(model), "lora": {"rank": 2}} for name in ("left", "right")},
        "roles": {"left": "left", "right": "right"},
        "workflow": {"name": "debate", "roles": ["left", "right"], "grade": "each", "revise": revise}
        | {"verifier": source},
        "algorithm": {"name": "ppo", "gamma_turn": 0},
        "credit": {"name": "maporl", "alpha0": 0.1},
        "critics": {"team": {"sees": "reply", "model": str(model), "lora": {"rank": 2}}},
    }
    run = trained(tree, tmp_path)
    names = {described(key, tree) for row in rows_of(tmp_path) for key in row}
    assert {"debate/accuracy/<round>", "debate/score/<round>", "debate/improved/<round>", "verifier/score"} <= names
    assert names - set(DESCRIBED) == set()
    assert set(run.memory["model_hashes"]) == {"reward", "workflow"}


def test_rows_without_answers_are_refused_by_a_reward_that_compares(
    model_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    tree = config_of(tmp_path, model_folder("llama"), {}, answers=False) | {"reward": "number"}
    with pytest.raises(UserError, match="no field answer"):
        started(tree, tmp_path)


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        ({}, "give either run, a folder, or url, a server"),
        ({"run": ".", "url": "http://127.0.0.1:1"}, "give either run"),
        ({"run": "missing"}, "there is no folder missing"),
        ({"url": "127.0.0.1:8000"}, "is not an address"),
        ({"url": "http://127.0.0.1:1", "labels": "verifier"}, "cannot label its own answers"),
        ({"url": "http://127.0.0.1:1", "labels": "numbr"}, "did you mean number"),
        ({"url": "http://127.0.0.1:1", "mode": "scores"}, "did you mean score"),
    ],
)
def test_options_that_do_not_fit_are_reported(
    reward: dict[str, str], message: str, model_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        started(config_of(tmp_path, model_folder("llama"), reward), tmp_path)


def test_a_resumed_run_refuses_another_verifier(
    model_folder: Callable[[str], Path], verifier_run: Path, tmp_path: Path
) -> None:
    (tmp_path / "v").symlink_to(verifier_run)
    tree = config_of(tmp_path, model_folder("llama"), {"run": "v"}) | {"steps": 2}
    run = started(tree, tmp_path)
    run.config = written(tree | {"steps": 1}, tmp_path)
    train(run)
    again = started(tree, tmp_path)
    checkpoint.resume(again)
    (tmp_path / "v").unlink()
    tiny_verifier(tmp_path / "v", model_folder("llama"), seed=1)
    other = started(tree, tmp_path)
    with pytest.raises(BadCheckpoint, match="was trained with the verifier of hash"):
        checkpoint.resume(other)


# Scores of episodes over HTTP


@pytest.fixture
def short_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "BACKOFF", (0.05,))


def env_at(url: str, deadline: float = 30.0, **options: Any) -> Any:
    """An environment whose reward is the verifier at a URL, opened as `build` does it."""
    defaults = {"run": None, "url": url, "mode": "score", "threshold": 0.5, "labels": None}
    env = attach_reward(Questions(), "verifier", defaults | options, deadline)
    open_source(VerifierSource(url=url), "cpu", deadline)
    return env


TASKS = [Task(f"task {i}", f"Question {i}?", None) for i in range(4)]


def test_many_answers_are_one_call_and_equal_ones_are_asked_once() -> None:
    verifier = ByLength()
    with served(verifier) as url:
        episodes, _ = played(env_at(url), [*TASKS, *TASKS])
        assert [e.reward for e in episodes] == [0.002] * 8  # every reply is "ok"
        assert verifier.batches == [1, 4]  # the probe, then four different questions
        again, _ = played(env_at(url, mode="threshold", threshold=0.002), TASKS)
        assert [e.reward for e in again] == [1.0] * 4
        below, _ = played(env_at(url, mode="threshold", threshold=0.5), TASKS)
        assert [(e.reward, e.metrics["verifier/score"]) for e in below] == [(0.0, 0.002)] * 4


def test_an_answer_that_is_too_long_fails_alone(short_pause: None) -> None:
    with served(ByLength()) as url:
        open_source(VerifierSource(url=url), "cpu", 30.0)
        scores = scores_of(VerifierSource(url=url))

        async def ask() -> list[Any]:
            texts = ["a", "b" * 2000, "ccc"]
            return await asyncio.gather(*(scores.score("q", text) for text in texts), return_exceptions=True)

        first, long, third = asyncio.run(ask())
        assert (first, third) == (0.001, 0.003)
        assert isinstance(long, TooLong) and "2000 characters" in str(long)


@contextmanager
def process(port: int, model_hash: str = "abc", seconds: float = 0.0) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server in a process of its own, which can be killed."""
    words = [sys.executable, "-m", "tests.verifier_process", str(port), model_hash, str(seconds)]
    started = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert started.stdout is not None
        yield started, started.stdout.readline().split()[-1]
    finally:
        started.kill()
        started.wait()


def test_a_server_that_is_killed_and_restarted_while_it_scores_is_asked_again(short_pause: None) -> None:
    with process(0, seconds=1.0) as (first, url):
        wait_until_up(url)
        env = env_at(url)
        restarted: list[Any] = []

        def kill_and_restart() -> None:
            time.sleep(0.5)  # the answers wait 0.1 s for each other, then a second for their scores
            os.kill(first.pid, signal.SIGKILL)
            first.wait()
            restarted.append(process(int(url.rpartition(":")[2])))
            restarted[0].__enter__()

        thread = threading.Thread(target=kill_and_restart)
        thread.start()
        episodes, engine = played(env, TASKS)
        thread.join()
        restarted[0].__exit__(None, None, None)
    assert [(e.error, e.reward) for e in episodes] == [(None, 0.002)] * 4
    assert engine.asked == 4  # nothing is sampled again


def test_episodes_fail_with_one_line_when_the_server_stays_down(short_pause: None) -> None:
    with process(0) as (server, url):
        wait_until_up(url)
        env = env_at(url, deadline=1.0)
        server.kill()
        server.wait()
        started = time.monotonic()
        episodes, _ = played(env, TASKS)
        assert time.monotonic() - started < 20
    assert {e.error_kind for e in episodes} == {"VerifierDown"}
    assert all(e.error.startswith(f"verifier {url}: no connection") and "\n" not in e.error for e in episodes)
    assert rollout_metrics(episodes) == {"failed": 4.0, "failed/VerifierDown": 4.0}
    with pytest.raises(TooManyFailures, match=r"4 of 4 episodes failed \(4 VerifierDown\)") as raised:
        drop_failed(episodes, 0.5)
    assert "\n" not in str(raised.value)


def test_a_server_that_is_too_slow_fails_episodes_and_gives_no_zeros(short_pause: None) -> None:
    verifier = ByLength()
    with served(verifier) as url:
        env = env_at(url, deadline=0.5)
        verifier.seconds = 1.0
        episodes, _ = played(env, TASKS[:2])
    assert {e.error_kind for e in episodes} == {"VerifierTimeout"}
    assert all("no reply (within 0.5 s)" in e.error for e in episodes)
    assert "reward" not in rollout_metrics(episodes)


def test_a_model_that_changes_within_the_run_stops_it() -> None:
    verifier = ByLength(hash="a" * 64)
    with served(verifier) as url:
        env = env_at(url)
        assert played(env, TASKS[:1])[0][0].reward == 0.002
        verifier.hash = "b" * 64
        with pytest.raises(VerifierChanged, match="from hash aaaaaaaaaaaa to bbbbbbbbbbbb"):
            played(env, TASKS[1:])


def test_a_wrong_key_is_found_before_the_run_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(ByLength(), key="secret") as url:
        monkeypatch.setenv("COTERIE_VERIFIER_KEY", "wrong")
        with pytest.raises(WrongKey, match="set COTERIE_VERIFIER_KEY"):
            env_at(url)
        monkeypatch.setenv("COTERIE_VERIFIER_KEY", "secret")
        assert played(env_at(url), TASKS[:1])[0][0].reward == 0.002


@pytest.mark.parametrize("status", [429, 500, 503])
def test_an_overloaded_server_is_asked_again(status: int) -> None:
    replies = [status, status, 200]

    class Busy(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            content = json.dumps({"scores": [0.25], "hash": "abc", "error": "busy"}).encode()
            self.send_response(replies.pop(0))
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Busy) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        client = VerifierClient(f"http://127.0.0.1:{server.server_port}")
        assert client.score([("q", "a")], 30.0) == [0.25] and replies == []
        server.shutdown()


@pytest.mark.parametrize(
    "reply", [b"{}", b"[]", b"no", b'{"scores": [NaN]}', b'{"scores": [1.5]}', b'{"scores": [1, 1]}']
)
def test_a_reply_without_scores_is_an_error(reply: bytes) -> None:
    class Wrong(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *_: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Wrong) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        with pytest.raises(VerifierRefused, match="the reply has no 1 scores"):
            VerifierClient(f"http://127.0.0.1:{server.server_port}").score([("q", "a")], 30.0)
        server.shutdown()


# AUC beside the score


def episode(task: str, score: float, correct: bool | None) -> Episode:
    return Episode(task, Task(task, "?", "a"), 0, correct=correct, metrics={"verifier/score": score})


def test_the_auc_is_over_all_answers_and_within_tasks() -> None:
    """Between tasks the scores are perfect, within them they are worthless or inverted."""
    episodes = [
        *[episode("easy", 0.9, True), episode("easy", 0.8, True)],
        *[episode("mixed", 0.5, True), episode("mixed", 0.6, False)],
        *[episode("hard", 0.1, False), episode("hard", 0.2, None)],
    ]
    pairs = [(0.9, 1), (0.8, 1), (0.5, 1), (0.6, 0), (0.1, 0)]
    wins = [float(s > t) for s, right in pairs if right for t, other in pairs if not other]
    assert verifier_auc(episodes) == {"verifier/auc": sum(wins) / len(wins), "verifier/auc_within_task": 0.0}
    assert verifier_auc(episodes[:2]) == {}


def test_the_auc_uses_every_turn_that_has_a_score_and_a_label() -> None:
    turns = [Turn("r", "p", 0, n, (1,), (2,), (0.0,), 1.0, "", "end", score=n / 4, correct=n > 1) for n in range(4)]
    played = Episode("e", Task("t", "?", "a"), 0, turns, correct=True, metrics={"verifier/score": 0.0})
    assert verifier_auc([played]) == {"verifier/auc": 1.0, "verifier/auc_within_task": 1.0}
