"""Verifiers for tests: a tiny real one in a run's folder, and servers on loopback."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import torch
from uvicorn import Server

from coterie.config import Lora
from coterie.files import write_checksums
from coterie.models.store import write_tensors
from coterie.training.checkpoint import policy_folder
from coterie.verifier.model import NAME, STATE, base_hash, build_verifier
from coterie.verifier.scoring_thread import Scorer
from coterie.verifier.serve import MAX_BODY, MAX_QUEUE, server
from coterie.verifier.settings import VerifierConfig
from coterie.web.server import bind


def tiny_verifier(run: Path, model: Path, seed: int = 0) -> Path:
    """An untrained verifier with a random score head, saved as `coterie verifier train` saves one."""
    config = VerifierConfig("", "", str(model), base_hash(model), Lora(rank=2), device="cpu", seed=seed)
    verifier = build_verifier(config, "cpu")
    head = verifier.learner.value_head
    assert head is not None
    generator = torch.Generator().manual_seed(seed)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.5, generator=generator)
    folder = run / "checkpoints" / "000001"
    verifier.learner.save(policy_folder(folder, NAME))
    write_tensors({"learner": verifier.learner.state()}, folder / STATE)
    write_checksums(folder)
    (run / "config.yaml").write_text(config.to_yaml())
    (run / "best").write_text("000001")
    return run


@contextmanager
def served(
    verifier: Scorer, key: str | None = None, max_queue: int = MAX_QUEUE, max_body: int = MAX_BODY, port: int = 0
) -> Iterator[str]:
    """The URL of a server in a thread of this process."""
    with running(server(verifier, key, max_queue, max_body), port, key) as url:
        yield url


@contextmanager
def running(uvicorn: Server, port: int = 0, key: str | None = None) -> Iterator[str]:
    """The URL of a server, which runs in a thread."""
    bound = bind("127.0.0.1", port, key, "A_KEY")
    thread = threading.Thread(target=uvicorn.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{bound.getsockname()[1]}"
    try:
        wait_until_up(url)
        yield url
    finally:
        uvicorn.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


def wait_until_up(url: str, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            assert httpx.get(f"{url}/health", timeout=seconds).status_code == 200
            return
        except httpx.TransportError:
            assert time.monotonic() < end, f"{url} did not start"
            time.sleep(0.05)
