"""Files and folders that a config names: beside it first, then from where the command was given."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, ValidationInfo

DEMO = "demo"  # the model of that name is no folder, even where there is one


def located(path: Path, folder: Path) -> Path:
    """Where it is, whole, so that a resumed run finds it; as it was written where there is none."""
    candidates = (folder / path.expanduser(), path.expanduser())
    return next((candidate.resolve() for candidate in candidates if candidate.exists()), path)


def _model(name: str, about: ValidationInfo) -> str:
    return name if name == DEMO else str(located(Path(name), about.context["folder"]))  # type: ignore[index]


Model = Annotated[str, AfterValidator(_model)]  # a folder or a file if there is one of that name, else a hub's
