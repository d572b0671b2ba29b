"""What a policy really does in a game: the exact chances of its moves, read off its weights."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from coterie.batch import hand_back, make_batches
from coterie.learners.torch import TorchLearner
from coterie.types import Episode, Message, Task, Turn


def chances(learner: TorchLearner, prompts: Sequence[str], move: str) -> dict[str, float]:
    """How likely a policy is to answer each prompt with this move, a letter of one token, at temperature 1."""
    chat = learner.base.chat
    (token,) = learner.base.tokenizer(move, add_special_tokens=False)["input_ids"]
    turns = []
    for prompt in prompts:
        read = chat.prompt([Message(role="user", content=prompt)])
        turns.append(Turn("", learner.policy, 0, 0, read, (token,), (0.0,), 1.0, move, "length"))
    # An episode each: in one, a turn that goes on from another would share its row.
    played = [Episode(prompt, Task(prompt, "", None), 0, [turn]) for prompt, turn in zip(prompts, turns, strict=True)]
    batch = make_batches(played, judged=False)[learner.policy]
    hand_back(played, batch, learner.logprobs(batch), "old_logprobs")
    return {prompt: float(logprob(turn).exp()) for prompt, turn in zip(prompts, turns, strict=True)}


def logprob(turn: Turn) -> Tensor:
    assert turn.old_logprobs is not None
    return turn.old_logprobs[0]
