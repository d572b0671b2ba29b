"""Datasets that Coterie knows, and how their rows become tasks."""
