"""Options of an algorithm that contradict each other or have no effect."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.algorithms.base import Algorithm

SPEAK_ONCE = ("single", "chain", "cory", "summarize")  # workflows of one round
# Workflow options that set the number of rounds.
ROUNDS = ("rounds", "max_rounds", "max_refinement_iterations", "max_steps", "max_assistant_turns", "layers", "voters")


def shared_option_problems(algorithm: Algorithm, config: Any) -> Iterator[tuple[str, str]]:
    """Problems with the options that all algorithms share, as (dotted key, message)."""
    changed = {f.name for f in fields(algorithm) if getattr(algorithm, f.name) != f.default}
    for key in ("kl_in", "kl_estimator"):
        if algorithm.kl == 0 and key in changed:
            yield f"algorithm.{key}", "has no effect while algorithm.kl is 0"
    if algorithm.kl > 0 and algorithm.kl_in == "reward" and "kl_estimator" in changed:
        yield "algorithm.kl_estimator", "has no effect with kl_in: reward, which always takes k1"
    if algorithm.entropy == 0 and algorithm.entropy_halves is not None:
        yield "algorithm.entropy_halves", "has no effect while algorithm.entropy is 0"
    if algorithm.single_update:
        for key in ("dual_clip", "clip_high", "clip", "stop_kl"):
            if key in changed:
                yield f"algorithm.{key}", "has no effect with one epoch and one minibatch: every ratio is 1"
    if algorithm.level == "token" and "normalize" in changed:
        yield "algorithm.normalize", "has no effect with level: token, where every token has its own ratio"
    if (algorithm.reduce == "fixed") != (algorithm.reduce_length is not None):
        yield "algorithm.reduce_length", "goes with reduce: fixed, which divides by it, and with nothing else"
    trained = [name for name, policy in config.policies.items() if not policy.frozen]
    if algorithm.rotate is not None and len(trained) < 2:
        yield "algorithm.rotate", f"has no effect: {len(trained)} policy trains, so there is none to alternate with"
    if algorithm.rotate_turns is not None and _has_one_round(config.workflow):
        yield "algorithm.rotate_turns", f"has no effect: in {config.workflow.name} every role speaks once"


def _has_one_round(workflow: Any) -> bool:
    """True for built-in workflows in which every role speaks once; of other workflows this is unknown."""
    rounds = [workflow.options[key] for key in ROUNDS if key in workflow.options]
    return workflow.name in SPEAK_ONCE or rounds == [1]
