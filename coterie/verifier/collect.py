"""Labelled answers from a training run's stored episodes: what its policies sampled while they learned."""

from __future__ import annotations

import sys
from pathlib import Path

from coterie.episode_files import episode_paths
from coterie.episode_rows import read_episodes
from coterie.errors import UserError
from coterie.rollout.metrics import describe_failures
from coterie.types import Episode
from coterie.verifier.answers import Answer
from coterie.verifier.generate import answers_of


class NoStoredEpisodes(UserError):
    """A run that has stored no episodes."""


def stored_answers(run: Path, last: int | None = None) -> list[Answer]:
    """The answers of a run's steps, or of its last ones, with the labels of the run's own reward."""
    files = episode_paths(run / "episodes")
    if not files:
        raise NoStoredEpisodes(f"{run}: no stored episodes; `coterie train` writes them, step by step")
    answers: list[Answer] = []
    failed: list[Episode] = []
    played = 0
    for episode in (episode for file in files[-last if last else 0 :] for episode in read_episodes(file)):
        played += 1
        if episode.error is None:
            answers += answers_of(episode)
        else:
            failed.append(episode)
    if failed:
        print(describe_failures(failed, played), file=sys.stderr)
    return answers
