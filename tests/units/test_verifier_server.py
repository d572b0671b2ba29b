"""The server of a verifier: a real model, real connections on loopback."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from coterie.rewards.verifier import TooLong
from coterie.verifier.model import Verifier
from coterie.verifier.requests import MOST, conversation
from coterie.verifier.scoring_thread import QueueFull, ScoringThread
from tests.commands import coterie
from tests.verifier_process import ByLength
from tests.verifier_servers import served, tiny_verifier, wait_until_up

CONNECTIONS = 32
GOOD = {"answers": [{"question": "1 + 1?", "answer": "2"}]}


@pytest.fixture(scope="module")
def verifier(model_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Verifier:
    return Verifier.load(tiny_verifier(tmp_path_factory.mktemp("verifier"), model_folder("llama")))


@pytest.fixture(scope="module")
def url(verifier: Verifier) -> Iterator[str]:
    with served(verifier, max_body=200_000) as url:
        yield url


def chat(*turns: tuple[str, Any]) -> list[dict[str, Any]]:
    return [{"role": role, "content": content} for role, content in turns]


def test_predict_is_maporls_format_and_score_is_typed(url: str, verifier: Verifier) -> None:
    pairs = [("What is 12 + 30?", "The answer is 42."), ("What is 7 + 8?", "15")]
    asked = {"query_responses": [chat(("user", q), ("assistant", a)) for q, a in pairs]}
    predicted = httpx.post(f"{url}/predict", json=asked).json()
    assert list(predicted) == ["result"]
    scored = httpx.post(f"{url}/v1/score", json={"answers": [{"question": q, "answer": a} for q, a in pairs]}).json()
    expected = verifier.score([conversation(q, a) for q, a in pairs])
    assert predicted["result"] == pytest.approx(expected, abs=1e-6) == scored["scores"]
    assert scored["hash"] == verifier.hash and expected[0] != expected[1]


def test_health_has_the_hash_and_metrics_count(url: str, verifier: Verifier) -> None:
    health = httpx.get(f"{url}/health").json()
    assert health == {"status": "ok", "hash": verifier.hash, "context": verifier.context}
    before = numbers(httpx.get(f"{url}/metrics").text)
    httpx.post(f"{url}/v1/score", json=GOOD)
    httpx.post(f"{url}/v1/score", content=b"{")
    httpx.get(f"{url}/anything")
    after = numbers(httpx.get(f"{url}/metrics").text)
    risen = {name: after[name] - before.get(name, 0) for name in after if after[name] != before.get(name, 0)}
    prefix = "coterie_verifier_"
    assert risen[f'{prefix}requests_total{{path="/v1/score",status="200"}}'] == 1
    assert risen[f'{prefix}requests_total{{path="/v1/score",status="422"}}'] == 1
    assert risen[f'{prefix}requests_total{{path="other",status="404"}}'] == 1
    assert risen[f"{prefix}conversations_total"] == risen[f"{prefix}batches_total"] == 1
    assert after[f'{prefix}seconds_bucket{{le="+Inf"}}'] == after[f"{prefix}seconds_count"]
    assert after[f'{prefix}info{{hash="{verifier.hash}"}}'] == 1


def numbers(text: str) -> dict[str, float]:
    """Prometheus text as numbers by name; every line must be valid."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            match = re.fullmatch(r'([a-z_]+(?:\{\w+="[^"]*"(?:,\w+="[^"]*")*\})?) ([\d.]+)', line)
            assert match, line
            found[match[1]] = float(match[2])
    return found


def body(value: Any) -> bytes:
    return json.dumps(value).encode()


def predict(*conversations: Any) -> tuple[str, bytes, int, str]:
    return "/predict", body({"query_responses": list(conversations)}), 422, ""


TWO = chat(("user", "1 + 1?"), ("assistant", "2"))
LONG = "The answer is 42. " * 500
BAD: dict[str, tuple[str, bytes, int, str]] = {
    "an empty body": ("/predict", b"", 422, "not JSON"),
    "half a body": ("/predict", b'{"query_responses": [[', 422, "not JSON"),
    "not JSON": ("/v1/score", b"answers=1", 422, "not JSON"),
    "not UTF-8": ("/v1/score", b'{"answers": "\xff"}', 422, "not UTF-8: byte 0xff"),
    "nested without end": ("/v1/score", b"[" * 100_000, 422, "not JSON"),
    "null": ("/v1/score", b"null", 422, "valid dictionary"),
    "a list": ("/v1/score", b"[]", 422, "valid dictionary"),
    "a number": ("/predict", b"7", 422, "valid dictionary"),
    "an empty object": ("/v1/score", b"{}", 422, "answers: Field required"),
    "another endpoint's body": ("/predict", body(GOOD), 422, "query_responses: Field required"),
    "an unknown key": ("/v1/score", body(GOOD | {"model": "x"}), 422, "model: Extra inputs"),
    "no answers": ("/v1/score", body({"answers": []}), 422, "at least 1 item"),
    "too many answers": ("/v1/score", body({"answers": GOOD["answers"] * (MOST + 1)}), 422, f"at most {MOST}"),
    "an answer without a question": ("/v1/score", body({"answers": [{"answer": "2"}]}), 422, "answers.0.question"),
    "an empty question": ("/v1/score", body({"answers": [{"question": "", "answer": "2"}]}), 422, "at least 1 item"),
    "a number as an answer": ("/v1/score", body({"answers": [{"question": "q", "answer": 2}]}), 422, "valid string"),
    "null as an answer": ("/v1/score", body({"answers": [{"question": "q", "answer": None}]}), 422, "valid string"),
    "a lone surrogate": ("/v1/score", b'{"answers": [{"question": "q", "answer": "\\ud800"}]}', 422, "surrogate"),
    "an answer beyond the context": ("/v1/score", body({"answers": [{"question": "q", "answer": LONG}]}), 422, "512"),
    "no conversations": (*predict()[:3], "at least 1 item"),
    "an empty conversation": (*predict([])[:3], "query_responses.0"),
    "a question alone": (*predict(TWO[:1])[:3], "query_responses.0"),
    "an answer alone": (*predict(TWO[1:])[:3], "query_responses.0"),
    "a conversation that ends with the user": (*predict([*TWO, TWO[0]])[:3], "the last message must be"),
    "no user": (*predict(chat(("system", "s"), ("assistant", "2")))[:3], "no user message"),
    "an unknown role": (*predict(chat(("tool", "q"), ("assistant", "2")))[:3], "query_responses.0.0.role"),
    "a message without content": (*predict([{"role": "user"}, TWO[1]])[:3], "content: Field required"),
    "content in parts": (*predict(chat(("user", [{"type": "text"}]), ("assistant", "2")))[:3], "valid string"),
    "a text instead of messages": (*predict("1 + 1? 2")[:3], "valid list"),
    "the second of two": (*predict(TWO, TWO[:1])[:3], "query_responses.1"),
    "a conversation beyond the context": (*predict(chat(("user", LONG), ("assistant", "2")))[:3], "conversation 1: "),
    "a body that is too large": ("/v1/score", b" " * 300_000, 413, "200,000 bytes"),
    "an unknown path": ("/v2/score", body(GOOD), 404, "Not Found"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_payload_is_refused_with_a_message(name: str, url: str) -> None:
    path, content, status, message = BAD[name]
    response = httpx.post(url + path, content=content)
    code = {"code": "context_length_exceeded"} if "beyond the context" in name else {}
    assert response.status_code == status and response.json() == {"error": response.json()["error"], **code}
    assert message in response.json()["error"], response.text


def test_there_are_thirty_bad_payloads_and_the_server_survives_them(url: str) -> None:
    assert len(BAD) >= 30
    assert httpx.get(f"{url}/predict").status_code == 405
    assert httpx.post(f"{url}/v1/score", json=GOOD).status_code == 200


def test_a_bad_conversation_does_not_fail_the_others_of_its_batch() -> None:
    verifier = ByLength(seconds=0.2)
    thread = ScoringThread(verifier)
    thread.submit([conversation("q", "first")])
    while not verifier.batches:  # the others gather while the first is scored
        time.sleep(0.005)
    futures = [thread.submit([conversation("q", "a" * length)]) for length in (1, 2000, 3)]
    assert futures[0].result() == [0.001] and futures[2].result() == [0.003]
    with pytest.raises(TooLong, match="conversation 1: 2000 characters"):
        futures[1].result()
    assert verifier.batches == [1, 3, 1, 1, 1]
    thread.close()


def test_requests_that_arrive_together_are_one_batch_and_a_single_one_waits_20_ms() -> None:
    verifier = ByLength()
    thread = ScoringThread(verifier)
    started = time.monotonic()
    assert thread.submit([conversation("q", "alone")]).result() == [0.005]
    assert time.monotonic() - started >= 0.02
    futures = [thread.submit([conversation("q", "a" * n)]) for n in range(10)]
    assert [future.result() for future in futures] == [[n / 1000] for n in range(10)]
    assert len(verifier.batches) < 11 and sum(verifier.batches) == 11
    thread.close()


def test_a_full_queue_is_refused_and_what_waits_is_scored() -> None:
    thread = ScoringThread(ByLength(seconds=0.1), limit=3)
    futures = [thread.submit([conversation("q", "a")] * 2)]
    with pytest.raises(QueueFull, match="2 conversations are waiting, and at most 3 may"):
        thread.submit([conversation("q", "a")] * 2)
    futures.append(thread.submit([conversation("q", "b")]))
    thread.close()
    assert all(future.done() for future in futures) and thread.waiting == 0
    with pytest.raises(RuntimeError, match="closed"):
        thread.submit([conversation("q", "a")])


def test_a_full_queue_is_429_and_the_next_try_succeeds() -> None:
    whole = {"answers": GOOD["answers"] * MOST}
    with served(ByLength(seconds=0.3), max_queue=MOST) as url, ThreadPoolExecutor(4) as pool:
        statuses = [r.status_code for r in pool.map(lambda _: httpx.post(f"{url}/v1/score", json=whole), range(4))]
        assert sorted(set(statuses)) == [200, 429]
        assert httpx.post(f"{url}/v1/score", json=whole).status_code == 200


@pytest.mark.parametrize("requests", [200, pytest.param(1000, marks=pytest.mark.slow)])
def test_many_requests_over_32_connections_lose_none_and_share_batches(
    requests: int, verifier: Verifier, capsys: pytest.CaptureFixture[str]
) -> None:
    async def post(client: httpx.AsyncClient, numbers: range) -> list[httpx.Response]:
        """One after the other, as a client on one connection does."""
        texts = [f"The answer is {n}." for n in numbers]
        return [await client.post("/v1/score", json={"answers": [{"question": "n?", "answer": t}]}) for t in texts]

    async def post_all(url: str, connections: int, count: int) -> tuple[list[httpx.Response], float]:
        limits = httpx.Limits(max_connections=connections)
        async with httpx.AsyncClient(base_url=url, limits=limits, timeout=120) as client:
            shares = [range(start, count, connections) for start in range(connections)]
            started = time.monotonic()
            parts = await asyncio.gather(*(post(client, share) for share in shares))
        responses = {n: r for share, part in zip(shares, parts, strict=True) for n, r in zip(share, part, strict=True)}
        return [responses[n] for n in range(count)], time.monotonic() - started

    with served(verifier) as url:
        responses, seconds = asyncio.run(post_all(url, CONNECTIONS, requests))
        batches = numbers(httpx.get(f"{url}/metrics").text)["coterie_verifier_batches_total"]
        _, alone = asyncio.run(post_all(url, 1, 30))
    assert [response.status_code for response in responses] == [200] * requests
    scores = [response.json()["scores"] for response in responses]
    expected = verifier.score([conversation("n?", f"The answer is {n}.") for n in range(requests)])
    assert [score for (score,) in scores] == pytest.approx(expected, abs=1e-5)
    assert batches < 0.8 * requests
    ratio = (requests / seconds) / (30 / alone)
    with capsys.disabled():
        print(f"\n  {requests / seconds:.0f} requests/s in {batches:.0f} batches, {ratio:.1f} × one by one")


def test_a_key_is_needed_where_there_is_one() -> None:
    with served(ByLength(), key="secret") as url:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer sécret".encode()}):
            refused = httpx.post(f"{url}/v1/score", json=GOOD, headers=headers)
            assert refused.status_code == 401 and "needs a key" in refused.json()["error"]
        assert httpx.get(f"{url}/metrics").status_code == 401
        assert httpx.get(f"{url}/health").status_code == 200
        allowed = httpx.post(f"{url}/v1/score", json=GOOD, headers={"Authorization": "Bearer secret"})
        assert allowed.json()["scores"] == [0.001]


def test_what_cannot_be_served_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COTERIE_VERIFIER_KEY", raising=False)
    (tmp_path / "empty").write_text("\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for words, message in {
            ("--host", "0.0.0.0"): "needs a key: set COTERIE_VERIFIER_KEY, or pass --key-file",
            ("--host", "::"): "needs a key",
            ("--port", port): "in use",
            ("--key-file", tmp_path / "none"): "No such file",
            ("--key-file", tmp_path / "empty"): "is empty",
            ("--port", 0): "not a verifier run",
        }.items():
            result = coterie("verifier", "serve", tmp_path, *words)
            assert result.exit_code == 2 and message in result.output and result.output.count("\n") == 1, words


def test_sigterm_answers_what_was_accepted_and_then_ends() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.verifier_process", "0", "abc", "1"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        wait_until_up(url)
        with ThreadPoolExecutor(4) as pool:
            replies = [pool.submit(httpx.post, f"{url}/v1/score", json=GOOD, timeout=60) for _ in range(4)]
            for _ in range(400):
                if numbers(httpx.get(f"{url}/metrics").text)["coterie_verifier_waiting"] == 4:
                    break
                time.sleep(0.01)
            process.send_signal(signal.SIGTERM)
            assert [reply.result().json()["scores"] for reply in replies] == [[0.001]] * 4
        assert process.wait(30) == -signal.SIGTERM
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health")
    finally:
        process.kill()
