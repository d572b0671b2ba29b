"""The notebook of the demo: its cells run on a run that is there."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.runs import naming_config, trained

NOTEBOOK = Path(__file__).parents[2] / "examples" / "demo.ipynb"


def test_the_cells_run_and_hold_no_output(
    model_folder: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tree = naming_config(model_folder("llama"), steps=2, eval={"every": 1, "tasks": 2})
    tree["roles"] = {"first": "left", "second": "right"}
    tree["workflow"]["order"] = ["first", "second"]
    tree["env"]["letters"] = {"first": "e", "second": "a"}
    trained(tree, tmp_path / "runs" / "demo")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)
    names: dict[str, object] = {}
    for cell in cells:
        code = compile("".join(cell["source"]), "cell", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        result = eval(code, names)
        if inspect.iscoroutine(result):
            asyncio.run(result)
    assert "first: " in capsys.readouterr().out and len(names["figure"].axes) == 2  # type: ignore[attr-defined]
