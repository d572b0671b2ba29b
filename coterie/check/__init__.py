"""`coterie check`: a dry run that finds problems before training."""

from coterie.check.findings import findings
from coterie.check.play import dry_run
from coterie.check.record import DryRun, Finding, Gap, Probe, ReferenceProbe

__all__ = ["DryRun", "Finding", "Gap", "Probe", "ReferenceProbe", "dry_run", "findings"]
