"""Trains runs in two processes each, as torchrun would start them: `python -m tests.several FOLDER`.

FOLDER holds a folder per way of ending, named by it, with a config. Each process leaves its weights there, or what it
complained of; what the processes ended with is printed as JSON.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from coterie.config import load
from coterie.learners.distributed import LostProcess
from coterie.learners.learner import TorchLearner
from coterie.training import checkpoint
from coterie.training.build import build
from coterie.training.loop import Run, train
from tests.killed import die, on_call

SIZE = 2


def together(work: Callable[[int], int]) -> list[int]:
    """What each of the processes ended with; minus the signal where one was killed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= {"WORLD_SIZE": str(SIZE), "LOCAL_WORLD_SIZE": str(SIZE), "TORCHELASTIC_RUN_ID": "a test"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    children = []
    for rank in range(SIZE):
        child = os.fork()  # torch has computed nothing yet, so there are no threads to lose
        if child == 0:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            os._exit(work(rank))
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def run_of(folder: Path) -> Run:
    return build(load(folder / "config-as-given.yaml"), folder, console=False)


def straight(folder: Path, rank: int) -> int:
    run = run_of(folder)
    train(run)
    keep_weights(run, rank)
    return 0


def gone_on(folder: Path, rank: int) -> int:
    run = run_of(folder)
    checkpoint.resume(run)
    train(run)
    keep_weights(run, rank)
    return 0


def left_alone(folder: Path, rank: int) -> int:
    """The second process dies in the middle of the second step's update."""
    if rank == 1:
        descend = on_call(14, TorchLearner.optimizer_step, die)
        TorchLearner.optimizer_step = lambda *args: descend(*args)  # type: ignore[method-assign]
    try:
        train(run_of(folder))
    except LostProcess as error:
        (folder / "complaint").write_text(str(error))
        return 2
    return 0


def keep_weights(run: Run, rank: int) -> None:
    weights = {policy: learner.parameters() for policy, learner in run.learners.items()}
    torch.save(weights, run.folder / f"weights-{rank}.pt")


WAYS: dict[str, tuple[Callable[[Path, int], int], ...]] = {
    "straight": (straight,),
    "left alone": (left_alone, gone_on),
    "left for good": (left_alone,),  # the test goes on by itself
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    root = Path(sys.argv[1])
    told = {way: [together(lambda rank, do=do: do(root / way, rank)) for do in parts] for way, parts in WAYS.items()}  # type: ignore[misc]  # noqa: B023
    print(json.dumps(told))
