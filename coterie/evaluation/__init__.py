"""Evaluation on held-out tasks, and the single-agent baselines that a team has to beat."""
