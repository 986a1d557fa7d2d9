"""CURVE keys between hosts: one pair a host, and a doorkeeper that lets in nobody else.

A listening end serves one peer, so it takes one key: that of the host which the plan gives this peer. Who shows another
one is turned away by ZeroMQ before a single frame of theirs is read.
"""

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeAlias

import zmq
import zmq.auth
import zmq.utils.z85
from attrs import field, frozen

from dpactors.net.errors import EndpointError

PUBLIC, SECRET = ".key", ".key_secret"
ZAP_ENDPOINT = "inproc://zeromq.zap.01"
ZAP_VERSION = b"1.0"
OTHERS = 0o077
AGAIN_S = 1.0
_NO_CURVE = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
TOLD_MAX = 1000
"""Addresses that were turned away and are remembered as told."""

OnRefused: TypeAlias = Callable[[str, str], None]
"""Whom the listening end waits for, and why somebody else was turned away."""


class KeysError(EndpointError):
    """Keys that are missing, unreadable or readable by others; says which file and what to do."""


@frozen
class Keyring:
    """What one host must have: its own pair and every host's public key."""

    host: str
    public: bytes = field(repr=False)
    secret: bytes = field(repr=False)
    publics: Mapping[str, bytes] = field(repr=False)


@frozen
class Security:
    """A host's keys, and the host of each peer."""

    keyring: Keyring
    host_of: Mapping[str, str]

    def key_of(self, peer: str) -> bytes | None:
        """The one key that `peer` may show; None where it has no host."""
        return self.keyring.publics.get(self.host_of.get(peer, ""))

    def listen(self, socket: "zmq.Socket[bytes]", peer: str) -> None:
        """Make a socket take `peer` only."""
        socket.curve_server = True
        socket.curve_publickey, socket.curve_secretkey = self.keyring.public, self.keyring.secret
        socket.zap_domain = peer.encode()
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # nobody enters while nobody answers

    def reach(self, socket: "zmq.Socket[bytes]", peer: str) -> None:
        """Make a socket speak to `peer` only; raises KeysError where no key of its host is known."""
        key = self.key_of(peer)
        if key is None:
            raise KeysError(f"no key is known for {peer}'s host")
        socket.curve_serverkey = key
        socket.curve_publickey, socket.curve_secretkey = self.keyring.public, self.keyring.secret


def make_keys(folder: Path, hosts: Iterable[str]) -> list[Path]:
    """New pairs for `hosts` in `folder`, readable by their owner alone; raises KeysError rather than overwrite."""
    names = list(hosts)
    for name in names:
        for path in (folder / f"{name}{PUBLIC}", folder / f"{name}{SECRET}"):
            if path.exists():
                raise KeysError(f"{path} exists. Name an empty folder, or move the old keys away")
    before = os.umask(OTHERS)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        made = [one for name in names for one in zmq.auth.create_certificates(folder, name)]  # pyright: ignore[reportUnknownMemberType]
        return [Path(one) for one in made]
    except OSError as error:
        raise KeysError(f"cannot write keys to {folder}: {error.strerror or error}") from error
    finally:
        os.umask(before)


def load_keys(folder: Path, host: str, hosts: Iterable[str]) -> Keyring:
    """The keyring of `host`; raises KeysError that names the file and its mend."""
    if not folder.is_dir():
        raise KeysError(f"{folder} is no folder. Make keys by: dpactors keys new {folder} --host {host} ...")
    path = folder / f"{host}{SECRET}"
    public, secret = _read(path, "the secret key of this host")
    if path.stat().st_mode & OTHERS:
        raise KeysError(f"{path} can be read by others. Say chmod 600 {path}")
    if secret is None:
        raise KeysError(f"{path} holds no secret key. Make a new pair by dpactors keys new")
    publics = {name: _read(folder / f"{name}{PUBLIC}", f"the public key of host {name}")[0] for name in hosts}
    if public != publics[host]:
        raise KeysError(f"{path} and {folder / f'{host}{PUBLIC}'} are of two pairs. Copy both files of one pair")
    return Keyring(host, public, secret, publics)


def _read(path: Path, what: str) -> tuple[bytes, bytes | None]:
    try:
        public, secret = zmq.auth.load_certificate(path)  # pyright: ignore[reportUnknownMemberType]
    except OSError as error:
        raise KeysError(
            f"{path}, {what}, cannot be read: {error.strerror or 'it is not there'}. Copy it here"
        ) from error
    except ValueError as error:
        raise KeysError(f"{path}, {what}, is no key file: {error}. Make a new pair by dpactors keys new") from error
    return public, secret


class Doorkeeper:
    """Answers ZeroMQ's questions (ZAP, RFC 27) who may connect to the listening ends of one context."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", security: Security, on_refused: OnRefused) -> None:
        """Made inside a running loop, before anything listens."""
        self._security = security
        self._on_refused = on_refused
        self.refused = 0
        self._told: set[tuple[str, str]] = set()
        self._watched: list[tuple[zmq.Socket[bytes], zmq.Socket[bytes]]] = []
        self._socket = context.socket(zmq.REP)
        self._socket.linger = 0
        self._socket.bind(ZAP_ENDPOINT)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket.fileno(), self._answer)
        self._answer()  # a descriptor tells of nothing before the first look

    def watch(self, socket: "zmq.Socket[bytes]", peer: str) -> None:
        """Hear of those who reach the listening end for `peer` and speak no CURVE: nobody asks about them."""
        self._watch(socket, _NO_CURVE, lambda: self._refuse(peer, "some address", "speaks no CURVE"))

    def persist(self, socket: "zmq.Socket[bytes]", endpoint: str) -> None:
        """Reach for `endpoint` again where its owner turned this host away: ZeroMQ gives up, but keys may be mended."""

        def again() -> None:
            with suppress(zmq.ZMQError):  # closed since, or let go of by ZeroMQ
                socket.disconnect(endpoint)
            with suppress(zmq.ZMQError):
                socket.connect(endpoint)

        self._watch(socket, _NO_CURVE | zmq.EVENT_HANDSHAKE_FAILED_AUTH, partial(self._loop.call_later, AGAIN_S, again))

    def _watch(self, socket: "zmq.Socket[bytes]", events: int, told: Callable[[], object]) -> None:
        for old, ears in [one for one in self._watched if one[0].closed]:
            self._deafen(old, ears)
        monitor = socket.get_monitor_socket(events)
        monitor.rcvhwm = 0
        self._watched.append((socket, monitor))
        self._loop.add_reader(monitor.fileno(), self._failed, monitor, told)
        self._failed(monitor, told)  # a descriptor tells of nothing before the first look

    def _deafen(self, socket: "zmq.Socket[bytes]", monitor: "zmq.Socket[bytes]") -> None:
        self._watched.remove((socket, monitor))
        self._loop.remove_reader(monitor.fileno())
        if not socket.closed:
            socket.disable_monitor()
        monitor.close(linger=0)

    def _failed(self, monitor: "zmq.Socket[bytes]", told: Callable[[], object]) -> None:
        while monitor.poll(0):
            monitor.recv_multipart(zmq.NOBLOCK)
            told()

    def close(self) -> None:
        """Nobody is let in any more."""
        for socket, monitor in list(self._watched):
            self._deafen(socket, monitor)
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()

    def _answer(self) -> None:
        while True:
            try:
                version, request, domain, address, _, mechanism, *credentials = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            reason = self._why_not(domain.decode(errors="replace"), mechanism, credentials)
            status, text = (b"400", b"not this key") if reason else (b"200", b"OK")
            self._socket.send_multipart((version or ZAP_VERSION, request, status, text, b"", b""))
            if reason:
                self._refuse(domain.decode(errors="replace"), address.decode(errors="replace"), reason)

    def _why_not(self, peer: str, mechanism: bytes, credentials: list[bytes]) -> str:
        expected = self._security.key_of(peer)
        if mechanism != b"CURVE" or len(credentials) != 1 or expected is None:
            return "showed no key"
        if zmq.utils.z85.encode(credentials[0]) != expected:
            return f"showed another key than host {self._security.host_of[peer]}'s"
        return ""

    def _refuse(self, peer: str, address: str, reason: str) -> None:
        """Said once for each address: who is turned away tries again and again."""
        self.refused += 1
        if (peer, address) not in self._told and len(self._told) < TOLD_MAX:
            self._told.add((peer, address))
            self._on_refused(peer, f"somebody at {address} {reason}")
