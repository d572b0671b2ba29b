"""Measures speed as ratios against a baseline, in one run: same model, same work, warm-up outside the timing."""
