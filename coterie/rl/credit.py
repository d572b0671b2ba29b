"""From the rewards of turns to what each turn is credited with: pure functions."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import combinations
from math import comb, fsum
from typing import Literal

Mode = Literal["sum", "max", "mean", "first", "own"]
Horizon = Literal["discounted", "last", "current"]
Among = Literal["all", "individual"]

# What each role was given in each round; a role that was given nothing then is not in it.
Rounds = Sequence[Mapping[str, float]]


def returns_to_go(rewards: Sequence[float], chain: Sequence[Hashable], gamma: float) -> list[float]:
    """G_k = Σ_{j≥k} γ^{j−k} r_j over the later turns of its chain; k counts all turns, those of other chains too.

    `chain` names what a turn belongs to: its role, or one name for the whole team.

        a   b   a      γ = 0.5, one reward of 1 at the end  →  by role  0.25 0 1   of the team  0.25 0.5 1
    """
    returns = [0.0] * len(rewards)
    next_of: dict[Hashable, int] = {}
    for k in reversed(range(len(rewards))):
        after = next_of.get(chain[k])
        returns[k] = rewards[k] + (0.0 if after is None else gamma ** (after - k) * returns[after])
        next_of[chain[k]] = k
    return returns


def aggregated(given: Mapping[str, float], mode: Mode, role: str, first: str) -> float:
    """What one round is worth to a role, out of what its roles were given; nothing where nobody was."""
    if mode in ("own", "first"):
        whose = role if mode == "own" else first
        return given.get(whose, 0.0)
    return _TOGETHER[mode](list(given.values())) if given else 0.0


def mean(numbers: Sequence[float]) -> float:
    # fsum does not depend on the order, so neither does anything that is made of it.
    return fsum(numbers) / len(numbers)


_TOGETHER: dict[str, Callable[[Sequence[float]], float]] = {"sum": fsum, "max": max, "mean": mean}


def score_over_turns(rounds: Rounds, t: int, role: str, gamma: float, horizon: Horizon, among: Among) -> float:
    """MaPoRL's reward of a role's turn t. Among `all`, a score is the mean over the roles; else it is the role's own.

        discounted   the mean of this turn's and all later scores with weights 1, γ, γ² …; this turn's is the role's own
        last         the score of the last round
        current      the score of this round

    A round in which nobody concerned has a score counts neither above nor below the line.
    """
    left = range(t, len(rounds))
    own = {u: rounds[u][role] for u in left if role in rounds[u]}
    scores = own if among == "individual" else {u: mean(list(rounds[u].values())) for u in left if rounds[u]}
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


def revision(rounds: Rounds, t: int, role: str, leaving: float, joining: float) -> float:
    """MaPoRL's α1 (`leaving` the peers) and α0 (`joining` them), for changing one's mind:

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


def persuasion(rounds: Rounds, t: int, role: str, following: float, opposing: float) -> float:
    """MaPoRL's α3 (the peers `following` the role) and α2 (`opposing` it), for what became of them after its turn:

    peers wrong → right   +α3 if the role was right,  +α2 if it was wrong
    peers right → wrong   −α3 if the role was wrong,  −α2 if it was right
    """
    if t + 1 >= len(rounds) or role not in rounds[t]:
        return 0.0
    before, after = _peers_right(rounds[t], role), _peers_right(rounds[t + 1], role)
    if before is None or after is None or before == after:
        return 0.0
    return (1 if after else -1) * (following if is_above_half(rounds[t][role]) == after else opposing)


def _peers_right(given: Mapping[str, float], role: str) -> bool | None:
    """Whether more than half of the others are right; None where there are no others."""
    peers = [float(is_above_half(score)) for other, score in given.items() if other != role]
    return is_above_half(mean(peers)) if peers else None


def influenced(rounds: Rounds, weight: float) -> list[dict[str, float]]:
    """What roles were given, and `weight` more (or less) if the others did better (or worse) in the next round.

    All changes are taken before anything is added, so the order of roles does not matter.
    """
    return [
        {role: reward + weight * _direction(rounds[t : t + 2], role) for role, reward in given.items()}
        for t, given in enumerate(rounds)
    ]


def _direction(pair: Rounds, role: str) -> int:
    if len(pair) < 2:
        return 0
    before, after = pair
    change = fsum(sign * r[o] for o in before if o != role and o in after for sign, r in ((-1, before), (1, after)))
    return (change > 0) - (change < 0)


def shapley(worth: Mapping[frozenset[str], float], players: Sequence[str]) -> dict[str, float]:
    """What each player adds to a coalition, averaged over all orders in which the team could gather.

    `worth` has every subset of the players; shares sum to the worth of all less the worth of nobody.
    """
    shares = {}
    for player in players:
        others = [other for other in players if other != player]
        shares[player] = fsum(
            (worth[frozenset(some) | {player}] - worth[frozenset(some)]) / (len(players) * comb(len(others), size))
            for size in range(len(players))
            for some in combinations(others, size)
        )
    return shares
