"""The control socket: one JSON line asks, one answers. The other verbs speak to a running deployment here."""

import asyncio
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, cast

import orjson

from dpactors.runtime.rows import View

LINE_BYTES_MAX = 64 << 10


class Commanded(Protocol):
    """What the control socket needs of the supervisor."""

    def view(self) -> View:
        """The deployment as it is now."""
        ...

    def take_down(self, drain_s: float) -> None:
        """Stop in order."""
        ...

    def inject(self, word: str, addresses: list[str]) -> dict[str, list[str]]:
        """Signal processes; raises ValueError for an unknown address."""
        ...


class ControlServer:
    """Answers on a unix socket that only this user can open."""

    def __init__(self, commanded: Commanded) -> None:
        self._commanded = commanded
        self._server: asyncio.Server | None = None

    async def open(self, path: Path) -> None:
        """Listen."""
        path.unlink(missing_ok=True)
        before = os.umask(0o177)
        try:
            self._server = await asyncio.start_unix_server(self._serve, str(path), limit=LINE_BYTES_MAX)
        finally:
            os.umask(before)

    async def close(self) -> None:
        """Answer nobody any more."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, ValueError, asyncio.IncompleteReadError):
            line = await reader.readline()
            writer.write(orjson.dumps(self._answer(line), default=str) + b"\n")
            await writer.drain()
        writer.close()

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            read = orjson.loads(line)
            asked = cast("dict[str, Any]", read) if isinstance(read, dict) else {}
            if "verb" not in asked:
                return {"error": 'a request is one JSON object a line, such as {"verb": "ps"}'}
            match asked["verb"]:
                case "ps":
                    view = self._commanded.view()
                    return {"name": view.name, "urls": list(view.urls), "ready": view.ready, "actors": list(view.rows)}
                case "down":
                    self._commanded.take_down(float(asked["drain_s"]))
                    return {}
                case "fault":
                    return {"processes": self._commanded.inject(asked["word"], list(asked["addresses"]))}
                case verb:
                    return {"error": f"no verb {verb}"}
        except KeyError as error:
            return {"error": f"the request lacks {error}"}
        except (TypeError, ValueError) as error:
            return {"error": str(error)}


class NotRunning(RuntimeError):
    """Nobody answers at the control socket."""


def ask(path: str, **request: Any) -> dict[str, Any]:
    """Ask a running deployment; raises NotRunning, or ValueError with what it says is wrong with the request."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(30)
            connection.connect(path)
            connection.sendall(orjson.dumps(request) + b"\n")
            with connection.makefile("rb") as answer:
                found = orjson.loads(answer.readline())
    except (OSError, ValueError) as error:
        raise NotRunning(f"no deployment answers at {path}: {error}") from error
    if "error" in found:
        raise ValueError(found["error"])
    return found
