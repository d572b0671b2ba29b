"""Deadlines of tests are for hangs only: how long a test waits before it says that something never comes."""

from __future__ import annotations

import time
from collections.abc import Callable

HANG = 1800.0  # seconds; what works takes less, however many others use the machine


def eventually(holds: Callable[[], bool]) -> bool:
    """Whether something comes to hold before it counts as hung."""
    until = time.monotonic() + HANG
    while not holds() and time.monotonic() < until:
        time.sleep(0.05)
    return holds()
