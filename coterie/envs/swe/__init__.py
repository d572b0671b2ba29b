"""SWE-bench style environment: a project, an issue, edits, and tests that cannot be forged."""
