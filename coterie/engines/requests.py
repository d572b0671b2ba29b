"""What the engines share: the room for a reply, and the end of an engine loop with requests left."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from coterie.models.base import Base
from coterie.types import Sample, Sampling


def reply_room(base: Base, context: int, prompt_ids: Sequence[int], sampling: Sampling) -> int:
    """Check a prompt; the most tokens that its reply may have, 0 if the prompt fills the context."""
    base.check_prompt(prompt_ids)
    return max(0, min(sampling.max_tokens, context - len(prompt_ids)))


def loop_failed(driver: asyncio.Task[None], pending: Iterable[asyncio.Future[Sample]]) -> bool:
    """If an engine loop failed or was cancelled, fail or cancel all pending requests. False if it ended because no
    request was left: a later request starts another loop."""
    error = None if driver.cancelled() else driver.exception()
    if error is None and not driver.cancelled():
        return False
    for future in pending:
        if future.done():
            continue
        if error is None:
            future.cancel()
        else:
            future.set_exception(error)
    return True
