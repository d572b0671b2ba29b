"""Laws of the machine's slots: no more programs at once than slots, in all processes together."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from coterie.sandbox import Limits, Sandbox, bubblewrap
from coterie.sandbox.slots import machine_slot, slot_folder
from tests.hangs import HANG

HOLD = """
import sys, threading
from coterie.sandbox.slots import machine_slot
with machine_slot(threading.Event(), slots=1):
    print("held", flush=True)
    sys.stdin.read()
"""
SPIN = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots of the tests alone."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


def holder() -> subprocess.Popen[str]:
    """Another process that holds the only slot until its stdin is closed."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ}
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


@pytest.mark.parametrize("end", [lambda process: process.communicate(), lambda process: process.kill()])
def test_a_slot_of_another_process_is_waited_for(end: Callable[[subprocess.Popen[str]], object]) -> None:
    other, got = holder(), threading.Event()

    def take() -> None:
        with machine_slot(threading.Event(), slots=1, patience=HANG):
            got.set()

    thread = threading.Thread(target=take)
    thread.start()
    assert not got.wait(0.3)
    end(other)
    assert got.wait(HANG)
    thread.join()
    other.communicate()


def test_who_waits_too_long_goes_on_without_a_slot() -> None:
    other = holder()
    started = time.monotonic()
    with machine_slot(threading.Event(), slots=1, patience=0.2):
        assert 0.2 <= time.monotonic() - started < HANG
    other.communicate()


def test_a_job_that_nobody_waits_for_waits_for_no_slot() -> None:
    other, cancelled = holder(), threading.Event()
    cancelled.set()
    with machine_slot(cancelled, slots=1, patience=10 * HANG):
        pass
    other.communicate()


def test_threads_of_one_process_share_the_slots_as_well() -> None:
    running, most, lock = 0, 0, threading.Lock()

    def work() -> None:
        nonlocal running, most
        with machine_slot(threading.Event(), slots=3, patience=HANG):
            with lock:
                running += 1
                most = max(most, running)
            time.sleep(0.02)
            with lock:
                running -= 1

    threads = [threading.Thread(target=work) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 3


def test_a_slot_is_free_again_although_a_fork_has_its_file() -> None:
    with machine_slot(threading.Event(), slots=1):
        fork = os.fork()
        if fork == 0:
            signal.pause()
    started = time.monotonic()
    try:
        with machine_slot(threading.Event(), slots=1, patience=HANG):
            assert time.monotonic() - started < HANG / 2
    finally:
        os.kill(fork, signal.SIGKILL)
        os.waitpid(fork, 0)


def test_no_file_stays_open() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with machine_slot(threading.Event(), slots=2):
            pass
    assert len(os.listdir("/proc/self/fd")) == before


def test_without_a_folder_of_ones_own_nobody_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = slot_folder()
    assert folder is not None and folder.stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "coterie-slots-12345").symlink_to(elsewhere)
    assert slot_folder() is None
    started = time.monotonic()
    with machine_slot(threading.Event(), slots=1, patience=HANG):
        assert not list(elsewhere.iterdir())
    assert time.monotonic() - started < HANG / 2


@pytest.mark.slow
@pytest.mark.skipif(bubblewrap.problem() is not None, reason="bubblewrap does not work here")
def test_right_programs_meet_their_deadline_however_many_runs_grade() -> None:
    """Five processes grade programs that need a third of the deadline on a free core."""
    code = "import asyncio, tests.units.test_slots as own\nprint(asyncio.run(own.spin()))"
    runs = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(5)]
    assert [run.communicate()[0].strip() for run in runs] == ["8 ok"] * 5


async def spin() -> str:
    """Eight programs that need 0.3 s of a core, with a deadline of one second."""
    sandbox = Sandbox(Limits(seconds=1.0))
    results = await asyncio.gather(*(sandbox.run(SPIN) for _ in range(8)))
    sandbox.close()
    return f"{sum(result.ok for result in results)} ok"
