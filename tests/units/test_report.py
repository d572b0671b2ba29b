"""What the commands print."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import rich.console

from coterie.cli.report import dialogues, learning_curve, next_steps
from coterie.evaluation.evaluate import Report
from tests.episodes import episode
from tests.runs import naming_config, resumed, trained, written


def printed(parts: Iterable[rich.console.RenderableType]) -> list[str]:
    screen = rich.console.Console(width=80, record=True, file=io.StringIO())
    for part in parts:
        screen.print(part)
    return [line.rstrip() for line in screen.export_text().splitlines()]


def drawn(evaluations: Mapping[int, float]) -> list[str]:
    return printed(learning_curve(evaluations))


def test_examples_begin_with_tasks_whose_outcome_changed_and_say_how_many_did() -> None:
    before, after = ([0.0, 1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 1.0, 0.0, 1.0])
    reports = [Report({}, [episode([], reward) for reward in rewards]) for rewards in (before, after)]
    lines = printed(dialogues(*reports, count=4))
    assert "2 of 5 held-out tasks improved, 1 got worse; some of these, then others:" in " ".join(lines)
    assert [line.split()[1:] for line in lines if line.split()[:1] == ["reward"]] == [
        ["0.00", "1.00"],
        ["1.00", "0.00"],
        ["0.00", "1.00"],
        ["0.00", "0.00"],
    ]


def test_a_learning_curve_has_a_bar_for_each_evaluation() -> None:
    assert drawn({0: 0.31, 8: 0.6, 16: 0.75}) == [
        "held-out reward during training",
        "    1.00 ┤",
        "         │                 ▆▆▆▆",
        "         │          ████   ████",
        "         │   ▄▄▄▄   ████   ████",
        "    0.00 ┤   ████   ████   ████",
        "             0.31   0.60   0.75",
        "after step      0      8     16",
        "",
    ]


def test_a_curve_of_less_than_two_points_is_not_drawn() -> None:
    assert drawn({}) == drawn({16: 0.5}) == drawn({0: float("nan"), 16: 0.5}) == []


def test_a_long_curve_keeps_its_first_and_last_point_and_fits_the_screen() -> None:
    lines = drawn({step: step / 100 - 5 for step in range(0, 1001, 10)})
    assert all(len(line) < 80 for line in lines)
    assert lines[1].startswith("    5.00 ┤") and lines[5].startswith("   -5.00 ┤")
    numbers = lines[7].removeprefix("after step").split()
    assert len(numbers) == 9 and (numbers[0], numbers[-1]) == ("0", "1000")


def test_a_resumed_run_remembers_its_evaluations(model_folder: Callable[[str], Path], tmp_path: Path) -> None:
    tree = naming_config(model_folder("llama"), steps=2, eval={"tasks": 2, "every": 1})
    first = trained(tree, tmp_path)
    assert list(first.log.evaluations) == [0, 1, 2]
    again = resumed(tree | {"steps": 3}, tmp_path).log.evaluations
    assert list(again) == [0, 1, 2, 3] and first.log.evaluations.items() <= again.items()


def test_an_evaluation_is_suggested_only_if_there_is_something_to_evaluate(tmp_path: Path) -> None:
    for tasks in (4, 0):
        config = written(naming_config(tmp_path, eval={"tasks": tasks}), tmp_path / f"of-{tasks}")
        shown = str(next_steps(Path("runs/r"), config, 4, finished=True))
        assert ("coterie eval runs/r" in shown) == (tasks > 0) and "--resume runs/r steps=8" in shown
