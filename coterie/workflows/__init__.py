"""How roles talk about one task."""
