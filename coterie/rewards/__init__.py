"""What an answer is worth: plain functions `(answer, truth) -> float`, and how they are called."""

from coterie.rewards.grading import Composed, Grader, grader
from coterie.rewards.worker import TIMEOUTS, GraderFailed, GraderTimeout

__all__ = ["TIMEOUTS", "Composed", "Grader", "GraderFailed", "GraderTimeout", "grader"]
