"""The bodies of the server's requests and replies: MaPoRL's `/predict`, and `/v1/score`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from coterie.types import Message

MOST = 256  # conversations in one request
MOST_ERRORS = 3  # that a reply names


class BadRequest(Exception):
    """A body that is not a valid request; the text says where and why."""


def _encodable(text: str) -> str:
    """Reject lone surrogates, which JSON can write and no tokenizer can read."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"has a lone surrogate at character {error.start}, which is not valid text") from None
    return text


Text = Annotated[str, AfterValidator(_encodable)]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class ChatMessage(Strict):
    role: Literal["system", "user", "assistant"]
    content: Text

    def message(self) -> Message:
        return {"role": self.role, "content": self.content}


def _ends_with_reply(conversation: list[ChatMessage]) -> list[ChatMessage]:
    if conversation[-1].role != "assistant":
        raise ValueError("the last message must be the assistant's: it is the one that is scored")
    if not any(message.role == "user" for message in conversation):
        raise ValueError("has no user message, which is the question")
    return conversation


Conversation = Annotated[list[ChatMessage], Field(min_length=2), AfterValidator(_ends_with_reply)]


class PredictRequest(Strict):
    """MaPoRL's format: conversations whose last messages are scored."""

    query_responses: Annotated[list[Conversation], Field(min_length=1, max_length=MOST)]

    def conversations(self) -> list[list[Message]]:
        return [[message.message() for message in conversation] for conversation in self.query_responses]


class AnswerItem(Strict):
    question: Annotated[Text, Field(min_length=1)]
    answer: Text


class ScoreRequest(Strict):
    """Questions with answers."""

    answers: Annotated[list[AnswerItem], Field(min_length=1, max_length=MOST)]

    def conversations(self) -> list[list[Message]]:
        return [
            [{"role": "user", "content": item.question}, {"role": "assistant", "content": item.answer}]
            for item in self.answers
        ]


def read_request(kind: type[PredictRequest | ScoreRequest], body: bytes) -> list[list[Message]]:
    """The conversations of a request; BadRequest if it is malformed."""
    try:
        data = json.loads(body.decode())
    except UnicodeDecodeError as error:
        raise BadRequest(f"the body is not UTF-8: byte 0x{body[error.start]:02x} at {error.start}") from None
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from None
    try:
        return kind.model_validate(data).conversations()
    except ValidationError as error:
        raise BadRequest("; ".join(_message(one) for one in error.errors()[:MOST_ERRORS])) from None


def _message(error: Any) -> str:
    """`query_responses.0.1.role: Input should be …`."""
    place: Sequence[str | int] = error["loc"]
    return f"{'.'.join(map(str, place)) or 'the body'}: {error['msg']}"
