"""Trains a run on a Ray cluster: the same loop, the same run folder, the same numbers. The only package with Ray.

The driver has tasks, credit, batches, log and checkpoints. Rollout workers play chunks of episodes; learner workers
hold the weights and their optimizers. The driver owns recovery: it plays a lost chunk elsewhere, with the same tokens,
and restarts lost learners from the last checkpoint. Ray restarts nothing by itself.
"""
