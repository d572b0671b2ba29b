"""The formulas behind `coterie/credit`, as pure functions: returns to go, rounds, MaPoRL, influence, Shapley values."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import combinations
from math import comb, fsum
from typing import Literal

from coterie.statistics import mean

Aggregation = Literal["sum", "max", "mean", "first", "own"]
Horizon = Literal["discounted", "last", "current"]
ScoreShare = Literal["all", "individual"]

# The own rewards of each round by role; a role without an own reward in a round is missing there.
Rounds = Sequence[Mapping[str, float]]


def returns_to_go(rewards: Sequence[float], chain: Sequence[Hashable], gamma: float) -> list[float]:
    """G_k = Σ_{j≥k} γ^{j−k} r_j over turn k and later turns of its chain; j and k count the turns of all chains.

    `chain[k]` is the chain of turn k: its role, or one name for the whole team.

        a   b   a      γ = 0.5, one reward of 1 at the end  →  by role  0.25 0 1   of the team  0.25 0.5 1
    """
    returns = [0.0] * len(rewards)
    next_of: dict[Hashable, int] = {}
    for k in reversed(range(len(rewards))):
        after = next_of.get(chain[k])
        returns[k] = rewards[k] + (0.0 if after is None else gamma ** (after - k) * returns[after])
        next_of[chain[k]] = k
    return returns


def aggregate_round(rewards: Mapping[str, float], mode: Aggregation, role: str, first: str) -> float:
    """One reward for a role from the own rewards of a round; 0 where no role has one."""
    if mode in ("own", "first"):
        return rewards.get(role if mode == "own" else first, 0.0)
    return _REDUCTIONS[mode](list(rewards.values())) if rewards else 0.0


# fsum, so that the result does not depend on the order of roles.
_REDUCTIONS: dict[str, Callable[[Sequence[float]], float]] = {"sum": fsum, "max": max, "mean": mean}


def score_over_turns(rounds: Rounds, t: int, role: str, gamma: float, horizon: Horizon, share: ScoreShare) -> float:
    """MaPoRL's reward of a role's turn t. With share `all` the score of a round is the mean over the roles, else the
    role's own.

        discounted   weighted mean of the scores from t on, with weights 1, γ, γ² …; that of round t is the role's own
        last         the score of the last round
        current      the score of round t

    Rounds without a score are left out of both sums of the weighted mean.
    """
    later = range(t, len(rounds))
    own = {u: rounds[u][role] for u in later if role in rounds[u]}
    scores = own if share == "individual" else {u: mean(list(rounds[u].values())) for u in later if rounds[u]}
    if horizon == "last":
        return scores[max(scores)] if scores else 0.0
    if horizon == "current":
        return scores.get(t, 0.0)
    terms = {u: scores[u] for u in scores if u > t} | {u: own[u] for u in own if u == t}
    weights = {u: gamma ** (u - t) for u in terms}
    total = sum(weights.values())
    return sum(weights[u] * score for u, score in terms.items()) / total if total > 0 else 0.0


def is_above_half(score: float) -> bool:
    return score > 0.5


def revision_incentive(rounds: Rounds, t: int, role: str, leaving: float, joining: float) -> float:
    """MaPoRL's incentive for revising one's own answer: α1 (`leaving` the peers) and α0 (`joining` them).

    right → wrong   −α1 if the peers were right,  −α0 if they were wrong
    wrong → right   +α1 if the peers were wrong,  +α0 if they were right
    """
    if t == 0 or role not in rounds[t - 1] or role not in rounds[t]:
        return 0.0
    before, now = is_above_half(rounds[t - 1][role]), is_above_half(rounds[t][role])
    peers = _peers_right(rounds[t - 1], role)
    if before == now or peers is None:
        return 0.0
    return (1 if now else -1) * (leaving if peers == before else joining)


def influence_incentive(rounds: Rounds, t: int, role: str, following: float, opposing: float) -> float:
    """MaPoRL's incentive for influencing the peers: α3 (they end `following` the role) and α2 (`opposing` it).

    peers wrong → right   +α3 if the role was right,  +α2 if it was wrong
    peers right → wrong   −α3 if the role was wrong,  −α2 if it was right
    """
    if t + 1 >= len(rounds) or role not in rounds[t]:
        return 0.0
    before, after = _peers_right(rounds[t], role), _peers_right(rounds[t + 1], role)
    if before is None or after is None or before == after:
        return 0.0
    return (1 if after else -1) * (following if is_above_half(rounds[t][role]) == after else opposing)


def _peers_right(rewards: Mapping[str, float], role: str) -> bool | None:
    """True if more than half of the other roles are right; None without other roles."""
    peers = [float(is_above_half(score)) for other, score in rewards.items() if other != role]
    return is_above_half(mean(peers)) if peers else None


def with_influence_bonus(rounds: Rounds, weight: float) -> list[dict[str, float]]:
    """Own rewards plus a bonus (MAVERL): ±`weight` by the sign of the other roles' change in the next round.

    All changes are computed before any bonus is added, so the order of roles does not matter.
    """
    return [
        {role: reward + weight * _direction(rounds[t : t + 2], role) for role, reward in rewards.items()}
        for t, rewards in enumerate(rounds)
    ]


def _direction(pair: Rounds, role: str) -> int:
    if len(pair) < 2:
        return 0
    before, after = pair
    change = fsum(sign * r[o] for o in before if o != role and o in after for sign, r in ((-1, before), (1, after)))
    return (change > 0) - (change < 0)


def shapley_values(coalition_rewards: Mapping[frozenset[str], float], players: Sequence[str]) -> dict[str, float]:
    """Each player's marginal contribution, averaged over all orders in which the team could form.

    `coalition_rewards` has every subset of the players; values sum to that of all minus that of none.
    """
    values = {}
    for player in players:
        others = [other for other in players if other != player]
        values[player] = fsum(
            (coalition_rewards[frozenset(some) | {player}] - coalition_rewards[frozenset(some)])
            / (len(players) * comb(len(others), size))
            for size in range(len(players))
            for some in combinations(others, size)
        )
    return values
