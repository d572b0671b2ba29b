"""The recipes that come with Coterie: list them, and copy one to start from."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import coterie
from coterie.errors import UserError, did_you_mean
from coterie.files import reporting_write_errors

BESIDE = re.compile(r"[\w-]+\.(?:py|yaml)\b")  # names of files in a recipe's text


def recipes_folder() -> Path:
    """Inside the installed package, or beside it in a checkout."""
    package = Path(coterie.__file__).parent
    installed = package / "recipes"
    return installed if installed.is_dir() else package.parent / "recipes"


def recipes() -> dict[str, Path]:
    """The recipes by name: `demo`, `results/split_work/team` …"""
    folder = recipes_folder()
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.rglob("*.yaml"))}


def find_recipe(name: str) -> Path:
    known = recipes()
    if name not in known:
        raise UserError(f"there is no recipe {name!r}; there is {', '.join(known)}{did_you_mean(name, known)}")
    return known[name]


def about(recipe: Path) -> str:
    """The first sentence of a recipe's header."""
    lines = []
    for line in recipe.read_text().splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# ").strip())
    return re.split(r"(?<=[.?])\s", " ".join(lines), maxsplit=1)[0]


def copy_recipe(name: str, folder: Path) -> list[Path]:
    """Copy a recipe and the files beside it that it names into a folder; never overwrites a file."""
    files = [find_recipe(name), *_named_by(find_recipe(name), set())]
    targets = [folder / file.name for file in files]
    for target in targets:
        if target.exists():
            raise UserError(f"{target} exists already; `--out FOLDER` writes elsewhere")
    with reporting_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for file, target in zip(files, targets, strict=True):
            shutil.copyfile(file, target)
    return targets


def _named_by(file: Path, seen: set[Path]) -> Iterator[Path]:
    """The files beside a recipe that it names, and those that they name."""
    seen.add(file)
    for name in BESIDE.findall(file.read_text()):
        beside = file.parent / name
        if beside.is_file() and beside not in seen:
            yield beside
            yield from _named_by(beside, seen)
