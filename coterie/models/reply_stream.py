"""Incremental detokenization: the text of a reply while it is sampled, in parts that later tokens cannot change."""

from __future__ import annotations

from collections.abc import Sequence

from coterie.models.chat import Chat, decode, trim
from coterie.models.token_text import INCOMPLETE


class ReplyStream:
    """Turns the tokens of one reply into text, part by part; all parts together are `chat.text(ids, stops)`.

    Incomplete characters, and text that may be the beginning of a stop string, are held back until more tokens come.
    """

    def __init__(self, chat: Chat, stops: Sequence[str] = ()) -> None:
        self.chat, self.stops = chat, tuple(stops)
        self.ids: list[int] = []
        self.held = ""  # decoded, but not returned yet
        self.stopped = False
        # Only ids[_context:] are decoded again; the text of ids[:_known] is decoded for good.
        self._context = self._known = 0

    def feed(self, ids: Sequence[int]) -> str:
        """Append tokens; returns the new text that later tokens cannot change."""
        self.ids += [id for id in ids if id not in self.chat.end_ids]
        tokenizer = self.chat.tokenizer
        before = decode(tokenizer, self.ids[self._context : self._known])
        text = decode(tokenizer, self.ids[self._context :])
        if text.endswith(INCOMPLETE) or len(text) <= len(before):
            return ""
        self._context, self._known = self._known, len(self.ids)
        return self._certain(text[len(before) :])

    def finish(self) -> str:
        """The rest of the text, when no more tokens follow."""
        tokenizer = self.chat.tokenizer
        before = decode(tokenizer, self.ids[self._context : self._known])
        rest = decode(tokenizer, self.ids[self._context :])[len(before) :]
        self._context, self._known = self._known, len(self.ids)
        last = self._certain(rest) + self.held
        self.held = ""
        return last

    def _certain(self, text: str) -> str:
        """The new text up to a stop string, or up to what may be the beginning of one."""
        if self.stopped:
            return ""
        text = self.held + text
        shown = trim(text, self.stops)
        if len(shown) < len(text):
            self.stopped, self.held = True, ""
            return shown
        self.held = max((beginning_at_end(text, stop) for stop in self.stops), key=len, default="")
        return text[: len(text) - len(self.held)]


def beginning_at_end(text: str, stop: str) -> str:
    """The longest end of `text` with which `stop` begins: ("a\\n", "\\n\\n") → "\\n"."""
    lengths = range(min(len(text), len(stop) - 1), 0, -1)
    return next((stop[:n] for n in lengths if text.endswith(stop[:n])), "")
