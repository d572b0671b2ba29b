"""The run log: metrics.jsonl, stored episodes, TensorBoard, Weights & Biases and the console."""

from __future__ import annotations

import importlib
import io
import json
import os
import socket
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from numbers import Real
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import torch
import yaml
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from coterie.console import Display, display
from coterie.episode_files import (
    SUFFIX,
    episode_paths,
    step_of,
    write_episode_rows,
)
from coterie.episode_rows import episode_row
from coterie.errors import UserError
from coterie.files import WriteFailed, append_line, filter_rows, reporting_write_errors, write_atomic
from coterie.models.chat import Chat
from coterie.training.background_writes import BackgroundWrites
from coterie.training.status import RunStatus, State, cause_of
from coterie.training.token_strings import TokenStrings
from coterie.training.user_files import WRITTEN_CONFIG
from coterie.types import Episode, Metrics

EPISODES, COUNTERFACTUALS, HELD_OUT = "episodes", "counterfactuals", "eval"  # folders of a run


LESS_MEMORY = (
    "an update needs less with a lower learning.microbatch_tokens or with learning.checkpointing, a rollout with lower "
    "engine.rows or engine.context; other processes may hold memory of the same GPU"
)


class OutOfMemory(UserError, RuntimeError):
    """A GPU's memory is full."""


class StepLog:
    """The metrics and episodes of one step, buffered until the step succeeds."""

    def __init__(self, step: int, display: Display) -> None:
        self.step = step
        self.display = display
        self.metrics: Metrics = {}
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.played: dict[str, Sequence[Episode]] = {}  # by folder

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a phase of the step; entering it again adds to its time."""
        self.display.phase(name)
        started = time.perf_counter()
        try:
            yield
        except torch.OutOfMemoryError as error:
            what = str(error).partition(" If reserved but unallocated")[0]
            raise OutOfMemory(f"step {self.step}, {name}: {what}\n{LESS_MEMORY}") from error
        self.seconds[name] += time.perf_counter() - started

    def add(self, metrics: Mapping[str, float]) -> None:
        """Add metrics to this step, each name once."""
        for name, value in metrics.items():
            if name in self.metrics or name in ("step", "time"):
                raise ValueError(f"{name}: this metric was already logged in step {self.step}")
            if not isinstance(value, Real | torch.Tensor):
                raise UserError(f"step {self.step}: the metric {name} is {value!r:.80}; a number was expected")
            self.metrics[name] = float(value)

    def episodes(self, episodes: Sequence[Episode], counterfactuals: Sequence[Episode] = ()) -> None:
        """Store the episodes and their counterfactuals; they are written at the end of the step, with their credit."""
        if EPISODES in self.played:
            raise ValueError(f"episodes: those of step {self.step} were already logged")
        self.played[EPISODES] = episodes
        if counterfactuals:
            self.played[COUNTERFACTUALS] = counterfactuals

    def held_out(self, episodes: Sequence[Episode]) -> None:
        """Store the episodes of an evaluation."""
        self.played[HELD_OUT] = episodes


class RunLog:
    """Writes a run's folder. Nothing is written before the first step or `resume`."""

    def __init__(
        self,
        folder: Path,
        config_yaml: str,
        steps: int,
        wandb: str | None,
        console: bool,
        copies: Mapping[str, bytes] | None = None,  # of user files, by path in the folder
    ) -> None:
        self.folder = folder
        self.copies = dict(copies or {})
        self.metrics_path = folder / "metrics.jsonl"
        self.config_yaml = config_yaml
        self.wandb_project = wandb
        self.wandb_module = import_wandb() if wandb else None  # fails before the models load
        self.display = display(folder.name, steps) if console else Display()
        self.resumed_at: int | None = None
        self.sinks: list[Sink] = []
        self.evaluations: dict[int, float] = {}  # held-out reward by completed steps
        self.chats: Mapping[str, Chat] = {}  # by policy; set once the models are loaded
        self.token_strings: TokenStrings | None = None
        self.status = RunStatus(folder / "status.json")
        self.writes = BackgroundWrites()  # of episodes, while the next step is played

    def resume(self, done: int, evaluated: bool) -> list[dict[str, Any]]:
        """Drop what was logged after so many steps, which the run repeats; returns the remaining rows.

        `evaluated`: whether an evaluation at this step is due; an evaluation that was only due because the run ended
        there is dropped.
        """
        self.resumed_at = done
        until = done if evaluated else done - 1
        rows = filter_rows(self.metrics_path, lambda row: row["step"] <= (until if "eval/reward" in row else done))
        self.display.recall(rows)
        for row in rows:
            self._store_evaluation(int(row["step"]), row)
        for name, last in {EPISODES: done, COUNTERFACTUALS: done, HELD_OUT: until}.items():
            for path in episode_paths(self.folder / name):
                if step_of(path) > last:
                    path.unlink()
        return rows

    @contextmanager
    def step(self, step: int) -> Iterator[StepLog]:
        """Log one step. If the block raises, only its episodes are written."""
        self.open()
        log = StepLog(step, self.display)
        with ExitStack() as on_failure:
            on_failure.callback(self.flush)
            on_failure.callback(self._write_episodes, log)  # the episodes may show the cause
            on_failure.callback(self.display.close)  # so that it does not overwrite the traceback
            self.display.open()
            yield log
            on_failure.pop_all()
        log.add({f"seconds/{phase}": seconds for phase, seconds in log.seconds.items()})
        self._write(log)

    def flush(self) -> None:
        """Wait until all episodes are written. A checkpoint does: a run that resumes there has the steps before it."""
        self.writes.flush()

    def stopped(self, why: str) -> None:
        """The run was stopped by a signal, and is saved."""
        self.flush()
        self.display.stopped(why)
        self._write_status("stopped", why)

    def finished(self) -> None:
        """The run has done all its steps."""
        self.flush()
        self._write_status("finished")

    @contextmanager
    def recording_failure(self) -> Iterator[None]:
        """Record an error of the block in status.json."""
        with ExitStack() as stack:
            stack.push(self._failed)
            yield

    def _failed(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            with suppress(WriteFailed):  # on a full disk `error` is the one to report
                self._write_status("failed", cause_of(error))

    def _write_status(self, state: State, cause: str | None = None) -> None:
        if self.sinks:  # a log that was never opened, such as NoLog, writes no status
            self.status.write(state, cause)

    def close(self) -> None:
        """Close the console, TensorBoard's file and the W&B run."""
        self.flush()
        for sink in self.sinks:
            sink.close()

    def open(self) -> None:
        """Write the config and the user's files, and open the sinks, unless they are open."""
        if self.sinks:
            return
        if self.resumed_at is None and self.metrics_path.exists():
            raise FileExistsError(f"{self.folder} already contains a run; resume it, or train into another folder")
        for name, content in (self.copies | {WRITTEN_CONFIG: self.config_yaml.encode()}).items():
            write_atomic(self.folder / name, content)
        write_atomic(self.folder / "config.yaml", self.config_yaml)
        self.token_strings = TokenStrings(self.folder / "tokens.jsonl", self.chats)
        self.status.write("running")
        self.sinks = [self.display, TensorBoard(self.folder / "tensorboard", self.resumed_at)]
        if self.wandb_module:
            self.sinks.append(WeightsAndBiases(self.wandb_module, self.wandb_project, self.folder, self.config_yaml))

    def _store_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        if "eval/reward" in metrics:
            self.evaluations[step] = metrics["eval/reward"]

    def _write_episodes(self, log: StepLog) -> None:
        self.flush()  # at most one step is pending: a slow disk delays training instead of filling the memory
        for name, played in log.played.items():
            if self.token_strings is not None:
                self.token_strings.add(played)
            path = self.folder / name / f"{log.step:06d}{SUFFIX}"
            self.writes.submit(partial(write_episode_rows, path, [episode_row(episode) for episode in played]))

    def _write(self, log: StepLog) -> None:
        self._write_episodes(log)
        row = {"step": log.step, "time": round(time.time(), 3), **log.metrics}
        append_line(self.metrics_path, json.dumps(row))
        self._store_evaluation(log.step, log.metrics)
        for sink in self.sinks:
            sink.write(log.step, log.metrics)


class NoLog(RunLog):
    """The log of a process that is not the main one: it writes nothing."""

    def resume(self, done: int, evaluated: bool) -> list[dict[str, Any]]:
        self.resumed_at = done
        return []

    def open(self) -> None:
        pass

    def _write_episodes(self, log: StepLog) -> None:
        pass

    def _write(self, log: StepLog) -> None:
        pass


class Sink(Protocol):
    """Another destination of metrics besides metrics.jsonl."""

    def write(self, step: int, metrics: Metrics) -> None: ...
    def close(self) -> None: ...


class TensorBoard:
    """One event file per start of the run; TensorBoard hides what an earlier start logged after step `resumed_at`.

    Not PyTorch's SummaryWriter: its thread prints a traceback when the disk is full.
    """

    def __init__(self, folder: Path, resumed_at: int | None) -> None:
        self.path = folder / f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        with reporting_write_errors(self.path):
            folder.mkdir(parents=True, exist_ok=True)
            self.file = self.path.open("ab", buffering=0)
        self._put(file_version="brain.Event:2")
        if resumed_at is not None:
            self._put(step=resumed_at + 1, session_log=SessionLog(status=SessionLog.START))

    def write(self, step: int, metrics: Metrics) -> None:
        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._put(step=step, summary=Summary(value=values))

    def close(self) -> None:
        self.file.close()

    def _put(self, **event: Any) -> None:
        record = io.BytesIO()
        RecordWriter(record).write(Event(wall_time=time.time(), **event).SerializeToString())
        with reporting_write_errors(self.path):
            if self.file.write(record.getvalue()) != record.tell():
                raise OSError("the event was written only in part; is the disk full?")


class WeightsAndBiases:
    """A W&B run, continued after a resume. WANDB_MODE and other variables of W&B work."""

    def __init__(self, wandb: ModuleType, project: str | None, folder: Path, config_yaml: str) -> None:
        id_path = folder / "wandb-id"
        self.run = wandb.init(
            project=project,
            name=folder.name,
            dir=folder,
            config=yaml.safe_load(config_yaml),
            allow_val_change=True,  # a resumed run may have more steps
            id=id_path.read_text() if id_path.exists() else None,
            resume="allow",
        )
        write_atomic(id_path, self.run.id)
        # W&B's own step cannot go back, but a resumed run does.
        self.run.define_metric("*", step_metric="step")

    def write(self, step: int, metrics: Metrics) -> None:
        self.run.log({"step": step, **metrics})

    def close(self) -> None:
        self.run.finish()


def import_wandb() -> ModuleType:
    """Import wandb; the error says how to install it."""
    try:
        return importlib.import_module("wandb")
    except ModuleNotFoundError as missing:
        fix = "pip install wandb, or remove the setting"
        raise ModuleNotFoundError(f"log.wandb needs wandb, which is not installed: {fix}") from missing
