"""Episodes made by hand and at random."""

from __future__ import annotations

import random
from collections.abc import Sequence

from coterie.algorithms.base import Algorithm
from coterie.credit.team import Team
from coterie.types import Episode, Metrics, Task, Turn


def turn(
    role: str = "solver",
    prompt: Sequence[int] = (1, 2),
    response: Sequence[int] = (3,),
    policy: str = "policy",
    logprobs: Sequence[float] | None = None,
    temperature: float = 1.0,
    round: int = 0,
) -> Turn:
    """A turn of which only what matters is named."""
    own = tuple(logprobs) if logprobs is not None else (-1.0,) * len(response)
    return Turn(role, policy, 0, round, tuple(prompt), tuple(response), own, temperature, "", "end")


def episode(turns: Sequence[Turn], reward: float = 0.0, task: str = "task", repeat: int = 0) -> Episode:
    return Episode(f"{task}/{repeat}", Task(task, "", None), repeat, list(turns), reward=reward)


def credited(algorithm: Algorithm, episodes: list[Episode]) -> Metrics:
    """The team's rewards shared as by default, then judged by the algorithm."""
    Team().assign(episodes, {}, team_chain=algorithm.chain == "team")
    return algorithm.compute_advantages(episodes, {})


def random_episodes(
    seed: int, count: int = 6, vocabulary: int = 384, policies: Sequence[str] = ("policy",)
) -> list[Episode]:
    """Ragged conversations: some turns go on from an earlier one, some start afresh, some say nothing.

    Prompts of one task begin alike, so there are prefixes to share.
    """
    draw = random.Random(seed)

    def ids(least: int, most: int) -> tuple[int, ...]:
        return tuple(draw.randrange(3, vocabulary) for _ in range(draw.randint(least, most)))

    beginnings = [ids(12, 20) for _ in range(2)]
    episodes = []
    for e in range(count):
        turns: list[Turn] = []
        for i in range(draw.randint(1, 5)):
            earlier = draw.choice(turns) if turns and draw.random() < 0.6 else None
            before = earlier.prompt_ids + earlier.response_ids if earlier else beginnings[e % 2]
            policy = earlier.policy if earlier and draw.random() < 0.8 else draw.choice(list(policies))
            response = ids(0 if draw.random() < 0.1 else 1, 7)
            noise = tuple(-3 * draw.random() for _ in response)
            heat = draw.choice([0.7, 1.0, 1.3])
            turns.append(turn(f"role {i % 3}", before + ids(0, 5), response, policy, noise, heat, round=i))
        episodes.append(episode(turns, reward=draw.random(), task=f"task {e % 2}", repeat=e // 2))
    return episodes
