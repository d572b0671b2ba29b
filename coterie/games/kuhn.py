"""Kuhn poker: three cards, two players, one bet. Small enough to compute exploitability exactly.

Both players pay one chip and get a card. A pass (`p`) is a check or a fold; a bet (`b`) adds one chip, or calls:

    p p      the higher card wins 1        b p      first wins 1
    p b p    second wins 1                 b b      the higher card wins 2
    p b b    the higher card wins 2
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from typing import Any

from coterie.games.model import is_late
from coterie.types import Episode, Split, Task, Team

CARDS = "jqk"  # from the lowest to the highest
FIRST, SECOND = "first", "second"
HISTORIES = {FIRST: ("", "pb"), SECOND: ("p", "b")}  # where each has to move
ENDS = ("pp", "pbp", "pbb", "bp", "bb")
SETS = tuple(card + history for histories in HISTORIES.values() for card, history in product(CARDS, histories))
SIGN = dict(zip(SETS, "acefghijklqr", strict=True))  # the prompt of each: one letter

Strategy = Mapping[str, float]  # the probability to bet, by own card and history: "kpb"


@dataclass(frozen=True)
class KuhnTable:
    """Two players that read their own card and the history; a letter after `h` is a bet, any other a pass."""

    @property
    def roles(self) -> Sequence[str]:
        return FIRST, SECOND

    async def run(self, task: Task, team: Team, world: Any) -> str:
        history = ""
        while history not in ENDS:
            role = FIRST if history in HISTORIES[FIRST] else SECOND
            turn = await team[role].say(prompt_of(task.meta[role], history))
            history += "b" if is_late(turn.text) else "p"
        return history


@dataclass(frozen=True)
class Kuhn:
    """The six deals. Each player's winnings are its own last turn's reward; the episode's are those of the first."""

    def tasks(self, split: Split) -> list[Task]:
        return [Task(f"{split}/{a}{b}", "", None, {FIRST: a, SECOND: b}) for a, b in permutations(CARDS, 2)]

    def open(self, task: Task) -> None:
        return None

    async def score(self, episode: Episode) -> None:
        deal = episode.task.meta
        episode.reward = won(deal[FIRST], deal[SECOND], episode.answer)
        for role, gain in ((FIRST, episode.reward), (SECOND, -episode.reward)):
            last = [turn for turn in episode.turns if turn.role == role][-1]
            last.reward = gain


def prompt_of(card: str, history: str) -> str:
    """The prompt of a player that has to move: one letter that encodes its card and the history."""
    return SIGN[card + history]


def won(first: str, second: str, history: str) -> float:
    """The chips that the first player wins."""
    if history == "bp":
        return 1.0
    if history == "pbp":
        return -1.0
    stake = 2.0 if history.endswith("bb") else 1.0
    return stake if CARDS.index(first) > CARDS.index(second) else -stake


def value(first: Strategy, second: Strategy, history: str = "", deal: tuple[str, str] | None = None) -> float:
    """The first player's expected winnings."""
    if deal is None:
        return sum(value(first, second, "", (a, b)) for a, b in permutations(CARDS, 2)) / 6
    if history in ENDS:
        return won(*deal, history)
    bet = first[deal[0] + history] if history in HISTORIES[FIRST] else second[deal[1] + history]
    return bet * value(first, second, history + "b", deal) + (1 - bet) * value(first, second, history + "p", deal)


def best_response(role: str, against: Strategy) -> float:
    """The expected winnings of a best response to a known strategy."""
    return sum(_best(role, card, "", {c: 1 / 6 for c in CARDS if c != card}, against) for card in CARDS)


def _best(role: str, card: str, history: str, chances: Mapping[str, float], against: Strategy) -> float:
    """`best_response` from an information set on. `chances`: by card of the opponent, its probability times that of the
    opponent's moves so far."""
    if history in ENDS:
        sign = 1 if role == FIRST else -1
        deals = {other: (card, other) if role == FIRST else (other, card) for other in chances}
        return sum(sign * chance * won(*deals[other], history) for other, chance in chances.items())
    if history in HISTORIES[role]:
        # One choice for all cards that the other may hold: the card is hidden.
        return max(_best(role, card, history + action, chances, against) for action in "pb")
    bets = {other: chance * against[other + history] for other, chance in chances.items()}
    passes = {other: chance - bets[other] for other, chance in chances.items()}
    return _best(role, card, history + "b", bets, against) + _best(role, card, history + "p", passes, against)


def exploitability(first: Strategy, second: Strategy) -> float:
    """The mean expected winnings of best responses, over both roles; 0 only in equilibrium."""
    return (best_response(FIRST, second) + best_response(SECOND, first)) / 2


def average(strategies: Sequence[Strategy]) -> dict[str, float]:
    """The mixture of strategies, one of which is drawn before each deal. At an information set, each is weighted by the
    probability that its own moves lead there."""
    mixed = {}
    for state in SETS:
        reach = [1 - s[state[0]] if state[1:] == "pb" else 1.0 for s in strategies]
        bets = sum(r * s[state] for r, s in zip(reach, strategies, strict=True))
        mixed[state] = bets / sum(reach) if sum(reach) > 0 else 0.5
    return mixed
