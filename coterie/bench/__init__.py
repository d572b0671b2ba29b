"""Measures speed as ratios against a peer, in one run: same model, same work, warm-up outside the timing."""
