"""Trains runs in processes of their own, each of which is ended at a chosen moment: `python -m tests.killed FOLDER`.

FOLDER holds a folder per moment, named by it, with a config. What each process ended with is printed as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import torch

from coterie.config import load
from coterie.learners.learner import TorchLearner
from coterie.training import checkpoint
from coterie.training.build import build
from coterie.training.loop import train

MOMENTS = ("in the middle of an update", "in the middle of a checkpoint", "between a checkpoint and its pointer")
CTRL_C = "ctrl-c"


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def on_call(number: int, function: Callable[..., Any], instead: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, but `instead` on its n-th call."""
    calls = 0

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        return (instead if calls == number else function)(*args, **kwargs)

    return counted


def half_written(state: Any, file: BinaryIO) -> None:
    file.write(b"half a checkp")
    file.flush()
    die()


def arm(moment: str) -> None:
    """Lay the trap: it springs in the second step, or in the checkpoint after it."""
    if moment == MOMENTS[0]:  # eight optimiser steps a step: in the second one both policies have taken some
        descend = on_call(14, TorchLearner.optimizer_step, die)
        TorchLearner.optimizer_step = lambda *args: descend(*args)  # type: ignore[method-assign]
    elif moment == MOMENTS[1]:
        torch.save = on_call(3, torch.save, half_written)
    elif moment == MOMENTS[2]:
        checkpoint.write_atomic = on_call(3, checkpoint.write_atomic, die)


def interrupt(process: int, folder: Path) -> None:
    """Press Ctrl-C once the run has logged a step."""
    while not (folder / "episodes").exists():
        time.sleep(0.01)
    os.kill(process, signal.SIGINT)


def ended(folder: Path) -> int:
    """Train in a child of this process; its exit code, or minus the signal that ended it."""
    process = os.fork()  # torch has computed nothing yet, so there are no threads to lose
    if process == 0:
        arm(folder.name)
        train(build(load(folder / "config-as-given.yaml"), folder, console=False))
        os._exit(0)
    if folder.name == CTRL_C:
        interrupt(process, folder)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({folder.name: ended(folder) for folder in sorted(Path(sys.argv[1]).iterdir())}))
