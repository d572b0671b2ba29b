"""Multi-turn worlds and games: Nim, a treasure hunt, PettingZoo."""
