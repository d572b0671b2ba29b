"""Run untrusted Python: in its own namespaces, under rlimits, killed at its deadline."""

from coterie.sandbox.bubblewrap import SandboxMissing
from coterie.sandbox.limits import Limits, RunResult, Status
from coterie.sandbox.process import SandboxBroken
from coterie.sandbox.sandbox import Sandbox, SandboxReduced, allow_unsafe, files_in, shared, unprotected

__all__ = [
    "Limits", "RunResult", "Sandbox", "SandboxBroken", "SandboxMissing", "SandboxReduced", "Status", "allow_unsafe",
    "files_in", "shared", "unprotected",
]  # fmt: skip
