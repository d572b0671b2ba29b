"""What a policy really does in a game: the exact chances of its moves, read off its weights."""

from __future__ import annotations

from collections.abc import Sequence

from coterie.learners.batch import make_batches, scatter_to_turns
from coterie.learners.learner import TorchLearner
from coterie.types import Episode, Message, Task, Turn


def chances(learner: TorchLearner, prompts: Sequence[str], letters: Sequence[str]) -> dict[str, float]:
    """How likely a policy is to answer each prompt with one of these letters, a token each, at temperature 1."""
    turns = {(prompt, letter): _said(learner, prompt, letter) for prompt in prompts for letter in letters}
    # An episode each: in one, a turn that goes on from another would share its row.
    played = [Episode("", Task("", "", None), 0, [turn]) for turn in turns.values()]
    batch = make_batches(played, require_advantages=False)[learner.policy]
    scatter_to_turns(played, batch, learner.logprobs(batch), "old_logprobs")
    return {prompt: sum(_chance(turns[prompt, letter]) for letter in letters) for prompt in prompts}


def _said(learner: TorchLearner, prompt: str, letter: str) -> Turn:
    """The turn in which it had said so."""
    (token,) = learner.base.tokenizer(letter, add_special_tokens=False)["input_ids"]
    read = learner.base.chat.prompt([Message(role="user", content=prompt)])
    return Turn("", learner.policy, 0, 0, read, (token,), (0.0,), 1.0, letter, "length")


def _chance(turn: Turn) -> float:
    assert turn.old_logprobs is not None
    return float(turn.old_logprobs[0].exp())
