"""Finds out before training what would go wrong in it."""

from coterie.check.findings import findings
from coterie.check.play import dry_run
from coterie.check.record import DryRun, Finding, Gap, Gold, Probe

__all__ = ["DryRun", "Finding", "Gap", "Gold", "Probe", "dry_run", "findings"]
