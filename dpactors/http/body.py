"""Bodies of requests and whole responses over ASGI, with limits of size and time."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, TypeAlias

import orjson

from dpactors.http.errors import UNREAD, ApiError, ClientLeft

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

BODY_BYTES_MAX = 4 << 20
BODY_LIMIT_S = 30.0
LINGER_S = 5.0
"""How long the rest of a refused body is read and thrown away."""


def header(scope: Scope, name: bytes) -> str | None:
    """The value of the first header called `name` (lower case), None where absent."""
    for key, value in scope["headers"]:
        if key == name:
            return value.decode("latin-1")
    return None


async def read_json(scope: Scope, receive: Receive) -> object:
    """The parsed body; raises ApiError where it is too long, too slow or no JSON, ClientLeft where it never ends."""
    kind = header(scope, b"content-type")
    if kind is not None and not kind.partition(";")[0].strip().lower().endswith("json"):
        raise ApiError(400, f"Content-Type wants to be application/json, not {kind[:100]}")
    length = header(scope, b"content-length")
    if length is not None and length.isdigit() and int(length) > BODY_BYTES_MAX:
        raise ApiError(413, f"the body is over {BODY_BYTES_MAX} bytes")
    try:
        async with asyncio.timeout(BODY_LIMIT_S):
            body = await _read_body(receive)
    except TimeoutError:
        raise ApiError(408, f"the body did not arrive within {BODY_LIMIT_S:g} s") from None
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ApiError(400, f"the body is not JSON: {error.msg} at character {error.pos}") from None


async def _read_body(receive: Receive) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise ClientLeft
        part: bytes = event.get("body", b"")
        size += len(part)
        if size > BODY_BYTES_MAX:
            raise ApiError(413, f"the body is over {BODY_BYTES_MAX} bytes")
        parts.append(part)
        if not event.get("more_body", False):
            return b"".join(parts)


async def send_json(
    send: Send, status: int, body: bytes, headers: Sequence[tuple[bytes, bytes]] = (), *, ends: bool = True
) -> None:
    """Send a whole JSON response; without `ends` the exchange stays open behind it."""
    fixed = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": [*fixed, *headers]})
    await send({"type": "http.response.body", "body": body, "more_body": not ends})


async def refuse(receive: Receive, send: Send, error: ApiError, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
    """Send `error`; one that leaves its body unread ends the connection, once the peer has stopped writing.

    Closing a socket that holds unread bytes resets it, and a reset can overtake the answer.
    """
    unread = error.status in UNREAD
    await send_json(send, error.status, error.body(), [*error.headers(), *headers], ends=not unread)
    if unread:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                await _throw_away(receive)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _throw_away(receive: Receive) -> None:
    while (event := await receive())["type"] != "http.disconnect" and event.get("more_body", False):
        pass
