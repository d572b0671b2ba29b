"""Trains verifiers in processes of their own, each killed at a chosen moment: `python -m tests.killed_verifier FOLDER`.

FOLDER holds a folder per moment, named by it, and the folder `model` is beside FOLDER. Exit codes are printed as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

from coterie.learners.learner import TorchLearner
from coterie.training import checkpoint
from coterie.verifier.train import train
from tests.killed import die, half_written, on_call
from tests.verifiers import built

MOMENTS = ("in an update", "in a checkpoint", "between latest and best")


def arm(moment: str) -> None:
    """Lay the trap: it springs after the first checkpoint, in the second or on the way to it."""
    if moment == MOMENTS[0]:
        descend = on_call(5, TorchLearner.optimizer_step, die)
        TorchLearner.optimizer_step = lambda *args: descend(*args)  # type: ignore[method-assign]
    elif moment == MOMENTS[1]:
        torch.save = on_call(2, torch.save, half_written)
    else:
        checkpoint.write_atomic = on_call(4, checkpoint.write_atomic, die)


def ended(folder: Path) -> int:
    """Train in a child of this process; its exit code, or minus the signal that ended it."""
    process = os.fork()  # torch has computed nothing yet, so there are no threads to lose
    if process == 0:
        arm(folder.name)
        train(built(folder.parent.parent / "model", folder))
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({folder.name: ended(folder) for folder in sorted(Path(sys.argv[1]).iterdir()) if folder.is_dir()}))
