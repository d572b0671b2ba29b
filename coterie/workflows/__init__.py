"""Workflows: the order in which the roles of a team speak about one task."""
