"""Links over ZeroMQ, one DEALER pair per pair of processes; with ``curve`` the only file that imports zmq.

Plain patterns lose messages without a word, so everything that counts (who is there, order, acknowledgement, credit)
is the machine's. What is ZeroMQ's: framing, reconnecting, and telling a dead connection by heartbeats of its own.
"""

import asyncio
import os
import re
from pathlib import Path
from typing import Literal, TypeAlias, cast

import zmq

from dpactors.message.codec import FRAME_BYTES_MAX
from dpactors.net.curve import Doorkeeper, KeysError, Security
from dpactors.net.driver import Link, Links, OnEvent, OnFrame
from dpactors.net.errors import EndpointError
from dpactors.net.limits import LinkLimits
from dpactors.net.link import LinkState
from dpactors.net.notices import Refused

IPC_PATH_BYTES_MAX = 107
"""A Unix socket address holds 108 bytes, the last of them zero."""
RECONNECT_MS, RECONNECT_MS_MAX = 20, 500
HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS = 500, 3000
"""Of ZMTP: answered by ZeroMQ's own thread, so they find a dead network and a stopped process, not a stuck loop."""
SOCKETS_SPARE = 16
SOCKETS_PER_LINK = 6
"""A listening one that takes keys is watched through two more, and during a peer's restart there are twice as many."""
LINKS_MAX = (65_535 - SOCKETS_SPARE) // SOCKETS_PER_LINK
"""libzmq has at most 65,535 sockets in a context."""

# As plain numbers: an enum's own operators would cost as much again as the calls they are used in.
_NOBLOCK, _EVENTS, _POLLIN = int(zmq.NOBLOCK), int(zmq.EVENTS), int(zmq.POLLIN)

Transport: TypeAlias = Literal["ipc", "tcp"]


class _Dealer:
    """One DEALER socket as a line."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
        self.socket = context.socket(zmq.DEALER)
        for option, value in (
            (zmq.SNDHWM, 0),  # credit is the machine's, so ZeroMQ never is the one to block or drop
            (zmq.RCVHWM, 0),
            (zmq.LINGER, 0),
            (zmq.MAXMSGSIZE, FRAME_BYTES_MAX),
            (zmq.HEARTBEAT_IVL, HEARTBEAT_MS),
            (zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS),
            (zmq.HEARTBEAT_TTL, HEARTBEAT_TIMEOUT_MS),
            (zmq.RECONNECT_IVL, RECONNECT_MS),
            (zmq.RECONNECT_IVL_MAX, RECONNECT_MS_MAX),
            (zmq.IMMEDIATE, 1),  # never queue for a peer that is not connected: a later one would get it
        ):
            self.socket.setsockopt(option, value)
        self.endpoint = ""
        self.announced = 0
        """The peer's incarnation as whoever named the endpoint knew it."""
        self._loop = asyncio.get_running_loop()

    def listen(self, links: "ZmqLinks", link: Link) -> None:
        """Pump `link` whenever the socket's descriptor says that something changed."""
        self._loop.add_reader(self.socket.fileno(), links.pump, link)

    def write(self, frame: bytes) -> bool:
        try:
            self.socket.send(frame, _NOBLOCK)
        except zmq.Again:
            return False
        return True

    def read(self) -> bytes | None:
        try:
            return self.socket.recv(_NOBLOCK)
        except zmq.Again:
            return None

    @property
    def readable(self) -> bool:
        return self.socket.getsockopt(_EVENTS) & _POLLIN != 0  # type: ignore[operator]

    def close(self, linger_s: float) -> None:
        self._loop.remove_reader(self.socket.fileno())
        self.socket.close(linger=int(linger_s * 1000))


class ZmqLinks(Links):
    """All links of one process over ZeroMQ; made inside a running asyncio or uvloop loop."""

    def __init__(
        self,
        process: str,
        incarnation: int,
        digest: str,
        run_dir: Path,
        on_event: OnEvent,
        *,
        limits: LinkLimits | None = None,
        on_frame: OnFrame | None = None,
        links_max: int = 1024,
        security: Security | None = None,
    ) -> None:
        super().__init__(process, incarnation, digest, on_event, limits=limits, on_frame=on_frame)
        self._run_dir = run_dir
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        # The default would stop at 1023 in all.
        self._context.set(zmq.MAX_SOCKETS, SOCKETS_PER_LINK * min(links_max, LINKS_MAX) + SOCKETS_SPARE)
        self._security = security
        self._doorkeeper = None if security is None else Doorkeeper(self._context, security, self._turned_away)
        self._bound: dict[str, _Dealer] = {}
        self._paths: list[Path] = []

    def bind(self, peer: str, transport: Transport, host_address: str, port: int = 0) -> str:
        """Listen for one peer and return the endpoint it must connect to; raises EndpointError.

        Port 0 takes a free one, which the endpoint tells.
        """
        dealer = self._bound.get(peer)
        if dealer is not None:
            return dealer.endpoint
        path = self._path(peer) if transport == "ipc" else None
        dealer = _Dealer(self._context)
        try:
            if path is not None:
                dealer.socket.bind(f"ipc://{path}")
                self._paths.append(path)
            else:
                if ":" in host_address:
                    dealer.socket.setsockopt(zmq.IPV6, 1)
                    host_address = f"[{host_address.strip('[]')}]"
                if self._security is not None and self._doorkeeper is not None:
                    self._security.listen(dealer.socket, peer)
                    self._doorkeeper.watch(dealer.socket, peer)
                dealer.socket.bind(f"tcp://{host_address}:{port}")
        except zmq.ZMQError as error:
            dealer.socket.close(linger=0)
            raise EndpointError(
                f"{self.process} cannot listen for {peer} on {path or f'{host_address}:{port}'}: {error}"
            ) from error
        dealer.endpoint = cast("bytes", dealer.socket.getsockopt(zmq.LAST_ENDPOINT)).rstrip(b"\0").decode()
        self._bound[peer] = dealer
        self._use(peer, dealer, 0)
        return dealer.endpoint

    def connect(self, peer: str, endpoint: str, peer_incarnation: int) -> None:
        """Reach for a peer where it listens; a later incarnation replaces the earlier. Raises EndpointError."""
        link = self._link(peer)
        if link.machine.state is LinkState.FENCED:
            return
        old = link.line
        if isinstance(old, _Dealer) and (
            (old.endpoint, old.announced) == (endpoint, peer_incarnation) or peer_incarnation < old.announced
        ):
            return  # said before, or overtaken by a later announcement
        dealer = _Dealer(self._context)
        dealer.endpoint, dealer.announced = endpoint, peer_incarnation
        try:
            if self._security is not None and self._doorkeeper is not None and endpoint.startswith("tcp:"):
                self._security.reach(dealer.socket, peer)
                self._doorkeeper.persist(dealer.socket, endpoint)
            dealer.socket.connect(endpoint)
        except (zmq.ZMQError, KeysError) as error:
            dealer.socket.close(linger=0)
            raise EndpointError(f"{self.process} cannot reach {peer} at {endpoint}: {error}") from error
        self._use(peer, dealer, peer_incarnation)

    def pump(self, link: Link) -> None:
        """Read what has arrived on one link; called by the loop."""
        self._pump(link)

    def _use(self, peer: str, dealer: _Dealer, peer_incarnation: int) -> None:
        link = self._link(peer)
        dealer.listen(self, link)
        self._join(link, dealer, peer_incarnation)

    def _dropped(self, link: Link) -> None:
        # A listening socket stays, for the next incarnation of the peer comes to the same endpoint.
        if link.machine.peer not in self._bound:
            self._cut(link)

    def _turned_away(self, peer: str, reason: str) -> None:
        self._on_event(Refused(peer, reason))

    async def _released(self) -> None:
        if self._doorkeeper is not None:
            self._doorkeeper.close()
        # Ends when the last frame has left or the sockets' linger is over, hence not on the loop's own thread.
        await asyncio.to_thread(self._context.term)
        for path in self._paths:
            path.unlink(missing_ok=True)

    def _path(self, peer: str) -> Path:
        name = re.sub(r"[^A-Za-z0-9._+-]", "_", f"{self.process}+{peer}")
        path = self._run_dir / f"{name}.{self.incarnation}"
        size = len(os.fsencode(path))
        if size > IPC_PATH_BYTES_MAX:
            raise EndpointError(
                f"{path} has {size} bytes, a socket's path at most {IPC_PATH_BYTES_MAX}: use a shorter run directory"
            )
        if path.exists():
            raise EndpointError(f"{path} exists: incarnation {self.incarnation} of {self.process} runs twice")
        return path
