"""What the README says is so."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

from coterie.config import load
from coterie.config.conflicts import check_conflicts

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_the_config_of_the_readme_is_one(tmp_path: Path) -> None:
    (block,) = re.findall(r"^```yaml\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    (tmp_path / "readme.yaml").write_text(block)
    check_conflicts(load(tmp_path / "readme.yaml"))


def test_the_tree_of_the_readme_names_what_is_there_and_nothing_else() -> None:
    (tree,) = re.findall(r"^```\ncoterie/\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    inside, outside = tree.split("recipes/", 1)
    named = set(re.findall(r"\b\w+\.py\b", inside)) | set(re.findall(r"^  (\w+)/", inside, re.MULTILINE))
    package = ROOT / "coterie"
    files = {path.name for path in package.glob("[!_]*.py")}
    assert named == files | {path.parent.name for path in package.glob("*/__init__.py")}
    for folder in ("recipes", *re.findall(r"^(\w+)/", outside, re.MULTILINE)):
        assert (ROOT / folder).is_dir()


def test_every_page_that_the_readme_links_to_is_there() -> None:
    pages = re.findall(r"\]\((docs/[^)#]+)", README)
    assert len(pages) > 5
    assert all((ROOT / page).is_file() for page in pages)


def test_every_package_that_is_imported_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    told = [*project["dependencies"], *(name for extra in project["optional-dependencies"].values() for name in extra)]
    declared = {re.split(r"[<>=\[]", name)[0].lower().replace("_", "-") for name in told}
    declared |= {"modelscope", "trl", "datasets", "triton", "pip"}  # asked for where used, or brought along by another
    by_module = packages_distributions()
    for path in (ROOT / "coterie").rglob("*.py"):
        for module in imported(path) - set(sys.stdlib_module_names) - {"coterie"}:
            names = {name.lower().replace("_", "-") for name in by_module.get(module, [module])}
            assert names & declared, f"{path.name} imports {module}"


def imported(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    inside = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
    return {name.split(".")[0] for name in plain | inside}
