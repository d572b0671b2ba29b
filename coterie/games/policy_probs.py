"""The exact probabilities of a policy's moves in a game, computed from its weights."""

from __future__ import annotations

from collections.abc import Sequence

from coterie.learners.batch import make_batches, scatter_to_turns
from coterie.models.chat import Chat
from coterie.types import Episode, Learner, Message, Task, Turn


def reply_probs(learner: Learner, chat: Chat, prompts: Sequence[str], letters: Sequence[str]) -> dict[str, float]:
    """The probability that a policy replies with one of these letters, by prompt, at temperature 1."""
    turns = {(prompt, letter): _scripted_turn(chat, prompt, letter) for prompt in prompts for letter in letters}
    # One episode per turn: within one, a turn that continues another would share its row.
    played = [Episode("", Task("", "", None), 0, [turn]) for turn in turns.values()]
    (batch,) = make_batches(played, require_advantages=False).values()
    scatter_to_turns(played, batch, learner.logprobs(batch), "old_logprobs")
    return {prompt: sum(_probability(turns[prompt, letter]) for letter in letters) for prompt in prompts}


def _scripted_turn(chat: Chat, prompt: str, letter: str) -> Turn:
    """A turn with this reply."""
    (token,) = chat.tokenizer(letter, add_special_tokens=False)["input_ids"]
    read = chat.prompt([Message(role="user", content=prompt)])
    return Turn("", "", 0, 0, read, (token,), (0.0,), 1.0, letter, "length")


def _probability(turn: Turn) -> float:
    assert turn.old_logprobs is not None
    return float(turn.old_logprobs[0].exp())
