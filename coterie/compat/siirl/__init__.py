"""Graphs in siiRL's YAML format: read, checked, and turned into a config. `docs/coming-from-siirl.md` describes it."""
