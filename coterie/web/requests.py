"""Checks of a request before it is read: its key, its Host and Origin, the type and size of its body."""

from __future__ import annotations

import asyncio
import hmac
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

DISCARDED = 4  # a body of up to so many times the limit is read and discarded before the 413 reply
BODY_SECONDS = 30.0  # for a client to send its body


def require_key(request: Request, key: str | None) -> None:
    """401 unless the request has the server's key; compared in constant time."""
    if key is None:
        return
    given = request.headers.get("authorization", "").removeprefix("Bearer ")
    if not hmac.compare_digest(given.encode(), key.encode()):
        needed = "this server needs a key, in the header `Authorization: Bearer KEY`"
        raise HTTPException(401, needed, {"WWW-Authenticate": "Bearer"})


def require_json(request: Request) -> None:
    """415 unless the body is declared as JSON: browsers post other types across sites without a preflight (CSRF)."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "the body must be JSON, with the header `Content-Type: application/json`")


async def read_body(request: Request, max_body: int) -> bytes:
    """The body, at most `max_body` bytes. The rest is read and discarded, so that the client reads the 413 reply."""
    body, size = bytearray(), 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                size += len(chunk)
                if size <= max_body:
                    body += chunk
                elif size > DISCARDED * max_body:
                    break
    except TimeoutError:
        raise HTTPException(408, f"the body did not arrive within {BODY_SECONDS:g} s") from None
    except ClientDisconnect:
        raise HTTPException(400, "the client disconnected") from None
    if size > max_body:
        raise HTTPException(413, f"the body has more than {max_body:,} bytes; send less at a time")
    return bytes(body)


def is_loopback(host: str) -> bool:
    """True if only this machine can reach a server on this host."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def foreign_page(host: str | None, origin: str | None) -> str | None:
    """Why a request to a server on loopback may come from a page of another site, by DNS rebinding (a domain name that
    resolves to this machine); None if it does not."""
    if host is not None and not is_loopback(_hostname(f"//{host}")):
        return f"the Host {host!r} is not this machine: use localhost or 127.0.0.1"
    if origin is not None and not is_loopback(_hostname(origin)):
        return f"pages of {origin!r} may not use this server"
    return None


def _hostname(address: str) -> str:
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""
