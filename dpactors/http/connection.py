"""One accepted connection: uvicorn's protocol with limits of size and time on what a peer may hold open."""

import asyncio
import socket
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from dpactors.http.errors import ApiError
from dpactors.http.generation import ABORT_EXTENSION

HEAD_BYTES_MAX = 16 << 10
HEAD_FIELDS_MAX = 100
HEAD_LIMIT_S = 5.0
"""From the first byte of a request (or the connection's beginning) to the end of its head."""
WRITE_STALL_S = 30.0
"""How long a peer may take nothing while bytes wait for it."""
WRITE_BUFFER_BYTES = 32 << 10
"""Bytes that may wait in this process before writers wait too; the kernel holds more."""


class Connection(HttpToolsProtocol):
    """Speaks HTTP/1.1 with one peer. Mutable: one per connection."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._head_bytes = 0
        self._in_head = True
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Set the socket up: no delay for small writes, a small buffer for slow readers."""
        super().connection_made(transport)
        peer: socket.socket | None = transport.get_extra_info("socket")
        if peer is not None and peer.family != socket.AF_UNIX:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """The peer has gone, or was dropped."""
        self._head_timer = _cancelled(self._head_timer)
        self._stall_timer = _cancelled(self._stall_timer)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Feed the parser; a head that never ends is refused, for the parser would keep all of it."""
        begun = self._in_head
        super().data_received(data)
        if begun and self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                self._refuse(431, f"the request's head is over {HEAD_BYTES_MAX} bytes")

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._in_head = True
        self._head_bytes = 0
        self._watch_head()
        cast("dict[str, Any]", self.scope)["extensions"] = {ABORT_EXTENSION: self.transport.abort}

    def on_headers_complete(self) -> None:
        """The head of a request is whole."""
        self._in_head = False
        self._head_timer = _cancelled(self._head_timer)
        if len(self.headers) > HEAD_FIELDS_MAX or sum(len(k) + len(v) for k, v in self.headers) > HEAD_BYTES_MAX:
            self._refuse(431, f"the request's head is over {HEAD_FIELDS_MAX} fields or {HEAD_BYTES_MAX} bytes")
            return
        super().on_headers_complete()

    def pause_writing(self) -> None:
        """The peer does not read as fast as it is written to."""
        super().pause_writing()
        if self._stall_timer is None:
            self._stall_timer = self.loop.call_later(WRITE_STALL_S, self.transport.abort)

    def resume_writing(self) -> None:
        """The peer reads again."""
        self._stall_timer = _cancelled(self._stall_timer)
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """What the parser refuses, in OpenAI's error form."""
        self._refuse(400, "this is not HTTP/1.1")

    def _refuse(self, status: int, message: str) -> None:
        if self.transport.is_closing():
            return
        body = ApiError(status, message).body()
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()

    def _watch_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_LIMIT_S, self.transport.close)


def _cancelled(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
