"""What many tests share."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

os.environ["TRITON_INTERPRET"] = "0" if torch.cuda.is_available() else "1"  # before anyone imports Triton

from coterie.engines.native import decode
from coterie.engines.native.kv_cache import PrefillLayout
from coterie.models.base import Base
from tests.models import KINDS, tiny
from tests.oracle import random_adapter

torch.set_num_threads(1)  # two busy processes with two threads each are far slower than with one each


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a tiny model, by its kind; made once and never written to."""
    return cache(lambda kind: tiny(kind, tmp_path_factory.mktemp("models") / kind))


@pytest.fixture(scope="session")
def team_base(model_folder: Callable[[str], Path]) -> Callable[[str], Base]:
    """A tiny base with adapters a, b and c on it that all say something else; made once and never changed."""

    @cache
    def make(kind: str) -> Base:
        base = Base(model_folder(kind))
        random_adapter(base, "a", 4, ("q_proj", "v_proj", "down_proj"), 1)
        random_adapter(base, "b", 2, ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"), 2)
        random_adapter(base, "c", 8, ("o_proj", "up_proj"), 3)
        return base

    return make


@pytest.fixture(params=list(KINDS))
def base(request: pytest.FixtureRequest, team_base: Callable[[str], Base]) -> Base:
    """The base of a team, once for each kind of model."""
    return team_base(request.param)


@pytest.fixture
def prefilled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens of prompts each forward of the native engine computed."""
    counts: list[int] = []

    class Counted(PrefillLayout):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            counts.append(len(self.positions))

    monkeypatch.setattr(decode, "PrefillLayout", Counted)
    return counts
