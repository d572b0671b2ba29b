"""Who may import whom. This rule keeps engines out of workflows, and clusters out of algorithms."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "coterie"
ALL = {path.stem if path.is_file() else path.name for path in PACKAGE.iterdir()} - {
    "__pycache__",
    "py.typed",
    "__init__",
}
COMMAND_LINE = {"cli", "commands", "sessions"}
WEIGHTY = {"engines", "learners", "cluster", "train", "build", *COMMAND_LINE}

# Part of the package → what it may import of ours. Parts that are not named leave `build` to the command line.
MAY: dict[str, set[str]] = {
    "types": set(),
    "rl": {"types"},
    "algorithms": {"types", "rl"},
    "credit": {"types", "rl", "errors"},
    **{part: ALL - WEIGHTY for part in ("workflows", "envs", "rewards", "tools")},
    "build": ALL - COMMAND_LINE,
    **{part: ALL for part in (*COMMAND_LINE, "__main__", "api", "bench")},
}


def parts_imported(path: Path, package: str) -> Iterator[str]:
    """The parts of ours that a file imports, also inside functions and for type checkers only."""
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            names = [f"{source}.{alias.name}" for alias in node.names]
        yield from (name.split(".")[1] for name in names if name.startswith("coterie.") and name.count("."))


def forbidden(path: Path, root: Path) -> set[str]:
    inside = path.relative_to(root)
    part = inside.parts[0].removesuffix(".py")
    package = ".".join(["coterie", *inside.parts[:-1]])
    return set(parts_imported(path, package)) - MAY.get(part, ALL - {"build", *COMMAND_LINE}) - {part, "__version__"}


def test_every_part_imports_only_what_it_may() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 50
    broken = {str(path.relative_to(PACKAGE)): found for path in files if (found := forbidden(path, PACKAGE))}
    assert broken == {}


@pytest.mark.parametrize(
    ("file", "line", "found"),
    [
        ("types.py", "import coterie.seeds", {"seeds"}),
        ("types.py", "from coterie import seeds", {"seeds"}),
        ("rl/losses.py", "from coterie.models.base import Base", {"models"}),
        ("rl/losses.py", "from ..models.base import Base", {"models"}),
        ("rl/losses.py", "from .groups import number", set()),
        ("algorithms/ppo.py", "def f():\n    from coterie.batch import join", {"batch"}),
        ("workflows/chain.py", "from coterie.engines.hf import HfEngine", {"engines"}),
        ("envs/deep/er.py", "from ...learners import torch", {"learners"}),
        ("rewards/math.py", "import coterie.cluster.ray as ray", {"cluster"}),
        ("rewards/math.py", "import torch, coterie_extras.train", set()),
        ("train.py", "from coterie.build import build", {"build"}),
        ("cli.py", "from coterie.build import build", set()),
    ],
)
def test_a_forbidden_import_is_found(file: str, line: str, found: set[str], tmp_path: Path) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(line)
    assert forbidden(tmp_path / file, tmp_path) == found


def test_a_part_of_a_graph_can_be_imported_first() -> None:
    """Graphs are made of what configs are made of: were they imported at the top of a config's file, too, only one of
    the two could come first."""
    for path in (PACKAGE / "config").glob("*.py"):
        tops = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ImportFrom)]
        assert not [node.module for node in tops if str(node.module).startswith("coterie.graph")], path
