"""vLLM as the engine, in this process: for models that it serves better. `pip install -e '.[vllm]'`.

It keeps weights of its own, so what was learned is pushed to it. Its noise is its own, too: the same seed draws the
same tokens again, but not those that the other engines would draw.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import count
from typing import Any

from coterie.engines.request_checks import must_be_readable
from coterie.engines.vllm_server import Server
from coterie.models.base import Base
from coterie.models.chat import StopText
from coterie.types import Sample, Sampling, Stop
from coterie.watchdog import watchdog_paused


@dataclass
class Row:
    """One request at work."""

    answered: asyncio.Future[Sample]
    version: int
    stops: StopText | None
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class VllmEngine:
    """Continuous batching by vLLM for all policies that live on one base."""

    def __init__(self, base: Base, policies: dict[str, str | None], rows: int = 64, context: int | None = None) -> None:
        """`policies` names the adapter each policy speaks with; None is the base itself."""
        if find_spec("vllm") is None:
            raise ValueError("engine.name: vllm is not installed; `pip install -e '.[vllm]'` brings it")
        if base.device.index:
            raise ValueError(f"engine.name: vllm speaks on the first GPU, and {base.folder} is on {base.device}")
        self.base, self.policies = base, dict(policies)
        self.context = min(context or base.context, base.context)
        self.server = Server(base, sorted({name for name in policies.values() if name}), rows, self.context)
        self.versions = dict.fromkeys(policies, 0)
        self.waiting: dict[str, Row] = {}
        self.numbers = count()
        self.driver: asyncio.Task[None] | None = None

    def weights_changed(self, policy: str, version: int) -> None:
        """The weights moved; vLLM is told before it speaks again."""
        self.versions[policy] = version
        self.server.outdate(self.policies[policy])

    def clear(self) -> None:
        """Forget the prompts; vLLM keeps the memory that it has set aside."""
        self.server.forget()

    async def sample(self, policy: str, prompt_ids: Sequence[int], seed: int, sampling: Sampling) -> Sample:
        must_be_readable(prompt_ids, self.base.vocab_size)
        room = min(sampling.max_tokens, self.context - len(prompt_ids))
        if room <= 0:
            return Sample((), (), "length", self.versions[policy])
        name = str(next(self.numbers))
        with watchdog_paused():  # it may have to be started first
            self.server.ask(name, self.policies[policy], list(prompt_ids), room, seed, sampling)
        stops = StopText(self.base.tokenizer, sampling.stop) if sampling.stop else None
        row = Row(asyncio.get_running_loop().create_future(), self.versions[policy], stops)
        self.waiting[name] = row
        if self.driver is None or self.driver.done():
            self.driver = asyncio.create_task(self._drive())
            self.driver.add_done_callback(self._stopped)
        return await row.answered

    async def _drive(self) -> None:
        while self.waiting:
            await asyncio.sleep(0)
            self._leave([name for name, row in self.waiting.items() if row.answered.done()])  # nobody waits any more
            with watchdog_paused():
                for output in self.server.step() if self.waiting else ():
                    self._hear(output.request_id, output.outputs[0])

    def _hear(self, name: str, said: Any) -> None:
        """The next tokens of a row, and how it ended if it did."""
        if name not in self.waiting:  # it left while these were on their way
            return
        row, stop = self.waiting[name], None
        for token, logprobs in zip(said.token_ids, said.logprobs, strict=True):
            row.ids.append(token)
            row.logprobs.append(logprobs[token].logprob)
            stop = stop or self._stop(row, token)
        if stop or said.finish_reason:
            self._leave([name])
            row.answered.set_result(Sample(tuple(row.ids), tuple(row.logprobs), stop or "length", row.version))

    def _stop(self, row: Row, token: int) -> Stop | None:
        if token in self.base.chat.end_ids:
            return "end"
        return "stop" if row.stops is not None and row.stops.feed(token) else None

    def _leave(self, names: list[str]) -> None:
        for name in names:
            del self.waiting[name]
        self.server.drop(names)

    def _stopped(self, driver: asyncio.Task[None]) -> None:
        """If the driver failed, so did every request that waits on it."""
        error = None if driver.cancelled() else driver.exception()
        if error is None and not driver.cancelled():
            return  # it ran out of work; whoever asked since has started another
        for row in self.waiting.values():
            if row.answered.done():
                continue
            if error is None:
                row.answered.cancel()
            else:
                row.answered.set_exception(error)
        self._leave(list(self.waiting))
