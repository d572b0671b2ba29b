"""Games with a known best answer, and a model so small that a step of training takes milliseconds."""
