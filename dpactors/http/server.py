"""Serves the edge on uvicorn inside the running event loop."""

import asyncio
import contextlib
import socket
import time
from collections.abc import Generator, Sequence
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version
from typing import Any

import structlog
from uvicorn import Config, Server

from dpactors.actor.performer import Say
from dpactors.http.app import build_app
from dpactors.http.connection import Connection
from dpactors.http.errors import ApiError, HttpRoomError
from dpactors.http.keys import Doorman, read_keys
from dpactors.http.metrics import Metrics
from dpactors.http.state import Edge
from dpactors.http.streams import Streams
from dpactors.http.text import ModelText
from dpactors.serving.jobs import Availability, Listening, ServeHttp, StreamWrite

log = structlog.get_logger()

BACKLOG = 2048
PORT_MAX = 65535
KEEP_ALIVE_S = 65
"""Longer than the 60 s for which common proxies keep a connection: they, not we, should be the first to close."""
TICK_S = 1.0
CLOSING_POLL_S = 0.005
STOP_LIMIT_S = 1.0
"""How long streams that were told to end may take to write it."""


class ListenError(HttpRoomError):
    """No socket could be opened; says where and why."""


def own_version() -> str:
    """The installed package's version."""
    try:
        return package_version("dpactors")
    except PackageNotFoundError:
        return "0"


class HttpEdge:
    """Performs ServeHttp: says Listening, Submitted, ClientGone; is fed StreamWrite and Availability."""

    def __init__(self, sockets: Sequence[socket.socket] | None = None, version: str = "") -> None:
        self._sockets = None if sockets is None else list(sockets)
        self._version = version or own_version()
        self._edge: Edge | None = None
        self._now = Availability((), (), 0)

    async def perform(self, job: ServeHttp, say: Say) -> None:
        """Serve until cancelled; then no connection, stream or task is left.

        Raises ListenError, KeysFileError, FileNotFoundError or ModelTextError where it cannot begin.
        """
        loop = asyncio.get_running_loop()
        doorman = Doorman(read_keys(job.api_keys))
        text = await loop.run_in_executor(None, ModelText.load, job.model)
        metrics = Metrics(job.served_name, text.context)
        streams = Streams(say, metrics, loop.time, job.sequences_max, job.tokens_max)
        edge = Edge(job, self._version, text, streams, metrics, loop.time, int(time.time()), self._now)
        metrics.learn(self._now)
        self._edge = edge
        try:
            await self._serve(edge, doorman, job.listen, say)
        finally:
            self._edge = None
            text.close()

    def feed(self, item: StreamWrite | Availability) -> None:
        """Take news of a stream or of the ranks."""
        edge = self._edge
        if isinstance(item, Availability):
            self._now = item
            if edge is not None:
                edge.now = item
                edge.metrics.learn(item)
        elif edge is not None:
            edge.streams.feed(item)

    async def _serve(self, edge: Edge, doorman: Doorman, listen: str, say: Say) -> None:
        # Duplicates, because uvicorn closes what it is given and these may be served on again.
        sockets = [one.dup() for one in self._sockets] if self._sockets is not None else [open_socket(listen)]
        urls = tuple(_url(one) for one in sockets)
        server = EdgeServer(_config(edge, doorman))
        serving = asyncio.create_task(server.serve(sockets))
        accepting = asyncio.create_task(server.accepts.wait())
        try:
            await asyncio.wait((serving, accepting), return_when="FIRST_COMPLETED")
            if accepting.done():
                say(Listening(urls))
            await asyncio.shield(serving)
        finally:
            accepting.cancel()
            edge.stopping = True
            edge.streams.fail_all(ApiError(503, "this server is shutting down"))
            await server.stop(serving)
            log.info("http.stopped", urls=list(urls))


class EdgeServer(Server):
    """uvicorn's server as a guest in a loop that others own: no signal handlers, and it says when it accepts."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.accepts = asyncio.Event()
        self._ending = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave signals to the process."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept."""
        await super().startup(sockets)
        self.accepts.set()

    async def main_loop(self) -> None:
        """Wait for the end; uvicorn's own looks ten times a second."""
        while not await self.on_tick(0):  # writes the Date header of the next second
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), TICK_S)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting and let responses end: idle connections are closed, busy ones close after their answer."""
        for server in self.servers:
            server.close()
        for one in sockets or ():
            one.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        while self.server_state.connections or self.server_state.tasks:  # noqa: ASYNC110  # uvicorn's own sets
            await asyncio.sleep(CLOSING_POLL_S)

    async def stop(self, serving: "asyncio.Task[None]") -> None:
        """Stop accepting, let responses end, drop what does not within STOP_LIMIT_S."""
        self.should_exit = True
        self._ending.set()
        try:
            await asyncio.wait((serving,), timeout=STOP_LIMIT_S)
        finally:
            for connection in list(self.server_state.connections):
                connection.transport.abort()  # type: ignore[union-attr]
            for task in list(self.server_state.tasks):
                task.cancel()
        await asyncio.gather(serving, return_exceptions=True)


def open_socket(listen: str) -> socket.socket:
    """A listening TCP socket on ``host:port``; no host is loopback, port 0 a free one. Raises ListenError."""
    host, _, port = listen.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not (port.isascii() and port.isdigit()) or int(port) > PORT_MAX:
        raise ListenError(f"listen {listen!r}: wants host:port, for example 127.0.0.1:8000")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, int(port)), family=family, backlog=BACKLOG)
    except OSError as error:
        raise ListenError(f"listen {listen!r}: {error.strerror or error}") from error


def _url(listening: socket.socket) -> str:
    name: Any = listening.getsockname()
    host = f"[{name[0]}]" if listening.family == socket.AF_INET6 else name[0]
    return f"http://{host}:{name[1]}"


def _config(edge: Edge, doorman: Doorman) -> Config:
    return Config(
        build_app(edge, doorman),  # type: ignore[arg-type]
        http=Connection,
        ws="none",
        lifespan="off",
        loop="none",
        log_config=None,
        log_level="critical",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
    )
