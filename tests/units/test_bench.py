"""Every measurement runs, on little work, and says what it found."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from coterie.bench import step
from coterie.bench.app import app
from coterie.bench.measure import Row, Timing, in_turn
from coterie.bench.sampling import count_tokens
from coterie.bench.shapes import SHAPES, batch_of, lengths
from tests.forked import run_python
from tests.hangs import HANG, eventually

CPU = torch.device("cpu")


@pytest.mark.parametrize("command", ["rollout", "update", "update --whole --checkpointing", "adapters", "scaling"])
def test_a_measurement_prints_a_table_and_writes_every_number(command: str, tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    done = CliRunner().invoke(app, [*command.split(), "--quick", "--device", "cpu", "--out", str(out)])
    assert done.exit_code == 0, done.output
    found = json.loads(out.read_text())
    assert "tok/s" in done.output and found["rows"]
    for row in found["rows"]:
        assert len(row["mine"]) == len(row["theirs"]) == len(row["ratios"]) == 1
        assert all(timing["seconds"] > 0 and timing["tokens"] > 0 for timing in row["mine"] + row["theirs"])


def test_a_baseline_that_is_not_installed_is_said_to_be_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "find_spec", lambda name: None)
    out = tmp_path / "found.json"
    done = CliRunner().invoke(app, ["step", "--quick", "--device", "cpu", "--out", str(out)])
    assert done.exit_code == 0 and "not installed" in done.output
    assert json.loads(out.read_text())["rows"][0]["theirs"] is None


def test_an_unknown_shape_is_named_with_those_there_are() -> None:
    done = CliRunner().invoke(app, ["update", "--shape", "4b"])
    assert done.exit_code == 2 and "4b" in done.output and "135m" in done.output


def test_ways_are_warmed_up_before_they_are_timed_in_turn() -> None:
    order: list[str] = []

    def way(name: str) -> int:
        order.append(name)
        return 3

    mine, theirs = in_turn(lambda: way("a"), lambda: way("b"), 2, CPU)
    assert order == ["a", "b", "a", "b", "a", "b"]
    assert theirs is not None and [t.tokens for t in mine + theirs] == [3] * 4


def test_a_ratio_is_of_tokens_a_second() -> None:
    row = Row("work", "a", "b", [Timing(1.0, 30, 0.0)], [Timing(2.0, 20, 0.0)])
    assert row.ratios == [3.0]


def test_ragged_lengths_go_from_a_quarter_to_all() -> None:
    found = lengths(64, 256)
    assert sorted(found) != list(found) and min(found) == 64 and max(found) == 256
    assert sum(found) / 64 == pytest.approx(160, abs=1)


def test_an_answer_that_is_too_short_spoils_the_measurement() -> None:
    assert count_tokens([(1, 2), (3,)], [2, 1]) == 3
    with pytest.raises(RuntimeError, match="shorter"):
        count_tokens([(1, 2), (3,)], [2, 2])


def test_a_batch_of_answers_samples_just_the_answers() -> None:
    batch = batch_of([((1, 2), (3, 4, 5)), ((6,), (7,))])
    assert batch.tokens[batch.mask].tolist() == [3, 4, 5, 7]
    assert batch.row.tolist() == [0] * 5 + [1] * 2 and batch.positions.tolist() == [0, 1, 2, 3, 4, 0, 1]


def test_shapes_have_the_size_they_are_called_by() -> None:
    def size(name: str) -> float:
        shape = SHAPES[name]
        heads = shape.num_attention_heads
        width = shape.hidden_size // heads
        block = shape.hidden_size * (2 * heads + 2 * shape.num_key_value_heads) * width
        block += 3 * shape.hidden_size * shape.intermediate_size
        return shape.num_hidden_layers * block + shape.vocab_size * shape.hidden_size

    assert size("135m") == pytest.approx(135e6, rel=0.01) and size("3b") == pytest.approx(3.09e9, rel=0.01)


KILLED = """
import multiprocessing, os, time
from concurrent.futures import ProcessPoolExecutor
from coterie.bench.games import _die_with_parent
if __name__ == "__main__":
    pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=_die_with_parent)
    print(pool.submit(os.getpid).result(), flush=True)
    pool.submit(time.sleep, 3600)
    os.kill(os.getpid(), 9)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_no_game_is_played_on_when_the_bench_was_killed(tmp_path: Path) -> None:
    (tmp_path / "killed.py").write_text(KILLED)
    ran = run_python([str(tmp_path / "killed.py")], seconds=HANG)
    child = Path("/proc") / ran.stdout.strip()
    assert ran.returncode == -9 and child.name.isdigit()
    assert eventually(lambda: not child.exists())
