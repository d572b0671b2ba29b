"""What goes wrong with a run's folder is told in one line, and the run goes on when the cause is gone."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch

from coterie.config import load
from coterie.files import SUMS, WriteFailed, append_line, exclusive_lock, write_atomic
from coterie.models.store import write_tensors
from coterie.training import checkpoint
from coterie.training.build import build
from coterie.training.checkpoint import BadCheckpoint
from tests.commands import coterie, stdout_of
from tests.games import game
from tests.runs import naming_config, trained


def one_line(*words: Any) -> str:
    """What a command says that ends with exit code 2: a single line."""
    result = coterie(*words)
    assert result.exit_code == 2 and isinstance(result.exception, SystemExit), result.output
    (line,) = result.stderr.splitlines()
    return str(line)


@pytest.fixture(scope="module")
def model(model_folder: Callable[[str], Path]) -> Path:
    return model_folder("llama")


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    """A run of two steps."""
    folder = tmp_path_factory.mktemp("done")
    stdout_of("train", game(folder, model), "--out", folder)
    return folder / "game"


@pytest.fixture
def run(done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, with its files beside it."""
    shutil.copytree(done.parent, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return Path("game")


# The disk


@contextmanager
def no_file_above(size: int) -> Iterator[None]:
    """As if the disk were full for every file that is larger; the kernel refuses the write."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def largest(folder: Path, pattern: str) -> int:
    return max(path.stat().st_size for path in folder.glob(pattern) if path.is_file())


@pytest.mark.parametrize("name", ["state.pt", "policies/thinker/adapter_model.safetensors", "config.yaml", "episodes"])
def test_a_full_disk_is_told_and_the_run_goes_on_when_there_is_room(name: str, run: Path) -> None:
    size = largest(run, "episodes/*") if name == "episodes" else largest(run, f"**/{name}")
    with no_file_above(size - 1):
        said = one_line("train", "--resume", run, "steps=3")
    assert "could not be written: File too large" in said or "File too large (os error 27)" in said
    assert f"`coterie train --resume {run}` resumes from the latest checkpoint" in said
    assert (run / "latest").read_text() == "000002" and not (run / "checkpoints" / "000003").exists()
    stdout_of("train", "--resume", run, "steps=3")
    assert (run / "latest").read_text() == "000003"


def test_a_disk_that_is_full_before_the_first_checkpoint_has_the_run_begin_again(
    done: Path, tmp_path: Path, model: Path
) -> None:
    with no_file_above(largest(done, "checkpoints/000001/state.pt") - 1):
        said = one_line("train", game(tmp_path, model), "--out", tmp_path)
    assert f"`coterie train --resume {tmp_path / 'game'}` starts from the beginning" in said
    stdout_of("train", "--resume", tmp_path / "game", "steps=1")
    assert (tmp_path / "game" / "latest").read_text() == "000001"


def test_a_disk_that_fills_up_while_a_run_begins_is_told_and_leaves_no_folder(tmp_path: Path, model: Path) -> None:
    config = game(tmp_path, model)
    with no_file_above(10):
        assert "could not be written: File too large" in one_line("train", config, "--out", tmp_path)
    assert not (tmp_path / "game").exists()


def test_no_space_left_is_told_with_the_file(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(WriteFailed, match=r"metrics\.jsonl could not be written: No space left on device"):
        append_line(tmp_path / "metrics.jsonl", "{}")


def test_tensors_that_find_no_room_say_so_as_files_do(tmp_path: Path) -> None:
    with no_file_above(10_000), pytest.raises(OSError, match="File too large") as told:
        write_tensors({"a": torch.zeros(100_000)}, tmp_path / "state.pt")
    assert told.value.errno == errno.EFBIG


def as_nobody(action: Callable[[], object]) -> int:
    """Do it in a process without root's rights; 0 where it raises WriteFailed."""
    child = os.fork()
    if child == 0:
        if os.geteuid() == 0:
            os.setuid(65534)
        try:
            action()
        except WriteFailed as error:
            os._exit(0 if "Permission denied" in str(error) else 2)
        os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_read_only_folder_is_told() -> None:
    with TemporaryDirectory() as place:  # not tmp_path, which is its owner's alone
        folder = Path(place) / "run"
        folder.mkdir(mode=0o555)
        os.chmod(place, 0o755)
        assert as_nobody(lambda: write_atomic(folder / "latest", "000001")) == 0
        assert as_nobody(lambda: append_line(folder / "metrics.jsonl", "{}")) == 0


def test_a_run_in_a_read_only_folder_is_measured_but_not_resumed(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)  # root may write everywhere
    assert one_line("train", "--resume", run, "steps=3") == f"{run} is read-only: a resumed run has to write to it"
    before = sorted(path for path in run.rglob("*"))
    stdout_of("eval", run, "--no-baselines")
    assert sorted(path for path in run.rglob("*")) == before


# What people and kills leave behind


@pytest.mark.parametrize("garbage", ["garbage", "[1]", '{"reward": 1.0}', '{"step": "two"}', "\x00\x00"])
def test_a_garbage_line_in_the_metrics_is_named_and_the_run_goes_on_without_it(garbage: str, run: Path) -> None:
    metrics = run / "metrics.jsonl"
    first, *others = metrics.read_text().splitlines()
    metrics.write_text("\n".join([first, garbage, *others, ""]))
    said = one_line("train", "--resume", run, "steps=3")
    assert said.startswith(f"{metrics}, line 2 is not a row of metrics: ") and said.endswith(
        "delete the line, then resume"
    )
    assert metrics.read_text().splitlines()[1] == garbage
    metrics.write_text("\n".join([first, *others, ""]))
    stdout_of("train", "--resume", run, "steps=3")
    assert (run / "latest").read_text() == "000003"


def test_a_stray_folder_under_a_checkpoint_s_name_is_named_and_never_taken_for_one(run: Path) -> None:
    stray = run / "checkpoints" / "000099"
    stray.mkdir()
    (stray / "notes.txt").write_text("mine")
    said = one_line("train", "--resume", run, "steps=3")
    assert said == f"{stray} is not a checkpoint: it has no {SUMS}; move it away, then resume the run"
    assert (stray / "notes.txt").is_file()
    stray.rename(run / "checkpoints" / "000099-notes")
    stdout_of("train", "--resume", run, "steps=5", "checkpoint.keep=1")
    assert (run / "checkpoints" / "000099-notes" / "notes.txt").is_file()  # by another name it is nobody's business
    assert {path.name for path in (run / "checkpoints").iterdir()} == {"000005", "000099-notes"}


def test_a_run_is_not_saved_into_a_folder_that_somebody_made(model: Path, tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "000001").mkdir(parents=True)
    with pytest.raises(BadCheckpoint, match="000001 is not a checkpoint"):
        trained(naming_config(model, steps=1), tmp_path)
    assert not (tmp_path / "latest").exists()


def test_copies_of_episodes_are_left_alone(run: Path) -> None:
    copy = run / "episodes" / "000002 (copy).jsonl.gz"
    shutil.copy(run / "episodes" / "000002.jsonl.gz", copy)
    stdout_of("train", "--resume", run, "steps=3")
    assert copy.is_file() and "turns" in stdout_of("replay", run)


def test_an_empty_run_folder_is_told_and_taken_by_the_next_run(tmp_path: Path, model: Path) -> None:
    folder = tmp_path / "game"
    folder.mkdir()
    (folder / ".tmp-0123").touch()  # of a process that was killed
    said = one_line("train", "--resume", folder)
    assert said.startswith(f"{folder} is empty: its run ended before its first step; `coterie train CONFIG` starts")
    stdout_of("train", game(tmp_path, model), "steps=1", "--out", tmp_path)
    assert (folder / "latest").read_text() == "000001" and not (tmp_path / "game-2").exists()


def test_an_empty_folder_in_which_another_run_begins_is_not_taken(tmp_path: Path, model: Path) -> None:
    (tmp_path / "game").mkdir()
    with exclusive_lock(tmp_path / "game"):
        stdout_of("train", game(tmp_path, model), "steps=1", "--out", tmp_path)
    assert (tmp_path / "game-2" / "latest").is_file() and not list((tmp_path / "game").iterdir())


# Checksums


def flip(file: Path, place: int = -1) -> None:
    """Change one bit of one byte."""
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)


def test_one_flipped_byte_in_any_file_of_a_checkpoint_is_refused_with_its_name(run: Path) -> None:
    saved = run / "checkpoints" / "000002"
    files = sorted(path for path in saved.rglob("*") if path.is_file() and path.name != SUMS)
    assert {path.name for path in files} >= {"state.pt", "adapter_model.safetensors", "adapter_config.json"}
    whole = build(load(run / "config.yaml"), run, console=False)
    for file in files:
        flip(file)
        with pytest.raises(BadCheckpoint) as told:
            checkpoint.restore(whole, saved)
        assert str(told.value).startswith(f"{file} is damaged: its checksum does not match {SUMS}.")
        flip(file)
    checkpoint.restore(whole, saved)


def test_a_flipped_byte_ends_eval_and_resume_with_one_line(run: Path) -> None:
    adapter = run / "checkpoints" / "000002" / "policies" / "doer" / "adapter_model.safetensors"
    flip(adapter)
    for words in (["eval", run], ["train", "--resume", run, "steps=3"]):
        said = one_line(*words)
        assert said.startswith(f"{adapter} is damaged") and "Other checkpoints of this run: 000001" in said
    flip(adapter)
    stdout_of("train", "--resume", run, "steps=3")


def begun_from(adapter: Path) -> list[str]:
    model = json.loads((adapter / "adapter_config.json").read_text())["base_model_name_or_path"]
    return [f"policies.doer={json.dumps({'model': model, 'adapter': str(adapter)})}", "steps=1", "name=new"]


def test_a_new_run_does_not_begin_from_a_damaged_adapter_of_a_checkpoint(run: Path, tmp_path: Path) -> None:
    adapter = run / "checkpoints" / "000002" / "policies" / "doer"
    begin = ["train", "game.yaml", *begun_from(adapter), "--out", tmp_path]
    flip(adapter / "adapter_model.safetensors")
    assert "adapter_model.safetensors is damaged" in one_line(*begin)
    flip(adapter / "adapter_model.safetensors")
    flip(run / "checkpoints" / "000002" / "state.pt")  # which it does not need
    stdout_of(*begin)


def test_the_adapter_that_a_run_goes_on_from_is_checked_before_it_is_attached(run: Path, tmp_path: Path) -> None:
    adapter = run / "checkpoints" / "000001" / "policies" / "doer"
    stdout_of("train", "game.yaml", *begun_from(adapter), "--out", tmp_path)
    flip(tmp_path / "new" / "checkpoints" / "000001" / "policies" / "doer" / "adapter_config.json")
    assert "adapter_config.json is damaged" in one_line("eval", tmp_path / "new")


def test_the_checksums_are_those_of_sha256sum(run: Path) -> None:
    saved = run / "checkpoints" / "000002"
    assert os.system(f"cd {saved} && sha256sum --check --strict --status {SUMS}") == 0
    listed = {line.split("  ")[1] for line in (saved / SUMS).read_text().splitlines()}
    assert listed == {path.relative_to(saved).as_posix() for path in saved.rglob("*") if path.is_file()} - {SUMS}
