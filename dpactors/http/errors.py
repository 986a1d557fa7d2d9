"""What goes wrong at the edge, in OpenAI's error form."""

from http import HTTPStatus
from typing import Any

import orjson

_TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    408: "RequestTimeoutError",
    409: "ConflictError",
    413: "RequestTooLargeError",
    429: "RateLimitError",
    431: "RequestTooLargeError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
}
UNREAD = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.REQUEST_ENTITY_TOO_LARGE})
"""Answers that are given before the body has come."""
RETRY_AFTER_S = 1
"""Told to a client that met a 429 or 503: requests end, and ranks come back, within seconds or not at all."""
LATER = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})


class HttpRoomError(Exception):
    """Base of this room's errors."""


class ApiError(HttpRoomError):
    """A request that ends with an HTTP error; `param` names the field at fault."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Response headers that belong to this status."""
        if self.status in LATER:
            return [(b"retry-after", b"%d" % RETRY_AFTER_S)]
        if self.status == HTTPStatus.UNAUTHORIZED:
            return [(b"www-authenticate", b"Bearer")]
        # The rest of such a body is not read: nothing after it on this connection could be told from it.
        return [(b"connection", b"close")] if self.status in UNREAD else []

    def body(self) -> bytes:
        """The JSON document ``{"error": {...}}``."""
        return orjson.dumps(error_object(self.status, self.message, self.param))


class ClientLeft(HttpRoomError):
    """The HTTP client closed its connection before its request was whole."""


def error_object(status: int, message: str, param: str | None = None) -> dict[str, Any]:
    """OpenAI's error form; `code` is the HTTP status as vLLM writes it."""
    fallback = _TYPES[400] if status < HTTPStatus.INTERNAL_SERVER_ERROR else _TYPES[500]
    kind = _TYPES.get(status, fallback)
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}
