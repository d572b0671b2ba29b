"""Errors of requests in OpenAI's form: `{"error": {message, type, param, code}}`."""

from __future__ import annotations

import sys
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from coterie.errors import UserError


class TooLong(ValueError):
    """A prompt that leaves no room for a reply in the model's context."""


class ApiError(Exception):
    """An error of a request in OpenAI's terms."""

    def __init__(self, status: int, message: str, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param

    def body(self) -> dict[str, Any]:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        kind = "rate_limit_error" if self.status == 429 else kind
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}

    @staticmethod
    def of(error: TooLong | TimeoutError | UserError) -> ApiError:
        """The response to an expected error of a reply. Errors that the server's operator can fix, such as a workflow
        that raises, are also printed."""
        if isinstance(error, TooLong):
            return ApiError(400, str(error), "context_length_exceeded", "messages")
        if isinstance(error, TimeoutError):
            return ApiError(504, str(error), "timeout")
        print(error, file=sys.stderr)
        return ApiError(500, str(error))


async def api_error(request: Request, error: ApiError) -> Response:
    headers = {"Retry-After": "1"} if error.status == 429 else None
    return JSONResponse(error.body(), error.status, headers)


async def refusal(request: Request, error: HTTPException) -> Response:
    code = "invalid_api_key" if error.status_code == 401 else None
    return JSONResponse(ApiError(error.status_code, error.detail, code).body(), error.status_code, error.headers)


async def failure(request: Request, error: Exception) -> Response:
    """The response to an unexpected exception, such as a bug or out of memory; uvicorn logs the traceback."""
    return JSONResponse(ApiError(500, f"{type(error).__name__}: {error}").body(), 500)


HANDLERS: dict[Any, Any] = {ApiError: api_error, HTTPException: refusal, Exception: failure}
