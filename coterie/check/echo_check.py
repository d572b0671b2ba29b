"""Measures how much of its prompt each role repeats (n-gram overlap), and parses the verdicts of judging roles."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from coterie.statistics import mean
from coterie.types import Episode, Turn
from coterie.workflows.verdict_parsing import verdict

NGRAM = 4  # words per n-gram; four are rarely the same by chance
MIN_WORDS = 2 * NGRAM  # words that a text must have to be counted

Read = Callable[[Turn], str]  # the prompt of a turn


def echoes(played: Sequence[Episode], read: Read) -> dict[str, float]:
    """By role, the mean share of 4-grams of its replies that occur in their prompts; short replies do not count."""
    shares: dict[str, list[float]] = {}
    for turn in _turns(played):
        if len(turn.text.split()) >= MIN_WORDS:
            prompt = set(_ngrams(read(turn)))
            reply = list(_ngrams(turn.text))
            shares.setdefault(turn.role, []).append(mean([ngram in prompt for ngram in reply]))
    return {role: mean(some) for role, some in shares.items()}


def _ngrams(text: str) -> Iterator[tuple[str, ...]]:
    words = text.lower().split()
    return (tuple(words[start : start + NGRAM]) for start in range(len(words) - NGRAM + 1))


def verdicts(played: Sequence[Episode], read: Read) -> dict[str, list[bool | None]]:
    """The verdicts of judging roles: their prompt asks for a verdict, or most of their replies have one and are not the
    team's answer."""
    verdicts_of: dict[str, list[bool | None]] = {}
    judges: set[str] = set()
    answers = {turn.role for episode in played for turn in episode.turns if turn.text == episode.answer}
    for turn in _turns(played):
        verdicts_of.setdefault(turn.role, []).append(verdict(turn.text))
        if turn.round == 0 and "verdict" in read(turn).lower():
            judges.add(turn.role)
    return {
        role: found
        for role, found in verdicts_of.items()
        if role in judges or (role not in answers and sum(one is not None for one in found) > len(found) / 2)
    }


def _turns(played: Sequence[Episode]) -> Iterator[Turn]:
    return (turn for episode in played for turn in episode.turns if turn.trainable)
