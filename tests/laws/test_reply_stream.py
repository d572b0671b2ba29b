"""The text of a reply while it is sampled."""

from __future__ import annotations

import random

import pytest

from coterie.models.chat import Chat
from coterie.models.reply_stream import ReplyStream
from coterie.models.token_text import INCOMPLETE
from tests.models import VOCABULARY, tiny_tokenizer

TEXTS = ["The answer is 42.", "äöü € 🙂🙂 日本", "a\nb\n\nc", ""]
STOPS = [(), ("\n\n",), ("answer is", "nothing"), ("🙂", "日")]


def streamed(chat: Chat, ids: list[int], stops: tuple[str, ...], together: int = 1) -> list[str]:
    stream = ReplyStream(chat, stops)
    parts = [stream.feed(ids[at : at + together]) for at in range(0, len(ids), together)]
    return [*parts, stream.finish()]


@pytest.mark.parametrize("stops", STOPS)
@pytest.mark.parametrize("text", TEXTS)
def test_the_parts_of_a_text_are_the_text_up_to_its_stop(text: str, stops: tuple[str, ...]) -> None:
    chat = Chat(tiny_tokenizer())
    ids = [*chat.reply(text), chat.end_id]
    for together in (1, 3):
        parts = streamed(chat, ids, stops, together)
        assert "".join(parts) == chat.text(ids, stops)
        assert not any(INCOMPLETE in part for part in parts)


def test_random_bytes_are_decoded_as_the_whole_is() -> None:
    """Also where they are no valid text."""
    chat, draw = Chat(tiny_tokenizer()), random.Random(0)
    for _ in range(200):
        ids = [draw.randrange(VOCABULARY) for _ in range(draw.randrange(1, 30))]
        ids = [id for id in ids if id not in chat.end_ids]
        stops = tuple(draw.choice("abc e1") for _ in range(draw.randrange(3)))
        assert "".join(streamed(chat, ids, stops)) == chat.text(ids, stops)


def test_what_may_begin_a_stop_is_held_back_and_then_given_out() -> None:
    chat = Chat(tiny_tokenizer())
    stream = ReplyStream(chat, ("\n\nUser",))
    assert stream.feed(chat.reply("one\n")) == "one"
    assert stream.feed(chat.reply("\nU")) == ""
    assert stream.feed(chat.reply("X")) == "\n\nUX"
    assert stream.feed(chat.reply("\n\nUser: two")) == "" and stream.finish() == ""
