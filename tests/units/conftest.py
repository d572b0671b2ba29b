"""Fixtures of the units."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.configs import GOOD, PARTS


@pytest.fixture
def good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A config file that loads, beside a user's own parts; commands are given in its folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "parts.py").write_text(PARTS)
    (tmp_path / "good.yaml").write_text(GOOD)
    return Path("good.yaml")
