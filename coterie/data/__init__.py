"""Known data sets, and how their rows become tasks."""
