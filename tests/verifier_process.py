"""A server without a model, which starts quickly: `python -m tests.verifier_process PORT HASH SECONDS`."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from coterie.rewards.verifier import TooLong
from coterie.types import Message
from coterie.verifier.serve import MAX_BODY, MAX_QUEUE, serve


class ByLength:
    """A verifier without a model: the score is the length of the answer, in thousandths."""

    context = 1000

    def __init__(self, hash: str = "0123456789abcdef", seconds: float = 0.0) -> None:
        self.hash, self.seconds, self.batches = hash, seconds, list[int]()

    def score(self, conversations: Sequence[Sequence[Message]]) -> list[float]:
        self.batches.append(len(conversations))
        time.sleep(self.seconds)
        lengths = [len(conversation[-1]["content"]) for conversation in conversations]
        for number, length in enumerate(lengths, 1):
            if length > self.context:
                raise TooLong(f"conversation {number}: {length} characters are more than {self.context}")
        return [length / 1000 for length in lengths]


if __name__ == "__main__":
    port, model_hash, seconds = sys.argv[1:]
    serve(lambda: ByLength(model_hash, float(seconds)), "by length", "127.0.0.1", int(port), None, MAX_QUEUE, MAX_BODY)
