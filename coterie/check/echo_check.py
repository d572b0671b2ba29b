"""What roles do with what they read: repeat it, or judge it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from coterie.statistics import mean
from coterie.types import Episode, Turn
from coterie.workflows.verdict_parsing import verdict

RUN = 4  # words in a row that are hardly the same by chance
LEAST = 2 * RUN  # words of a text that is long enough to tell

Read = Callable[[Turn], str]  # all that stood before a turn


def echoes(played: Sequence[Episode], read: Read) -> dict[str, float]:
    """By role, which share of its words it had read just so, on average over turns that are not short.

    A turn repeats its prompt as far as runs of four words of it stand there.
    """
    shares: dict[str, list[float]] = {}
    for turn in _turns(played):
        if len(turn.text.split()) >= LEAST:
            known = set(_runs(read(turn)))
            said = list(_runs(turn.text))
            shares.setdefault(turn.role, []).append(mean([run in known for run in said]))
    return {role: mean(some) for role, some in shares.items()}


def _runs(text: str) -> Iterator[tuple[str, ...]]:
    words = text.lower().split()
    return (tuple(words[start : start + RUN]) for start in range(len(words) - RUN + 1))


def verdicts(played: Sequence[Episode], read: Read) -> dict[str, list[bool | None]]:
    """What those roles decided that judge others: whose prompt asks for a verdict, or who mostly give one without
    being the one who answers."""
    said: dict[str, list[bool | None]] = {}
    asked: set[str] = set()
    answers = {turn.role for episode in played for turn in episode.turns if turn.text == episode.answer}
    for turn in _turns(played):
        said.setdefault(turn.role, []).append(verdict(turn.text))
        if turn.round == 0 and "verdict" in read(turn).lower():
            asked.add(turn.role)
    return {
        role: given
        for role, given in said.items()
        if role in asked or (role not in answers and sum(one is not None for one in given) > len(given) / 2)
    }


def _turns(played: Sequence[Episode]) -> Iterator[Turn]:
    return (turn for episode in played for turn in episode.turns if turn.trainable)
