"""Names of advantage estimators in verl and the systems built on it (siiRL, MAVERL), and Coterie's algorithms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coterie.config.problems import Path, Problems
from coterie.errors import did_you_mean

KEY: Path = ("algorithm", "adv_estimator")
# `adv_estimator` → `algorithm.name`
ESTIMATORS = {
    "gae": "ppo",
    "ppo": "ppo",
    "gae_marft": "ppo",
    "grpo": "grpo",
    "grpo_vectorized": "grpo",
    "rloo": "rloo",
    "rloo_vectorized": "rloo",
    "reinforce_plus_plus": "reinforce++",
    "gspo": "gspo",
    **{name: name for name in ("dr_grpo", "dapo", "ippo", "mappo", "happo", "cory", "vdn", "qmix")},
}
# Estimators without a counterpart, and the nearest one.
NEAREST = {
    "remax": "rloo compares with the other episodes of a task instead of a greedy one",
    "reinforce_plus_plus_baseline": "reinforce++ with algorithm.group_by: [task] is near",
    "opo": "rloo is near, without weights by length",
    "grpo_passk": "grpo is near; pass@k is an evaluation metric here",
    "gpg": "dr_grpo is near: no clip matters with one update per step, and nothing is divided by a deviation",
    "cpgd": "dapo or gspo are near",
    "optimal_token_baseline": "rloo is near",
    "tir_optimal_token_baseline": "rloo is near",
}


def algorithm_of(estimator: Any) -> str:
    """The algorithm that an estimator's name means; a ValueError says which names there are."""
    if isinstance(estimator, str) and estimator in ESTIMATORS:
        return ESTIMATORS[estimator]
    near = f": {NEAREST[estimator]}" if isinstance(estimator, str) and estimator in NEAREST else ""
    hint = did_you_mean(str(estimator), ESTIMATORS)
    raise ValueError(f"adv_estimator {estimator!r} has no counterpart here{near}; {', '.join(ESTIMATORS)} have{hint}")


def replace_estimator(tree: Mapping[str, Any], problems: Problems) -> None:
    """`algorithm: {adv_estimator: gae}` becomes `algorithm: {name: ppo}`; on the command line it overrides the name."""
    algorithm = tree.get("algorithm")
    if not isinstance(algorithm, dict) or KEY[1] not in algorithm:
        return
    try:
        name = algorithm_of(algorithm.pop(KEY[1]))
    except ValueError as error:
        problems.refuse(KEY, str(error))  # without a name the algorithm's options cannot be read
    written, sources = algorithm.get("name", name), problems.sources
    if written != name and not sources.is_overridden(KEY):
        problems.add(KEY, f"means the algorithm {name}, but algorithm.name is {written}; remove one of them")
        return
    algorithm["name"] = name
    sources.places["algorithm", "name"] = sources.place(KEY)
