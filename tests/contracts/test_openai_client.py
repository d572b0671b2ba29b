"""The official `openai` client against `coterie serve`: a real model, a real server on loopback."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from coterie.engines.native.decode import EagerDecoder
from coterie.rollout.playable import PlayableTeam
from coterie.serve.server import server
from coterie.training.build import for_inference
from coterie.types import Task
from tests.hangs import HANG
from tests.models import CONTEXT
from tests.runs import naming_config, trained
from tests.verifier_servers import running

ASK = [{"role": "user", "content": "Say your letter."}]


@pytest.fixture(scope="module")
def team(model_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> PlayableTeam:
    run = tmp_path_factory.mktemp("runs") / "pair"
    trained(naming_config(model_folder("llama"), steps=1, name="pair", sampling={"max_tokens": 24}), run)
    return for_inference(run)


@pytest.fixture(scope="module")
def url(team: PlayableTeam) -> Iterator[str]:
    with running(server(team, None, max_queue=64, max_body=100_000)) as url:
        yield url


@pytest.fixture(scope="module")
def client(url: str) -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def ask(client: OpenAI, model: str = "pair/left", **options: Any) -> Any:
    return client.chat.completions.create(model=model, **({"messages": ASK} | options))


def metric(url: str, name: str) -> float:
    lines = [line for line in httpx.get(f"{url}/metrics").text.splitlines() if line.startswith(name)]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def test_the_models_are_the_team_and_its_roles(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["pair", "pair/left", "pair/right"]
    assert client.models.retrieve("pair/left").id == "pair/left"
    with pytest.raises(openai.NotFoundError, match="did you mean pair/left"):
        ask(client, "pair/lefd")


def test_the_team_answers_as_its_workflow_does(client: OpenAI, team: PlayableTeam) -> None:
    played = asyncio.run(team.play(Task("t", "Say your letter.", None), seed=7))
    team.engine.engines["left"].driver = None  # of this test's loop
    reply = ask(client, "pair", seed=7)
    assert reply.choices[0].message.content == played.answer and reply.model == "pair"
    assert reply.usage.completion_tokens == sum(len(turn.response_ids) for turn in played.turns)
    assert reply.usage.prompt_tokens == sum(len(turn.prompt_ids) for turn in played.turns)


def test_an_earlier_message_is_none_of_the_teams_business(client: OpenAI) -> None:
    earlier = [{"role": "user", "content": "What?"}, {"role": "assistant", "content": "e"}]
    first, second = (ask(client, "pair", messages=m, seed=1) for m in (ASK, [*earlier, *ASK]))
    assert first.choices == second.choices and first.usage == second.usage
    longer = ask(client, messages=[*earlier, *ASK])  # a role reads the whole conversation
    assert longer.usage.prompt_tokens > ask(client).usage.prompt_tokens


def test_a_stream_has_the_same_text_tokens_and_usage_as_the_whole(client: OpenAI) -> None:
    options: dict[str, Any] = {"seed": 5, "temperature": 1.0, "logprobs": True}
    whole = ask(client, **options)
    chunks = list(ask(client, stream=True, stream_options={"include_usage": True}, **options))
    deltas = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert "".join(one.delta.content or "" for one in deltas) == whole.choices[0].message.content
    tokens = [token for one in deltas if one.logprobs for token in one.logprobs.content]
    assert tokens == whole.choices[0].logprobs.content and len(tokens) > 3
    assert all(token.logprob <= 0 for token in tokens)
    assert deltas[-1].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].usage == whole.usage and len(deltas) > 4
    assert "".join(c.choices[0].delta.content or "" for c in ask(client, "pair", stream=True, seed=2) if c.choices) == (
        ask(client, "pair", seed=2).choices[0].message.content
    )


def test_the_seed_decides_what_is_sampled(client: OpenAI) -> None:
    texts = [ask(client, seed=seed, temperature=1.0).choices[0].message.content for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    greedy = {ask(client).choices[0].message.content for _ in range(2)}  # as the team is evaluated
    assert len(greedy) == 1


def test_a_stop_string_ends_the_reply_and_max_tokens_cuts_it(client: OpenAI) -> None:
    text = ask(client).choices[0].message.content
    stop = text[4:6]
    stopped = ask(client, stop=[stop, "no such text"])
    assert stopped.choices[0].message.content == text[: text.find(stop)]
    assert stopped.choices[0].finish_reason == "stop"
    parts = [chunk.choices[0].delta.content or "" for chunk in ask(client, stop=stop, stream=True)]
    assert "".join(parts) == text[: text.find(stop)]
    endless = ask(client, max_tokens=10**9, temperature=1.0, seed=4)  # ends with the context, at the latest
    assert endless.usage.total_tokens <= CONTEXT
    short = ask(client, max_completion_tokens=2)
    assert short.choices[0].finish_reason == "length" and short.usage.completion_tokens == 2


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "n": ({"n": 2}, "n: not supported"),
    "tools": ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools: not supported"),
    "top_logprobs": ({"logprobs": True, "top_logprobs": 3}, "top_logprobs: not supported"),
    "presence_penalty": ({"presence_penalty": 0.5}, "presence_penalty"),
    "temperature": ({"temperature": 3.0}, "temperature"),
    "messages": ({"messages": []}, "at least 1 item"),
    "messages.0.role": ({"messages": [{"role": "tool", "content": "x"}]}, "role"),
    "invented": ({"extra_body": {"invented": 1}}, "invented: Extra inputs"),
}


@pytest.mark.parametrize("param", BAD)
def test_what_is_not_supported_is_refused_by_name(param: str, client: OpenAI) -> None:
    options, message = BAD[param]
    with pytest.raises(openai.BadRequestError, match=message) as refused:
        ask(client, **options)
    assert refused.value.param == param and refused.value.type == "invalid_request_error"
    neutral = {"n": 1, "presence_penalty": 0, "top_logprobs": None, "tools": []}
    assert ask(client, max_tokens=1, extra_body={param: neutral[param]} if param in neutral else {}).choices


def test_the_team_refuses_what_only_a_role_can_do(client: OpenAI) -> None:
    system = [{"role": "system", "content": "Be brief."}, *ASK]
    for options, param in (({"logprobs": True}, "logprobs"), ({"messages": system}, "messages")):
        with pytest.raises(openai.BadRequestError, match="ask a role, such as pair/left") as refused:
            ask(client, "pair", **options)
        assert refused.value.param == param
        assert ask(client, max_tokens=1, **options).choices


@pytest.mark.parametrize("model", ["pair", "pair/left"])
def test_a_prompt_beyond_the_context_is_a_bad_request(model: str, client: OpenAI) -> None:
    long = [{"role": "user", "content": "word " * CONTEXT}]
    with pytest.raises(openai.BadRequestError, match=f"its context is {CONTEXT}") as refused:
        ask(client, model, messages=long)
    assert refused.value.code == "context_length_exceeded"


def test_malformed_bodies_are_refused_in_openais_form(url: str) -> None:
    post, json_type = f"{url}/v1/chat/completions", {"Content-Type": "application/json"}
    for body, headers, status in (
        (b"{", json_type, 400),
        (b"null", json_type, 400),
        (b"\xff", json_type, 400),
        (b"[" * 50_000, json_type, 400),
        (b" " * 200_000, json_type, 413),
        (json.dumps({"model": "pair/left", "messages": ASK * 1025}).encode(), json_type, 400),
        (json.dumps({"model": "pair", "messages": ASK}).encode(), {"Content-Type": "text/plain"}, 415),
        (b"{}", json_type | {"Host": "evil.example"}, 403),
        (b"{}", json_type | {"Origin": "https://evil.example"}, 403),
    ):
        reply = httpx.post(post, content=body, headers=headers)
        assert reply.status_code == status, body[:20]
        assert set(reply.json()["error"]) == {"message", "type", "param", "code"}
    assert httpx.get(f"{url}/v1/nothing").status_code == 404
    assert httpx.get(f"{url}/health", headers={"Host": "localhost:1"}).json()["model"] == "pair"


def test_a_wrong_key_is_refused_and_health_needs_none(team: PlayableTeam) -> None:
    with running(server(team, "secret"), key="secret") as url:
        for wrong in ("wrong", "sécret"):
            reply = httpx.get(f"{url}/v1/models", headers={"Authorization": f"Bearer {wrong}".encode()})
            assert reply.status_code == 401 and reply.json()["error"]["code"] == "invalid_api_key"
        with pytest.raises(openai.AuthenticationError, match="needs a key"):
            ask(OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0))
        assert ask(OpenAI(base_url=f"{url}/v1", api_key="secret"), max_tokens=1).choices
        assert httpx.get(f"{url}/health").status_code == 200
        assert httpx.get(f"{url}/metrics").status_code == 401


def test_64_requests_at_once_share_their_steps(url: str, client: OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    """And another one more than the queue holds is refused, to be tried again."""
    steps, decode = [], EagerDecoder.decode
    monkeypatch.setattr(EagerDecoder, "decode", lambda *a: steps.append(len(a[1])) or decode(*a))  # type: ignore[func-returns-value]

    async def all_at_once() -> list[Any]:
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=8) as many:
            return await asyncio.gather(
                *(
                    many.chat.completions.create(
                        model="pair/right", messages=ASK, seed=seed, temperature=1.0, max_tokens=60
                    )
                    for seed in range(64)
                )
            )

    replies = asyncio.run(all_at_once())
    lengths = [reply.usage.completion_tokens for reply in replies]
    assert len({reply.choices[0].message.content for reply in replies}) > 32
    assert sum(steps) >= sum(lengths) and len(steps) < 2.5 * max(lengths)
    alone = ask(client, "pair/right", seed=3, temperature=1.0, max_tokens=60)
    assert alone.choices[0].message.content == replies[3].choices[0].message.content


LONG: dict[str, Any] = {"max_tokens": 400, "temperature": 1.0, "messages": ASK}  # time to leave in the middle


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_row(
    stream: bool, url: str, team: PlayableTeam, client: OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = EagerDecoder.decode
    monkeypatch.setattr(EagerDecoder, "decode", lambda *a: time.sleep(0.02) or decode(*a))  # type: ignore[func-returns-value]
    left = metric(url, "coterie_serve_cancelled_total")
    if stream:
        talking = ask(client, stream=True, **LONG)
        next(talking), next(talking)
        talking.close()
    else:
        with pytest.raises(openai.APITimeoutError):
            ask(client.with_options(timeout=0.3), **LONG)
    end = time.monotonic() + 5
    while metric(url, "coterie_serve_running") or team.engine.engines["left"].slots.running:  # type: ignore[attr-defined]
        assert time.monotonic() < end
        time.sleep(0.01)
    assert metric(url, "coterie_serve_cancelled_total") == left + 1


def test_a_full_queue_is_429_and_a_busy_engine_does_not_delay_health(
    team: PlayableTeam, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode, released = EagerDecoder.decode, threading.Event()
    monkeypatch.setattr(EagerDecoder, "decode", lambda *a: released.wait(HANG) and decode(*a))
    with running(server(team, None, max_queue=2)) as url, ThreadPoolExecutor(3) as pool:
        client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        busy = [pool.submit(ask, client, **LONG | {"max_tokens": 20}) for _ in range(2)]
        while metric(url, "coterie_serve_running") < 2:
            time.sleep(0.01)
        with pytest.raises(openai.RateLimitError, match="at most 2 may"):
            ask(client)
        assert httpx.get(f"{url}/health").status_code == 200
        assert not any(one.done() for one in busy)
        released.set()
        assert all(one.result().choices for one in busy)


def test_too_many_connections_are_refused_in_openais_form(
    url: str, client: OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coterie.web.server.MAX_CONNECTIONS", 8)
    where = ("127.0.0.1", int(url.rpartition(":")[2]))
    idle = [socket.create_connection(where) for _ in range(9)]
    try:
        with pytest.raises(openai.InternalServerError, match="at most 8 may; try again") as refused:
            ask(client)
        assert refused.value.status_code == 503 and refused.value.code == "too_many_connections"
        assert refused.value.type == "server_error" and refused.value.param is None
    finally:
        [one.close() for one in idle]
    assert ask(client.with_options(max_retries=4), max_tokens=1).choices


def test_a_workflow_that_fails_is_told_in_one_line_and_the_server_lives(
    team: PlayableTeam, url: str, client: OpenAI, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(type(team.workflow), "run", None)
        with pytest.raises(openai.InternalServerError, match=r"workflow failed on this message: TypeError: 'NoneType'"):
            ask(client, "pair")
        (line,) = capfd.readouterr().err.splitlines()
        assert re.fullmatch(r"the workflow failed .* \(collector\.py, line \d+\)", line)
        events = httpx.post(f"{url}/v1/chat/completions", json={"model": "pair", "messages": ASK, "stream": True}).text
        assert '"type": "server_error"' in events and events.endswith("data: [DONE]\n\n")
        assert capfd.readouterr().err.splitlines() == [line]
    assert ask(client, "pair").choices


def test_the_python_of_the_page_runs(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "serving.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    exec(code.replace("http://127.0.0.1:8000", url).replace('"demo"', '"pair"'), {})
    assert capsys.readouterr().out.strip()


def serving(run: Path, port: int) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "coterie", "serve", str(run), "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().split()[-1].removesuffix("/v1")


def all_accepted(url: str, count: int, submit: Callable[[], Any]) -> list[Any]:
    """Send requests at once, and wait until the server has each: some are running then, and some may be answered."""
    name = 'coterie_serve_requests_total{path="/v1/chat/completions"'
    answered, end = metric(url, name), time.monotonic() + 60
    sent = [submit() for _ in range(count)]
    while metric(url, name) - answered + (running := metric(url, "coterie_serve_running")) < count:
        assert time.monotonic() < end
        time.sleep(0.005)
    assert running > 0
    return sent


@pytest.mark.slow
def test_a_thousand_requests_and_what_a_signal_and_a_kill_do_to_them(
    model_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    """SIGTERM answers what was accepted; after a kill clients get an error, and a new server replies as the old one."""
    trained(naming_config(model_folder("llama"), steps=1, name="pair"), tmp_path / "pair")
    process, url = serving(tmp_path / "pair", 0)
    try:
        client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=8)
        once = client.with_options(max_retries=0)
        with ThreadPoolExecutor(48) as pool:
            replies = list(pool.map(lambda n: ask(client, ("pair", "pair/left")[n % 2], seed=n), range(1000)))
        assert all(reply.choices[0].finish_reason in ("stop", "length") for reply in replies)
        assert metric(url, "coterie_serve_requests_total") >= 1000 and metric(url, "coterie_serve_running") == 0
        with ThreadPoolExecutor(64) as pool:
            late = all_accepted(url, 64, lambda: pool.submit(ask, once, **LONG))
            process.send_signal(signal.SIGTERM)
            assert all(one.result().choices[0].finish_reason in ("stop", "length") for one in late)
        assert process.wait(30) == -signal.SIGTERM
        process, again = serving(tmp_path / "pair", int(url.rpartition(":")[2]))
        assert again == url and ask(client, seed=0).choices == ask(client, seed=0).choices
        with ThreadPoolExecutor(64) as pool:
            lost = all_accepted(url, 64, lambda: pool.submit(ask, once, **LONG))
            process.kill()
            told = [one.exception() for one in lost]
        assert {type(error) for error in told} <= {openai.APIConnectionError, type(None)} and any(told)
        process.wait(10)
        process, again = serving(tmp_path / "pair", int(url.rpartition(":")[2]))
        assert ask(client, seed=1).choices == replies[1].choices
    finally:
        process.kill()
