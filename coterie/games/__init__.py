"""Games with a known optimum, and a model so small that a training step takes milliseconds."""
