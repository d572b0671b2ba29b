"""What a run writes down is whole, exact, and forgets what a resume undoes."""

from __future__ import annotations

import io
import json
import os
import pty
import resource
import shutil
import signal
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import rich
import rich.console
import torch
from rich.live import Live
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from coterie.console import LivePanel, plain_line, show, sparkline, table
from coterie.episode_files import BadEpisodes, EpisodeFile, write_episode_rows
from coterie.episode_rows import read_episodes
from coterie.files import (
    WriteFailed,
    append_line,
    atomic_folder,
    filter_rows,
    remove_folder,
    write_atomic,
    write_checksums,
)
from coterie.rewards import TIMEOUTS
from coterie.training.log import OutOfMemory, RunLog, TensorBoard
from coterie.types import Episode, Task, Turn
from tests.forked import Python, run_python
from tests.hangs import HANG
from tests.runs import naming_config, trained

METRICS = {
    "reward": 0.412,
    "reward/reasoner": 0.4,
    "reward/actor": 0.42,
    "shared/logprob_gap": 2e-6,
    "other/logprob_gap": 1e-7,
    "tokens_per_second": 812.4,
    "seconds/rollout": 3.1,
    "seconds/update": 4.0,
}


def run_log(folder: Path, **options: Any) -> RunLog:
    settings: dict[str, Any] = {"config_yaml": "steps: 40\n", "steps": 40, "wandb": None, "console": False}
    return RunLog(folder, **settings | options)


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def scalars(folder: Path, name: str) -> dict[int, float]:
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return {event.step: event.value for event in events.Scalars(name)}


def die_while(code: str, folder: Path) -> None:
    """Run code in a process of its own that kills itself at `die()` with a signal nothing can catch."""
    head = "import os, signal\nfrom pathlib import Path\nfrom coterie.files import *\n"
    head += f"folder = Path({str(folder)!r})\ndef die(): os.kill(os.getpid(), signal.SIGKILL)\n"
    assert run_python(["-c", head + textwrap.dedent(code)], seconds=HANG).returncode == -signal.SIGKILL


def spoken(**changes: Any) -> Turn:
    turn: dict[str, Any] = dict(
        role="reasoner", policy="shared", version=3, round=0, prompt_ids=(1, 2), response_ids=(5, 6, 7)
    )
    turn |= dict(logprobs=(-0.1234567890123456, -1e-9, -17.0), temperature=0.7, text="4\n", stop="end")
    return Turn(**turn | changes)


# Files


def test_who_reads_while_a_file_is_replaced_reads_the_old_one_whole(tmp_path: Path) -> None:
    path = tmp_path / "latest"
    write_atomic(path, "old")
    with path.open() as reader:
        write_atomic(path, "new")
        assert (reader.read(), path.read_text()) == ("old", "new")


def test_a_folder_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(KeyError), atomic_folder(tmp_path / "100") as folder:
        (folder / "weights").write_text("half")
        raise KeyError
    assert names(tmp_path) == []
    with atomic_folder(tmp_path / "100") as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "weights").write_text("whole")
        assert not (tmp_path / "100").exists()
    assert names(tmp_path) == ["100"]
    assert (tmp_path / "100" / "inner" / "weights").read_text() == "whole"


def test_a_folder_that_is_being_removed_is_not_there_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "000001"
    folder.mkdir()
    (folder / "state.pt").touch()

    def die(_: Path) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), monkeypatch.context() as killed:
        killed.setattr(shutil, "rmtree", die)
        remove_folder(folder)
    assert not folder.exists()
    write_atomic(tmp_path / "latest", "000002")  # the next one who writes there tidies up
    assert [path.name for path in tmp_path.iterdir()] == ["latest"]


def test_a_folder_replaces_none(tmp_path: Path) -> None:
    (tmp_path / "100").mkdir()
    with pytest.raises(FileExistsError, match="100"), atomic_folder(tmp_path / "100"):
        pytest.fail("the work was begun for nothing")
    with pytest.raises(FileExistsError), atomic_folder(tmp_path / "200"):
        (tmp_path / "200").mkdir()
    assert names(tmp_path) == ["100", "200"]


def test_a_killed_process_leaves_the_old_state_and_the_next_one_cleans_up(tmp_path: Path) -> None:
    write_atomic(tmp_path / "latest", "100")
    die_while(
        """
        with atomic_folder(folder / "200") as unfinished:
            write_atomic(unfinished / "weights", "half")
            die()
        """,
        tmp_path,
    )
    leftover, latest = names(tmp_path)
    assert (leftover[:5], latest) == (".tmp-", "latest")
    write_atomic(tmp_path / "latest", "200")
    assert names(tmp_path) == ["latest"]


def test_what_a_living_process_is_writing_is_not_cleaned_up(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "100"):
        write_atomic(tmp_path / "latest", b"100")
        with atomic_folder(tmp_path / "200"):
            pass
    assert names(tmp_path) == ["100", "200", "latest"]


def test_a_half_written_last_line_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    die_while(
        """
        append_line(folder / "metrics.jsonl", '{"step": 0}')
        append_line(folder / "metrics.jsonl", '{"step": 1}')
        os.write(os.open(folder / "metrics.jsonl", os.O_WRONLY | os.O_APPEND), b'{"step": 2')
        die()
        """,
        tmp_path,
    )
    assert filter_rows(path, lambda row: True) == [{"step": 0}, {"step": 1}]
    append_line(path, '{"step": 2}')
    assert [row["step"] for row in rows(tmp_path)] == [0, 1, 2]


def test_a_line_break_is_not_added_as_a_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="line break"):
        append_line(tmp_path / "metrics.jsonl", "{}\n{}")


# The log of a run


def test_a_step_is_one_row_with_its_phases(tmp_path: Path) -> None:
    with run_log(tmp_path).step(12) as log:
        for _ in range(2):
            with log.phase("rollout"):
                pass
        log.add({"reward": 0.25, "failed": 2})
    (row,) = rows(tmp_path)
    assert list(row) == ["step", "time", "reward", "failed", "seconds/rollout"]
    assert (row["step"], row["reward"], row["failed"]) == (12, 0.25, 2.0)
    assert (tmp_path / "config.yaml").read_text() == "steps: 40\n"


def test_a_gpu_without_memory_is_told_with_the_phase_and_what_would_need_less(tmp_path: Path) -> None:
    told = "CUDA out of memory. Tried to allocate 2 GiB. If reserved but unallocated memory is large try this"
    expected = "step 3, update: CUDA out of memory. Tried to allocate 2 GiB.\nan update needs less with"
    with pytest.raises(OutOfMemory, match=expected), run_log(tmp_path).step(3) as log, log.phase("update"):
        raise torch.OutOfMemoryError(told)


def test_of_a_step_that_fails_only_what_was_played_is_kept(tmp_path: Path) -> None:
    run = run_log(tmp_path)
    with run.step(0) as log:
        log.add({"reward": 1.0})
    with pytest.raises(KeyError), run.step(1) as log:
        log.add({"reward": 2.0})
        log.episodes([Episode("a", Task("t", "?", 1), 0)])
        raise KeyError
    assert [row["step"] for row in rows(tmp_path)] == [0]
    assert [episode.id for episode in read_episodes(tmp_path / "episodes" / "000001.jsonl.gz")] == ["a"]
    assert scalars(tmp_path, "reward") == {0: 1.0}


def test_a_process_killed_within_a_step_leaves_the_steps_before_it(tmp_path: Path) -> None:
    die_while(
        """
        from coterie.training.log import RunLog
        from coterie.types import Episode, Task
        run = RunLog(folder, "steps: 2", steps=2, wandb=None, console=False)
        for step in range(2):
            with run.step(step) as log:
                log.add({"reward": step})
                log.episodes([Episode("a", Task("t", "?", 1), 0)])
                if step == 1:
                    die()
            run.flush()  # as a checkpoint does
        """,
        tmp_path,
    )
    assert [row["step"] for row in rows(tmp_path)] == [0]
    assert names(tmp_path / "episodes") == ["000000.jsonl.gz"]
    assert scalars(tmp_path, "reward") == {0: 0.0}


def test_a_checkpoint_waits_for_the_episodes_of_its_steps(
    model_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slowly(*words: Any) -> None:
        time.sleep(0.2)
        write_episode_rows(*words)

    def checked(folder: Path) -> None:
        stored.append(names(tmp_path / "episodes"))
        write_checksums(folder)

    stored: list[list[str]] = []
    monkeypatch.setattr("coterie.training.log.write_episode_rows", slowly)
    monkeypatch.setattr("coterie.training.checkpoint.write_checksums", checked)
    trained(naming_config(model_folder("llama"), steps=2), tmp_path)
    assert stored == [["000001.jsonl.gz"], ["000001.jsonl.gz", "000002.jsonl.gz"]]


def test_episodes_that_cannot_be_written_end_the_run(
    model_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(path: Path, rows: Any) -> None:
        raise WriteFailed(f"{path} could not be written: no space")

    monkeypatch.setattr("coterie.training.log.write_episode_rows", fails)
    with pytest.raises(WriteFailed, match=r"episodes/000001.jsonl.gz could not be written: no space"):
        trained(naming_config(model_folder("llama"), eval={"tasks": 0}, checkpoint={"every": 4}), tmp_path)
    assert json.loads((tmp_path / "status.json").read_text())["state"] == "failed"


@pytest.mark.parametrize("name", ["reward", "step", "time", "seconds/rollout"])
def test_a_metric_is_logged_once_a_step(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=name), run_log(tmp_path).step(0) as log:
        with log.phase("rollout"):
            log.add({"reward": 0.0})
        log.add({name: 1.0})


def test_the_episodes_of_a_step_are_logged_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="episodes"), run_log(tmp_path).step(0) as log:
        log.episodes([])
        log.episodes([])


def test_episodes_come_back_as_they_were_played(tmp_path: Path) -> None:
    odd = 'a/b [red] "q"\u2028\x85\t名前 \ud800'
    odd_meta: dict[Any, Any] = {1: {2}, "path": Path("x")}
    task = Task("t-1", "2+2?\r\n", {"n": (4, 5)}, odd_meta)
    judged = spoken(role=odd, reward=0.5, advantages=torch.tensor([1 / 3, -2e-7, 0.0]), values=torch.ones(3))
    played = Episode(odd, task, 2, [spoken(), judged], answer=None, reward=0.5, metrics={"accuracy": 1.0})
    played.reward = numpy.float32(0.5)  # type: ignore[assignment]  # as a user's reward function may well do
    failed = Episode("b", task, 3, error="Traceback\n…", error_kind="TimeoutError")
    run = run_log(tmp_path)
    with run.step(12) as log:
        log.episodes([played, failed])
        judged.returns = torch.zeros(3)  # credit comes after the episodes were handed over
    run.flush()
    back, other = read_episodes(tmp_path / "episodes" / "000012.jsonl.gz")

    assert back.turns[0] == spoken()
    second = back.turns[1]
    assert (back.id, second.role, second.ref_logprobs) == (odd, odd, None)
    assert second.advantages is not None and second.returns is not None
    torch.testing.assert_close(second.advantages, judged.advantages, rtol=1e-5, atol=0.0)
    assert second.returns.tolist() == [0.0, 0.0, 0.0]
    assert (back.repeat, back.reward, back.metrics, back.answer) == (2, 0.5, {"accuracy": 1.0}, None)
    assert back.task == Task("t-1", "2+2?\r\n", {"n": [4, 5]}, {"1": [2], "path": "x"})
    assert (other.error, other.error_kind, other.turns) == ("Traceback\n…", "TimeoutError", [])


def test_episodes_of_an_older_run_have_no_prompt_texts_and_can_be_read(tmp_path: Path) -> None:
    run = run_log(tmp_path)
    with run.step(1) as log:
        log.episodes([Episode("t/0", Task("t", "?", None), 0, [spoken(prompt="<s>2+2?")])])
    run.flush()
    path = tmp_path / "episodes" / "000001.jsonl.gz"
    (row,) = EpisodeFile(path).rows()
    assert row["turns"][0].pop("prompt") == read_episodes(path)[0].turns[0].prompt == "<s>2+2?"
    (tmp_path / "000001.jsonl").write_text(json.dumps(row) + "\n")
    assert read_episodes(tmp_path / "000001.jsonl")[0].turns == [spoken()]


@pytest.mark.parametrize("damage", [lambda line: line[:40], lambda line: "[1]", lambda line: '{"id": "t"}'])
def test_a_damaged_episode_is_named_by_its_file_and_line(damage: Callable[[str], str], tmp_path: Path) -> None:
    run = run_log(tmp_path)
    with run.step(0) as log:
        log.episodes([Episode(f"t/{i}", Task("t", "?", None), i) for i in range(3)])
    run.flush()
    rows = EpisodeFile(tmp_path / "episodes" / "000000.jsonl.gz").rows()
    first, second, third = map(json.dumps, rows)
    path = tmp_path / "000000.jsonl"  # as earlier versions stored them
    path.write_text("\n".join([first, damage(second), third, ""]))
    with pytest.raises(BadEpisodes, match=r"000000\.jsonl, line 2: not a stored episode, or damaged"):
        read_episodes(path)


def test_resuming_forgets_the_steps_that_are_done_again(tmp_path: Path) -> None:
    first = run_log(tmp_path)
    for step in range(1, 5):
        with first.step(step) as log:
            log.add({"reward": step, "old": 1.0})
            log.episodes([])
    first.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "rew')

    again = run_log(tmp_path)
    again.resume(2, evaluated=False)
    assert [row["step"] for row in rows(tmp_path)] == [1, 2]
    assert names(tmp_path / "episodes") == ["000001.jsonl.gz", "000002.jsonl.gz"]
    with again.step(3) as log:
        log.add({"reward": 20.0})
    again.close()
    assert [row["reward"] for row in rows(tmp_path)] == [1.0, 2.0, 20.0]
    assert scalars(tmp_path, "reward") == {1: 1.0, 2: 2.0, 3: 20.0}
    assert scalars(tmp_path, "old") == {1: 1.0, 2: 1.0}


@pytest.mark.parametrize("evaluated", [True, False])
def test_an_evaluation_that_was_only_due_at_the_old_end_is_forgotten(tmp_path: Path, evaluated: bool) -> None:
    first = run_log(tmp_path)
    for metric in ("reward", "eval/reward"):
        with first.step(2) as log:
            log.add({metric: 0.5})
    again = run_log(tmp_path)
    kept = again.resume(2, evaluated)
    assert kept == rows(tmp_path) and ["eval/reward" in row for row in kept] == [False, True][: 1 + evaluated]


def test_a_full_disk_is_told_by_tensorboard_s_file_in_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    board, before = TensorBoard(tmp_path, None), resource.getrlimit(resource.RLIMIT_FSIZE)
    board.write(1, {"reward": 0.5})
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, before[1]))
    try:
        with pytest.raises(
            WriteFailed, match=r"tfevents.* could not be written: (the event was written only|File too large)"
        ):
            for step in range(2, 50):
                board.write(step, {"reward": 0.5})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    board.close()
    assert capfd.readouterr().err == ""


def test_a_run_is_not_started_over_another(tmp_path: Path) -> None:
    with run_log(tmp_path).step(0):
        pass
    with (
        pytest.raises(FileExistsError, match="already contains a run"),
        run_log(tmp_path, config_yaml="lr: 1").step(0),
    ):
        pytest.fail("the step was begun")
    assert (tmp_path / "config.yaml").read_text() == "steps: 40\n"


def test_asking_for_wandb_where_it_is_missing_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ModuleNotFoundError, match="pip install wandb"):
        run_log(tmp_path, wandb="coterie")


class RemembersCalls:
    """Stands for the wandb package and for its run."""

    id = "abc"

    def __init__(self) -> None:
        self.settings: list[dict[str, Any]] = []
        self.logged: list[dict[str, float]] = []

    def init(self, **settings: Any) -> RemembersCalls:
        self.settings.append(settings)
        return self

    def define_metric(self, name: str, step_metric: str) -> None:
        assert (name, step_metric) == ("*", "step")

    def log(self, metrics: dict[str, float]) -> None:
        self.logged.append(metrics)

    def finish(self) -> None:
        self.logged.append({})


def test_a_resumed_run_is_the_same_run_on_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = RemembersCalls()
    monkeypatch.setitem(sys.modules, "wandb", service)
    for step in (1, 2):
        run = run_log(tmp_path, wandb="teams")
        if step == 2:
            run.resume(1, evaluated=False)
        with run.step(step) as log:
            log.add({"reward": 0.5})
        run.close()
    assert [settings["id"] for settings in service.settings] == [None, "abc"]
    assert service.settings[0]["project"] == "teams" and service.settings[0]["config"] == {"steps": 40}
    assert service.logged == [{"step": 1, "reward": 0.5}, {}, {"step": 2, "reward": 0.5}, {}]


# The console


def test_a_pipe_gets_one_plain_line_per_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = (
        "step  12/40  reward 0.412  reasoner 0.40 actor 0.42  gap 2e-06  812 tok/s"
        "  rollout 3.1s update 4.0s  failed: TimeoutError 2"
    )
    with run_log(tmp_path, console=True).step(12) as log:
        log.add(METRICS | {"failed": 2, "failed/TimeoutError": 2})
    assert capsys.readouterr().out == line + "\n"


def test_the_line_of_an_evaluation_tells_its_failures() -> None:
    metrics = {"eval/reward": 0.24, "eval/failed": 64, "eval/failed/TimeoutError": 64, "eval/grader_timeouts": 0.0}
    assert plain_line(0, 10, metrics) == "step   0/10  eval 0.240  failed: TimeoutError 64"


def test_the_line_tells_the_highest_kl_to_the_reference_where_one_is_read() -> None:
    assert plain_line(0, 9, {"shared/kl": 0.0213, "other/kl": 0.004}) == "step  0/9  kl 0.021"
    assert plain_line(0, 9, {"reward/kl": 1.0}) == "step  0/9  kl 1.00"  # a role called so


def test_the_panel_has_a_column_for_the_kl_of_each_policy() -> None:
    panel = LivePanel("demo", 40)
    panel.write(1, METRICS | {"shared/kl": 0.0213, "shared/loss": 0.5, "other/loss": 0.25})
    lines = drawn(panel.live.renderable).splitlines()
    head, shared, other = (next(line for line in lines if word in line) for word in ("policy", "shared", "other"))
    assert shared.index("0.0213") == head.index(" kl ") + 1
    assert other[head.index(" kl ") :].split()[0] == "1e-07"  # the next column: of this policy there is no KL


def test_graders_that_had_to_be_killed_are_told_in_the_line() -> None:
    assert plain_line(0, 9, {TIMEOUTS: 0.0}) == "step  0/9"
    assert plain_line(0, 9, {TIMEOUTS: 1.5}) == "step  0/9  graders killed: 1.5 an episode"


def test_a_large_number_is_shown_in_four_digits() -> None:
    metrics = {"reward": -1e15, "reward/solver": 12345678.0, "tokens_per_second": 999999.4}
    assert plain_line(0, 9, metrics) == "step  0/9  reward -1e+15  solver 1.235e+07  999999 tok/s"


def test_a_role_named_like_a_policys_metric_is_still_a_role() -> None:
    assert plain_line(0, 9, {"reward/logprob_gap": 1.0}) == "step  0/9  logprob_gap 1.00"


def test_a_sparkline_goes_from_the_lowest_to_the_highest() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([3.0, 3.0]) == "▁▁"
    assert sparkline([-1.0, float("nan"), float("inf"), 1.0]) == "▁  █"
    assert sparkline([]) == ""


def drawn(thing: Any) -> str:
    screen = rich.console.Console(width=120, record=True, file=io.StringIO())
    screen.print(thing)
    return screen.export_text()


def test_the_panel_shows_rewards_by_role_and_survives_nan() -> None:
    panel = LivePanel("demo", 40)
    panel.recall([{"step": 1, "time": 1.0, "reward": 0.0, "reward/[red]": 0.9}])
    panel.write(2, METRICS | {"reward/[red]": float("nan"), "shared/loss": float("nan"), "failed/KeyError": 1.0})
    text = drawn(panel.live.renderable)
    for part in ("2/40 steps", "left", "· [red]", "0.900", "▁█", "rollout 3.1s", "812 tok/s", "2e-06", "KeyError 1"):
        assert part in text


def test_a_terminal_gets_the_panel_and_it_ends_when_a_step_fails(tmp_path: Path) -> None:
    code = f"""
        from pathlib import Path
        from coterie.training.log import RunLog
        run = RunLog(Path({str(tmp_path / "demo")!r}), "", steps=3, wandb=None, console=True)
        for divisor in range(2):
            try:
                with run.step(1) as log, log.phase("rollout"):
                    log.add({{"reward": 0.412, "accuracy": 1 / divisor}})
            except ZeroDivisionError:
                print("caught")
        run.close()
    """
    master, slave = pty.openpty()
    settings = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    process = Python(["-c", textwrap.dedent(code)], env=settings, streams={1: slave})
    os.close(slave)
    seen = b""
    # Linux reports the end of a terminal's output as an error.
    try:
        while chunk := os.read(master, 4096):
            seen += chunk
    except OSError:
        pass
    os.close(master)
    assert process.wait(HANG) == 0
    text = seen.decode()
    hide, show = "\x1b[?25l", "\x1b[?25h"
    assert text.count(hide) == text.count(show) == 2  # the cursor goes and comes back, once for each start
    assert text.index(show) < text.index("caught") < text.rindex(hide)
    assert "1/3 steps" in text and "0.412" in text
    assert "ended in step 1, rollout" in text[: text.index("caught")] and "ended in step 1" not in text[-800:]


def last_frame(panel: LivePanel) -> str:
    panel.close()
    return drawn(panel.live.renderable)


def panel_at(step: int, steps: int = 4) -> LivePanel:
    """The panel of a run that has done so many steps, each with its evaluation."""
    panel = LivePanel("demo", steps)
    panel.live = Live(console=rich.console.Console(file=io.StringIO()))
    panel.open()
    for done in range(1, step + 1):
        panel.phase("update")
        panel.write(done, METRICS)
        panel.phase("eval")
        panel.write(done, {"eval/reward": 0.5})
    return panel


def test_the_last_frame_says_how_the_run_ended() -> None:
    whole = last_frame(panel_at(4))
    assert "4/4 steps" in whole and "done in 0:00:00" in whole and "left" not in whole
    assert "eval 0.500" in whole and "812 tok/s" in whole  # an evaluation does not wipe out its step
    stopped = panel_at(2)
    stopped.stopped("SIGTERM")
    assert "2/4 steps" in (frame := last_frame(stopped)) and "stopped by SIGTERM, saved" in frame
    failed = panel_at(2)
    failed.phase("credit")
    assert "ended in step 3, credit" in last_frame(failed)
    unmeasured = panel_at(4)
    unmeasured.phase("eval")
    assert "4/4 steps" in (frame := last_frame(unmeasured)) and "ended in eval" in frame


def test_the_time_left_counts_steps_and_not_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, *[60.0] * 99])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    assert "0:01:00 left" in drawn(panel_at(2).live.renderable)


def test_a_table_aligns_numbers_and_leaves_gaps_empty() -> None:
    text = drawn(table("Held out", [{"team": "[b]", "reward": 0.5}, {"team": "vote", "reward": 12, "pass@4": 1.0}]))
    lines = [line.rstrip() for line in text.splitlines()]
    assert lines[0].strip() == "Held out"
    first, second = next(line for line in lines if "[b]" in line), next(line for line in lines if "vote" in line)
    assert first.endswith("0.500") and second.endswith("12    1.000")
    assert first.index("0.500") + 5 == second.index("12") + 2


@pytest.mark.parametrize("width", [40, 44, 48, 52, 60, 80])
def test_a_table_that_is_too_wide_is_wrapped_between_words(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rich.get_console(), "width", width)
    rows = [{"arm": "T", "accuracy": "1.000 (1.000–1.000)", "T − arm": "", "sampled in training": 17679}]
    rows.append({"arm": "S4", "accuracy": "0.260 (0.180–0.350)", "T − arm": "+0.740 (+0.650 to +0.820)"})
    with rich.get_console().capture() as shown:
        show([table("", rows)])
    lines = shown.get().splitlines()
    assert max(map(len, lines)) <= width
    words = {word for row in rows for text in (*row, *map(str, row.values())) for word in text.split()}
    assert {*" ".join(lines).replace("─", "").split()} == words
