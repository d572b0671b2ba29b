"""Environments: where tasks come from, and how answers are scored."""
