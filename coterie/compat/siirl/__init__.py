"""Graphs in siiRL's YAML format: read, checked, and turned into a config. `docs/graph.md` says what means what."""
