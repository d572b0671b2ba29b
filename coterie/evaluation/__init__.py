"""Measures teams against what they must beat."""
