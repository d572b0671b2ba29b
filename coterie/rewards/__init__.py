"""Score answers: plain functions `(answer, truth) -> float`, and the graders that call them safely."""

from coterie.rewards.grader import Composed, Grader, make_grader
from coterie.rewards.grader_pool import TIMEOUTS, GraderFailed, GraderTimeout

__all__ = ["TIMEOUTS", "Composed", "Grader", "GraderFailed", "GraderTimeout", "make_grader"]
