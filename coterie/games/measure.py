"""The result of a run: the team's reward, or the exploitability in a zero-sum game."""

from __future__ import annotations

import json
from statistics import mean

from coterie.games import kuhn, pennies
from coterie.games.model import LATE
from coterie.games.policy_probs import reply_probs
from coterie.training.loop import Run
from coterie.training.opponents import TAKEN, slots


def team_reward(run: Run) -> float:
    """The team's mean reward in the last evaluation, when sampling."""
    last = (run.folder / "metrics.jsonl").read_text().splitlines()[-1]
    return float(json.loads(last)["eval/reward"])


def final_exploitability(run: Run) -> tuple[float, float]:
    """Exploitability of the final policy, and of the pool of snapshots, one of which is drawn for each game. Both are
    exact: computed from the probability of every move."""
    snapshots = slots(run.config, "player")[: run.memory[TAKEN]]
    if run.config.env.name.endswith("Kuhn"):
        last, mixed = kuhn_strategy(run, "player"), kuhn.average([kuhn_strategy(run, policy) for policy in snapshots])
        return kuhn.exploitability(last, last), kuhn.exploitability(mixed, mixed)
    past = [pennies_strategy(run, policy) for policy in snapshots]
    average = mean(first for first, _ in past), mean(second for _, second in past)
    return pennies.exploitability(*pennies_strategy(run, "player")), pennies.exploitability(*average)


def kuhn_strategy(run: Run, policy: str) -> dict[str, float]:
    """A policy's probability to bet in every information set, for both roles."""
    states = {kuhn.prompt_of(state[0], state[1:]): state for state in kuhn.SETS}
    bets = reply_probs(run.learners[policy], run.collector.chats[policy], list(states), LATE)
    return {states[text]: bet for text, bet in bets.items()}


def pennies_strategy(run: Run, policy: str) -> tuple[float, float]:
    """A policy's probability of tails, for both roles."""
    tails = reply_probs(run.learners[policy], run.collector.chats[policy], list(pennies.PROMPTS.values()), LATE)
    return tails[pennies.PROMPTS[pennies.FIRST]], tails[pennies.PROMPTS[pennies.SECOND]]
