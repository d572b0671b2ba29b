"""The order of the rooms: a module imports only its own room and rooms above it, so there is no cycle between rooms."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from coterie.config.registry import BUILTIN, find

PACKAGE = Path(__file__).parents[2] / "coterie"
ORDER = (
    # Words and small tools that everything may use.
    *("types", "errors", "seeds", "files", "limits", "statistics", "user_code", "watchdog"),
    *("episode_files", "episode_rows", "prompts", "console", "web"),
    # The mathematics.
    *("rl", "algorithms", "credit"),
    # What teams work on.
    *("sandbox", "rewards", "data", "tools", "envs", "workflows"),
    "config",
    # What runs models.
    *("kernels", "models", "engines", "learners"),
    # What runs teams.
    *("rollout", "evaluation", "training", "cluster", "check", "view", "analysis", "verifier", "serve"),
    *("compat", "games", "bench"),
    # What people touch.
    *("decorators", "api_config", "cli", "api", "rllm", "__main__", "__init__"),
)


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
    """The rooms below its own that a file imports."""
    inside = path.relative_to(root)
    own = ORDER.index(inside.parts[0].removesuffix(".py"))
    package = ".".join(["coterie", *inside.parts[:-1]])
    return {part for part in parts_imported(path, package) if part in ORDER and ORDER.index(part) > own}


# What `config` and `check` may know of environments, workflows and credits: bases and a parser, no class of a kind.
BASES = {"envs.base", "credit.base", "workflows.verdict_parsing"}


def kinds_known(path: Path) -> set[str]:
    """The modules of environments, workflows and credits that a file imports, bases aside."""
    sources = {node.module for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)}
    inside = {source.removeprefix("coterie.") for source in sources if source}
    return {module for module in inside if module.startswith(("envs", "workflows", "credit"))} - BASES


@pytest.mark.parametrize("room", ["config", "check"])
def test_config_and_check_ask_a_part_instead_of_knowing_its_class(room: str) -> None:
    files = sorted((PACKAGE / room).rglob("*.py"))
    assert len(files) > 3
    assert {path.name: known for path in files if (known := kinds_known(path))} == {}


def algorithms_known(path: Path) -> set[str]:
    """The modules of concrete algorithms that a file imports."""
    tree = ast.parse(path.read_text())
    names = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    names |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    return {name for name in names if name.startswith("coterie.algorithms")} - {"coterie.algorithms.base"}


@pytest.mark.parametrize("part", ["config", "check", "learners", "training/build.py"])
def test_what_builds_and_checks_a_run_imports_no_concrete_algorithm(part: str) -> None:
    files = sorted((PACKAGE / part).rglob("*.py")) or [PACKAGE / part]
    assert {path.name: known for path in files if (known := algorithms_known(path))} == {}


@pytest.mark.parametrize("name", BUILTIN["algorithm"])
def test_an_algorithm_has_at_most_two_classes_above_it(name: str) -> None:
    assert len([base for base in find("algorithm", name).__mro__ if base is not object]) <= 3


def imports(path: Path, package: str) -> bool:
    """True if a file imports a package, also inside functions."""
    tree = ast.parse(path.read_text())
    names = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    names |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    return any(name.split(".")[0] == package for name in names)


def test_triton_is_imported_in_kernels_alone() -> None:
    importing = {path.relative_to(PACKAGE).parts[0] for path in PACKAGE.rglob("*.py") if imports(path, "triton")}
    assert importing == {"kernels"}


def test_ray_is_imported_in_cluster_alone() -> None:
    importing = {path.relative_to(PACKAGE).parts[0] for path in PACKAGE.rglob("*.py") if imports(path, "ray")}
    assert importing == {"cluster"}


EXTRAS = {"starlette", "uvicorn", "ray", "wandb", "vllm", "modelscope"}  # not in a plain install


def imported_at_once(path: Path) -> set[str]:
    """What a file imports when it is imported, as module names."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def test_without_the_extras_all_but_servers_and_the_cluster_can_be_imported() -> None:
    files = {
        ".".join(("coterie", *path.relative_to(PACKAGE).with_suffix("").parts)): path for path in PACKAGE.rglob("*.py")
    }
    uses = {name: imported_at_once(path) for name, path in files.items()}
    lost: set[str] = set()
    while found := {n for n, used in uses.items() if used & lost or {u.split(".")[0] for u in used} & EXTRAS} - lost:
        lost |= found
    others = {name for name in lost if not name.startswith(("coterie.cluster.", "coterie.serve."))}
    assert others == {f"coterie.{name}" for name in ("verifier.serve", "view.app", "web.requests", "web.server")}
    assert {"coterie.cluster.driver", "coterie.serve.app"} < lost


def test_every_room_has_its_place() -> None:
    rooms = {path.name.removesuffix(".py") for path in PACKAGE.iterdir()} - {"__pycache__", "py.typed"}
    assert rooms == set(ORDER) and len(set(ORDER)) == len(ORDER)


def test_a_room_imports_only_rooms_above_it() -> None:
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
        ("rl/losses.py", "from .groups import group_key", set()),
        ("rl/losses.py", "from coterie.types import Turn", set()),
        ("algorithms/ppo.py", "def f():\n    from coterie.learners.batch import join", {"learners"}),
        ("workflows/chain.py", "from coterie.engines.hf import HfEngine", {"engines"}),
        ("envs/deep/er.py", "from ...learners import learner", {"learners"}),
        ("rewards/math.py", "import torch, coterie_extras.training", set()),
        ("training/loop.py", "from coterie.cli.run import evaluate", {"cli"}),
        ("cli/app.py", "from coterie.training.build import build", set()),
    ],
)
def test_a_forbidden_import_is_found(file: str, line: str, found: set[str], tmp_path: Path) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(line)
    assert forbidden(tmp_path / file, tmp_path) == found
