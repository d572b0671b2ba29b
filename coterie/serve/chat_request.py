"""The body of `POST /v1/chat/completions`: its supported fields, and those that are rejected by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from coterie.types import Message
from coterie.web.json_bodies import BadRequest, Strict, Text, read_json, validated

MOST_MESSAGES = 1024
# Fields of OpenAI's format that are not supported, and the values with which they have no effect.
WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "top_logprobs": (0,),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "tool_choice": ("none",),
    "parallel_tool_calls": (),
    "functions": ([],),
    "function_call": ("none",),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": (),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "user": (),
    "metadata": ({},),
    "web_search_options": (),
    "verbosity": (),
    "prompt_cache_key": (),
    "safety_identifier": (),
}


class TextPart(Strict):
    type: Literal["text"]
    text: Text


class RequestMessage(Strict):
    role: Literal["system", "developer", "user", "assistant"]
    content: Text | Annotated[list[TextPart], Field(min_length=1)]

    def message(self) -> Message:
        content = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": content}


class StreamOptions(Strict):
    include_usage: bool = False
    include_obfuscation: bool = False  # padding against observers; never sent


class ChatRequest(Strict):
    """One request. A field that is None takes the value that the team was evaluated with."""

    model: Text
    messages: Annotated[list[RequestMessage], Field(min_length=1, max_length=MOST_MESSAGES)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    stop: Text | Annotated[list[Text], Field(max_length=16)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    logprobs: bool = False
    stream: bool = False
    stream_options: StreamOptions | None = None

    @model_validator(mode="after")
    def _check(self) -> ChatRequest:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options: has no effect without stream")
        if "" in self.stops:
            raise ValueError("stop: an empty text would end every reply at once")
        if not any(message.role == "user" for message in self.messages):
            raise ValueError("messages: no user message")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def most_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def conversation(self) -> list[Message]:
        return [message.message() for message in self.messages]


def read_request(body: bytes) -> ChatRequest:
    """The request; BadRequest if it is malformed, or uses a field that is not supported."""
    value = _without_null(read_json(body))
    if not isinstance(value, dict):
        raise BadRequest("the body must be a JSON object")
    for name, neutral in WITHOUT_EFFECT.items():
        if name in value and value.pop(name) not in neutral:
            raise BadRequest(f"{name}: not supported by this server{_instead(neutral)}", name)
    return validated(ChatRequest, value)


def _instead(neutral: tuple[Any, ...]) -> str:
    return f"; leave it out, or send {neutral[0]!r}" if neutral else "; leave it out"


def _without_null(value: Any) -> Any:
    """Drop fields that are null: clients send all fields that they know, and null means "not given"."""
    if isinstance(value, dict):
        return {key: _without_null(inner) for key, inner in value.items() if inner is not None}
    return [_without_null(inner) for inner in value] if isinstance(value, list) else value
