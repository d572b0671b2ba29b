"""Roles that a remote endpoint or a person plays: by text, without token ids, never trained on."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from coterie.config import ConfigError, load
from coterie.config.conflicts import check_conflicts
from coterie.engines import remote
from coterie.engines.human import HumanPlayer, InputEnded
from coterie.engines.remote import Endpoint, EndpointDown, EndpointRefused, EndpointUnusable, RemotePlayer
from coterie.engines.text_player import TextReply
from coterie.episode_rows import read_episodes
from coterie.errors import StopsRun
from coterie.rewards import GraderFailed, make_grader
from coterie.serve.server import server
from coterie.training.build import for_inference
from coterie.types import Sampling, Task
from tests.commands import stdout_of
from tests.runs import naming_config, trained, written
from tests.verifier_servers import running

Folder = Callable[[str], Path]
ASK = [{"role": "user", "content": "Say it."}]


@pytest.fixture(scope="module")
def served(model_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Our own server, with a key."""
    run = tmp_path_factory.mktemp("runs") / "pair"
    trained(naming_config(model_folder("llama"), steps=1, name="pair"), run)
    with running(server(for_inference(run), "secret"), key="secret") as url:
        yield f"{url}/v1"


def remote_tree(model: Path, url: str, **policy: Any) -> dict[str, Any]:
    tree = naming_config(model, steps=2, eval={"tasks": 2})
    tree["policies"]["right"] = {"api": url, "model": "pair/right", "key_env": "A_TEST_KEY"} | policy
    return tree


def test_a_team_trains_beside_a_remote_role_that_is_not_trained(
    model_folder: Folder, served: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_TEST_KEY", "secret")
    limits = {"api_concurrency": 4, "api_rate": 60_000, "api_deadline": 50}
    run = trained(remote_tree(model_folder("llama"), served, **limits), tmp_path)
    endpoint = run.collector.text_players["right"].endpoint
    assert (endpoint.concurrency, endpoint.rate, endpoint.deadline) == (4, 60_000, 50)
    assert list(run.learners) == ["left"] and run.learners["left"].version > 0
    (first, *_) = [e for e in read_episodes(tmp_path / "episodes" / "000001.jsonl.gz") if e.error is None]
    left, right = first.turns
    assert left.trainable and left.response_ids and left.api_tokens is None
    assert not right.trainable and right.prompt_ids == right.response_ids == () and right.text
    assert right.api_tokens is not None and min(right.api_tokens) > 0
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    episodes = read_episodes(tmp_path / "episodes" / "000001.jsonl.gz")
    spent = sum(turn.api_tokens[0] for e in episodes for turn in e.turns if turn.api_tokens)
    assert next(row for row in rows if row["step"] == 1 and "reward" in row)["api_tokens_in/right"] == spent
    assert "secret" not in "".join(path.read_text() for path in tmp_path.rglob("*.yaml"))
    assert "right" in stdout_of("eval", tmp_path)


def test_a_served_team_may_have_a_remote_role(
    model_folder: Folder, served: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_TEST_KEY", "secret")
    config = tmp_path / "c.yaml"
    config.write_text(json.dumps(remote_tree(model_folder("llama"), served)))
    team = for_inference(config)
    episode = asyncio.run(team.play(Task("t", "Say it.", None)))
    assert [turn.role for turn in episode.turns] == ["left", "right"] and team.own_roles == ["left"]


def endpoint(replies: list[tuple[int, Any]]) -> tuple[ThreadingHTTPServer, list[Any]]:
    """An endpoint that gives these replies in order, the last one for ever; and the bodies that it got."""
    bodies: list[Any] = []

    class Scripted(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            status, value = replies.pop(0) if len(replies) > 1 else replies[0]
            data = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None: ...

    running = ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    return running, bodies


GOOD = (200, {"choices": [{"message": {"content": "4"}, "finish_reason": "length"}], "usage": {"prompt_tokens": 7}})
BUSY = (429, {"error": {"message": "slow down"}})


def asked(*replies: tuple[int, Any], deadline: float = 5.0, **limits: Any) -> tuple[TextReply, list[Any]]:
    running, bodies = endpoint(list(replies))
    player = RemotePlayer(Endpoint(f"http://127.0.0.1:{running.server_port}/v1", "m", deadline=deadline, **limits))
    try:
        return asyncio.run(player.reply(ASK, 2**40 + 5, Sampling(9, 0.5, 0.9, stop=("x",)))), bodies
    finally:
        running.shutdown()


def test_an_endpoint_is_asked_again_until_it_replies() -> None:
    reply, bodies = asked(BUSY, (503, "no"), GOOD)
    assert reply == TextReply("4", "length", 7, 0) and len(bodies) == 3
    assert bodies[0] == {
        "model": "m",
        "messages": ASK,
        "max_tokens": 9,
        "temperature": 0.5,
        "seed": 5,
        "top_p": 0.9,
        "stop": ["x"],
    }


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (BUSY, EndpointDown),
        ((401, {"error": {"message": "who?"}}), EndpointUnusable),
        ((404, {"error": "no such model"}), EndpointUnusable),
        ((400, {"error": {"message": "too long"}}), EndpointRefused),
        ((200, {"choices": []}), EndpointRefused),
        ((200, "text"), EndpointRefused),
    ],
)
def test_an_endpoint_that_does_not_reply_is_an_error_in_time(reply: tuple[int, Any], error: type[Exception]) -> None:
    started = time.monotonic()
    with pytest.raises(error):
        asked(reply, deadline=0.5)
    assert time.monotonic() - started < 30  # the default deadline is 60


def test_the_rate_is_kept() -> None:
    running, bodies = endpoint([GOOD])
    player = RemotePlayer(Endpoint(f"http://127.0.0.1:{running.server_port}/v1", "m", rate=1200))

    async def many() -> None:
        await asyncio.gather(*(player.reply(ASK, i, Sampling()) for i in range(6)))

    started = time.monotonic()
    asyncio.run(many())
    assert time.monotonic() - started >= 0.25 and len(bodies) == 6
    running.shutdown()


def test_a_wait_for_the_rate_is_no_part_of_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "BACKOFF", (0.01, 0.01))
    reply, bodies = asked(BUSY, BUSY, GOOD, deadline=2.0, rate=24)  # 2.5 s between two requests
    assert (reply.text, len(bodies)) == ("4", 3)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ({"api": "host/v1"}, "is not an address"),
        ({"api": "http://h/v1", "model": "demo"}, "name the model that the endpoint serves"),
        ({"api": "http://h/v1", "frozen": False}, "cannot be trained"),
        ({"api": "http://h/v1", "lr": 0.1}, "has no weights here"),
        ({"api": "http://h/v1", "human": True}, "not both"),
        ({"human": True}, "not in training"),
        ({"key_env": "X"}, "which `api` would name"),
    ],
)
def test_a_policy_without_weights_takes_no_options_of_weights(
    policy: dict[str, Any], message: str, model_folder: Folder, tmp_path: Path
) -> None:
    tree = naming_config(model_folder("llama"))
    tree["policies"]["right"] = {"model": "m"} | policy if "model" not in policy else policy
    with pytest.raises(ConfigError, match=message):
        check_conflicts(written(tree, tmp_path))


def test_token_critics_and_unset_keys_are_refused(model_folder: Folder, tmp_path: Path) -> None:
    tree = remote_tree(model_folder("llama"), "http://127.0.0.1:1/v1")
    with pytest.raises(ConfigError, match="turns of right have no tokens, and Ppo values tokens"):
        check_conflicts(written(tree | {"algorithm": "ppo"}, tmp_path))
    assert "A_TEST_KEY" not in os.environ
    with pytest.raises(ConfigError, match="A_TEST_KEY is not set"):
        trained(tree, tmp_path)


def test_a_person_plays_a_role_in_an_evaluation(
    model_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = naming_config(model_folder("llama"), eval={"tasks": 2})
    tree["policies"]["right"] = {"human": True}
    (tmp_path / "c.yaml").write_text(json.dumps(tree))
    prompts: list[str] = []
    monkeypatch.setattr(
        HumanPlayer, "_ask", lambda self, messages: prompts.append(messages) or TextReply("a", "end", 0, 0)
    )
    shown = stdout_of("eval", tmp_path / "c.yaml", "--no-baselines")
    assert len(prompts) == 2 and "right" in shown
    assert load(tmp_path / "c.yaml").policies["right"].frozen


def test_a_person_who_leaves_ends_the_evaluation() -> None:
    def left(prompt: str) -> str:
        raise EOFError

    with pytest.raises(InputEnded, match=r"policies.me: no more input"):
        asyncio.run(HumanPlayer("me", left).reply(ASK, 0, Sampling()))
    assert issubclass(InputEnded, StopsRun)


def test_a_person_reads_the_messages_and_types_the_reply(capsys: pytest.CaptureFixture[str]) -> None:
    reply = asyncio.run(HumanPlayer("me", lambda prompt: f"{prompt}42").reply(ASK, 0, Sampling()))
    assert reply.text == "me> 42" and "user: Say it." in capsys.readouterr().out


@pytest.fixture
def no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COTERIE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("coterie.rewards.judge._known", {})
    return tmp_path / "cache"


def test_a_judge_grades_by_its_last_number_and_is_asked_once(no_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running, bodies = endpoint([(200, {"choices": [{"message": {"content": "I say 7 of 10: 8"}}]})])
    options = {"model": "big", "api": f"http://127.0.0.1:{running.server_port}/v1", "key_env": None, "max_tokens": 16}
    grade = make_grader("judge", options | {"rubric": "{question} {answer} of {scale}", "scale": 10.0}, 5.0)
    tasks = [Task("a", "1 + 1?", None), Task("b", "1 + 1?", None), Task("c", "2 + 2?", None)]
    assert [asyncio.run(grade("2", None, task)) for task in tasks] == [0.8] * 3
    assert [body["messages"][0]["content"] for body in bodies] == ["1 + 1? 2 of 10", "2 + 2? 2 of 10"]
    monkeypatch.setattr("coterie.rewards.judge._known", {})
    assert asyncio.run(grade("2", None, tasks[0])) == 0.8 and len(bodies) == 2  # from the disk
    assert not grade.compares
    running.shutdown()


def test_a_judge_without_a_number_gives_no_grade(no_cache: Path) -> None:
    running, _ = endpoint([(200, {"choices": [{"message": {"content": "fine"}}]})])
    options = {"model": "big", "api": f"http://127.0.0.1:{running.server_port}/v1"}
    with pytest.raises(GraderFailed, match="without a number: 'fine'"):
        asyncio.run(make_grader("judge", options, 5.0)("2", "2", Task("a", "1 + 1?", "2")))
    with pytest.raises(ValueError, match=r"rubric: does not use \{answer\}"):
        make_grader("judge", options | {"rubric": "Grade it."}, 5.0)
    running.shutdown()


def test_a_team_is_rewarded_by_a_judge_in_this_process(
    model_folder: Folder, tmp_path: Path, no_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = "".join(json.dumps({"question": f"{n}?", "answer": n}) + "\n" for n in "abcd")
    (tmp_path / "rows.jsonl").write_text(rows)
    tree = naming_config(model_folder("llama"), steps=1, eval={"tasks": 1})
    tree["env"] = {"name": "rows", "train": "rows.jsonl", "test": "rows.jsonl"}
    tree["reward"] = {"name": "judge", "model": str(model_folder("llama"))}
    monkeypatch.setattr("coterie.rewards.judge.last_number", lambda text: len(text))
    trained(tree, tmp_path)
    grades = [json.loads(path.read_text()) for path in no_cache.rglob("*.json")]
    files = [*(tmp_path / "episodes").iterdir(), *(tmp_path / "eval").iterdir()]
    played = [e for file in files for e in read_episodes(file) if e.error is None]
    assert len(grades) == len({(e.task.prompt, e.answer) for e in played}) > 1
    assert {round(e.reward, 6) for e in played} <= {round(min(1.0, grade["grade"] / 10), 6) for grade in grades}
