"""Run Python that nobody has read: bounded, cut off, and gone when its time is up."""

from coterie.sandbox.available import SandboxMissing
from coterie.sandbox.pool import Sandbox, SandboxReduced, allow_unsafe, files_in, shared, unprotected
from coterie.sandbox.record import Ended, Limits, Ran
from coterie.sandbox.worker import SandboxBroken

__all__ = [
    "Ended", "Limits", "Ran", "Sandbox", "SandboxBroken", "SandboxMissing", "SandboxReduced", "allow_unsafe",
    "files_in", "shared", "unprotected",
]  # fmt: skip
