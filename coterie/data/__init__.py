"""The known datasets, and how their rows are parsed into tasks."""
