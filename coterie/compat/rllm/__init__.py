"""rLLM's training scripts: its reward functions, datasets, parameters and agents. `coterie.rllm` has its names."""
