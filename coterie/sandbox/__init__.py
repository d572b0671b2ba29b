"""Run Python that nobody has read: bounded, cut off, and gone when its time is up."""

from coterie.sandbox.pool import Sandbox, SandboxReduced, files_in, shared
from coterie.sandbox.record import Ended, Limits, Ran
from coterie.sandbox.worker import SandboxBroken

__all__ = ["Ended", "Limits", "Ran", "Sandbox", "SandboxBroken", "SandboxReduced", "files_in", "shared"]
