"""What a run has reached in its game."""

from __future__ import annotations

import json
from statistics import mean

from coterie.games import kuhn, pennies
from coterie.games.model import LATE
from coterie.games.policy_probs import chances
from coterie.training.loop import Run
from coterie.training.opponents import TAKEN, slots


def earned(run: Run) -> float:
    """What the team earned on average in the last evaluation, as it samples."""
    last = (run.folder / "metrics.jsonl").read_text().splitlines()[-1]
    return float(json.loads(last)["eval/reward"])


def exploited(run: Run) -> tuple[float, float]:
    """How much can be won against the policy as it is in the end, and against the pool: its snapshots, one of which is
    drawn for each game. Both are exact, worked out from the chances of every move."""
    kept = slots(run.config, "player")[: run.memory[TAKEN]]
    if run.config.env.name.endswith("Kuhn"):
        last, mixed = kuhn_strategy(run, "player"), kuhn.average([kuhn_strategy(run, policy) for policy in kept])
        return kuhn.exploitability(last, last), kuhn.exploitability(mixed, mixed)
    past = [pennies_strategy(run, policy) for policy in kept]
    average = mean(first for first, _ in past), mean(second for _, second in past)
    return pennies.exploitability(*pennies_strategy(run, "player")), pennies.exploitability(*average)


def kuhn_strategy(run: Run, policy: str) -> dict[str, float]:
    """How a policy plays Kuhn poker in either seat, exactly."""
    reading = {kuhn.read(state[0], state[1:]): state for state in kuhn.SETS}
    return {reading[text]: bet for text, bet in chances(run.learners[policy], list(reading), LATE).items()}


def pennies_strategy(run: Run, policy: str) -> tuple[float, float]:
    """A policy's chance of tails in either seat, exactly."""
    tails = chances(run.learners[policy], list(pennies.READ.values()), LATE)
    return tails[pennies.READ[pennies.FIRST]], tails[pennies.READ[pennies.SECOND]]
