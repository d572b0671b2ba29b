"""Strict JSON bodies: no key is ignored, no value converted, and an error names its field."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from coterie.prompts import lone_surrogate

MOST_ERRORS = 3  # that a reply names


class BadRequest(Exception):
    """A body that is not a valid request; the text says where and why."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param  # the first field at fault


def _encodable(text: str) -> str:
    """Reject lone surrogates, which JSON can write and no tokenizer can read."""
    if problem := lone_surrogate(text):
        raise ValueError(problem)
    return text


Text = Annotated[str, AfterValidator(_encodable)]


class Strict(BaseModel):
    """A body in which no key is ignored and no value converted."""

    model_config = ConfigDict(extra="forbid", strict=True)


Body = TypeVar("Body", bound=Strict)


def read_json(body: bytes) -> Any:
    """The value of a JSON body; BadRequest if it is malformed."""
    try:
        return json.loads(body.decode())
    except UnicodeDecodeError as error:
        raise BadRequest(f"the body is not UTF-8: byte 0x{body[error.start]:02x} at {error.start}") from None
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from None


def validated(kind: type[Body], value: Any) -> Body:
    """The value as a typed body; BadRequest names the fields at fault."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        errors = error.errors()[:MOST_ERRORS]
        raise BadRequest("; ".join(map(_message, errors)), _place(errors[0]) or None) from None


def _message(error: Any) -> str:
    """`query_responses.0.1.role: Input should be …`."""
    return f"{_place(error) or 'the body'}: {error['msg']}"


def _place(error: Any) -> str:
    place: Sequence[str | int] = error["loc"]
    return ".".join(str(part) for part in place if "[" not in str(part))  # pydantic adds "function-after[…]"
