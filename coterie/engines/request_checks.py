"""What every engine asks of a request."""

from __future__ import annotations

from collections.abc import Sequence


def must_be_readable(prompt_ids: Sequence[int], vocabulary: int) -> None:
    """Refuse a prompt that the model cannot read: in a batch it would spoil what all others say."""
    if not prompt_ids:
        raise ValueError("the prompt is empty: there is nothing to go on from")
    if min(prompt_ids) < 0 or max(prompt_ids) >= vocabulary:
        wrong = next(token for token in prompt_ids if not 0 <= token < vocabulary)
        raise ValueError(f"token {wrong} of the prompt is not in the vocabulary, which has 0 to {vocabulary - 1}")
