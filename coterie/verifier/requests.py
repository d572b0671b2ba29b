"""Conversations as the verifier reads them, and the request bodies of its server: MaPoRL's `/predict`, `/v1/score`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from coterie.types import Message
from coterie.web.json_bodies import Strict, Text, read_json, validated

MOST = 256  # conversations in one request
TOO_LONG = "context_length_exceeded"  # the code of an error, as OpenAI calls it


def conversation(question: str, answer: str) -> list[Message]:
    """A question and its answer as the verifier reads them."""
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


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
        return [conversation(item.question, item.answer) for item in self.answers]


def read_request(kind: type[PredictRequest | ScoreRequest], body: bytes) -> list[list[Message]]:
    """The conversations of a request; BadRequest if it is malformed."""
    return validated(kind, read_json(body)).conversations()
