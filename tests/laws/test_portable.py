"""Laws of packed runs: resumed elsewhere they go on to the bit, and a part that is missing or damaged is refused."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from coterie.training.portable import BadParts, pack, unpack
from tests.commands import coterie
from tests.laws.test_resume import assert_same_run
from tests.runs import naming_config, resumed, trained

Folder = Callable[[str], Path]
SIZE = 20_000


@pytest.fixture
def packed(model_folder: Folder, tmp_path: Path) -> Path:
    trained(naming_config(model_folder("llama"), steps=2), tmp_path / "here" / "run")
    parts = pack(tmp_path / "here" / "run", tmp_path / "parts", SIZE)
    assert len(parts) > 2 and all(part.stat().st_size <= SIZE for part in parts)
    return tmp_path / "parts"


def test_a_packed_run_goes_on_elsewhere_to_the_bit(packed: Path, model_folder: Folder, tmp_path: Path) -> None:
    tree = naming_config(model_folder("llama"), steps=4)
    straight = trained(tree, tmp_path / "straight")
    (tmp_path / "here").rename(tmp_path / "gone")
    run = unpack(packed, tmp_path / "there")
    assert run == tmp_path / "there" / "run"
    for early in sorted((straight.folder / "episodes").glob("*.jsonl.gz"))[:2]:
        early.unlink()  # episodes that were played before are not packed
    assert_same_run(resumed(tree, run), straight)


@pytest.mark.parametrize("how", ["missing", "damaged"])
def test_a_bad_part_is_refused_and_nothing_is_left(how: str, packed: Path, tmp_path: Path) -> None:
    part = packed / "part-001"
    if how == "missing":
        part.unlink()
    else:
        data = bytearray(part.read_bytes())
        data[100] ^= 1
        part.write_bytes(data)
    with pytest.raises(BadParts, match=f"part-001 is {how}"):
        unpack(packed, tmp_path / "there")
    assert not list((tmp_path / "there").iterdir())


def test_a_run_that_is_there_is_not_replaced(packed: Path, tmp_path: Path) -> None:
    run = unpack(packed, tmp_path / "there")
    before = {path: os.stat(path).st_mtime_ns for path in run.rglob("*")}
    with pytest.raises(FileExistsError, match=r"`--resume .*run` continues it, and `--out FOLDER` unpacks elsewhere"):
        unpack(packed, tmp_path / "there")
    assert before == {path: os.stat(path).st_mtime_ns for path in run.rglob("*")}
    shutil.rmtree(run)


def test_the_command_packs_a_run_and_resumes_it_in_another_folder(
    model_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, packed = tmp_path / "here" / "run", tmp_path / "packed"
    trained(naming_config(model_folder("llama"), steps=1), run)
    monkeypatch.chdir(tmp_path)
    done = coterie("export", str(run), "--portable", str(packed), "--part-mb", "0.02")
    assert done.exit_code == 0 and "`coterie train --resume" in done.stdout
    again = coterie("export", str(run), "--portable", str(packed))
    assert again.exit_code == 2 and "already exists" in again.stderr
    assert coterie("train", "--resume", str(packed), "--out", "there", "steps=2").exit_code == 0
    assert (tmp_path / "there" / "run" / "checkpoints" / "000002").is_dir()
    nothing = coterie("export", str(tmp_path / "there"), "--portable", "x")
    assert nothing.exit_code == 2 and "is not a run" in nothing.stderr
