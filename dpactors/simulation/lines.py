"""Links over a seeded network that loses, doubles, delays and reorders frames: the real driver and machine above it.

The air knows names, not processes. A frame goes to whoever has the name when it lands, so a restarted process is
offered what its predecessor was sent, and one of two processes of a name what was meant for the other.
"""

import asyncio
import random
from collections import deque
from typing import Any, cast

from attrs import frozen

from dpactors.net.driver import Link, Links, OnEvent
from dpactors.net.link import LinkState
from dpactors.simulation.loop import StoppableLoop


@frozen
class LineWeather:
    """What the air does to frames; links must not mind any of it.

    Each frame's delay is drawn for itself, so frames overtake each other.
    """

    delay_s: tuple[float, float] = (0.0001, 0.005)
    lose: float = 0.0
    """Probability that a frame never lands."""
    double: float = 0.0
    """Probability that a frame that is not lost lands twice."""


class Air:
    """What carries the frames of all simulated links of a loop; a pure function of seed, weather and what is sent."""

    def __init__(self, seed: int = 0, weather: LineWeather | None = None) -> None:
        """Made inside a running loop."""
        self.weather = weather or LineWeather()
        """May be changed at any time."""
        self.lost = 0
        self.doubled = 0
        self._gusts = 0
        """How often everything under way was lost."""
        self._random = random.Random(seed)  # noqa: S311 - a seeded simulation, no secret
        self._loop = asyncio.get_running_loop()
        self._ends: dict[tuple[str, str], list[_End]] = {}

    def open(self, end: "_End") -> None:
        """From now on `end` hears what its peer says to its name."""
        self._ends.setdefault((end.me, end.peer), []).append(end)

    def close(self, end: "_End") -> None:
        """It hears no more."""
        ends = self._ends[end.me, end.peer]
        if end in ends:
            ends.remove(end)

    def carry(self, source: str, target: str, frame: bytes) -> bool:
        """Take a frame on its way; False where nobody has the target's name."""
        if not self._ends.get((target, source)):
            return False
        if self._random.random() < self.weather.lose:
            self.lost += 1
            return True
        copies = 1
        if self._random.random() < self.weather.double:
            self.doubled += 1
            copies = 2
        for _ in range(copies):
            delay_s = self._random.uniform(*self.weather.delay_s)
            self._loop.call_later(delay_s, self._land, self._gusts, source, target, frame)
        return True

    def clear(self) -> None:
        """Lose everything that is under way."""
        self._gusts += 1

    def _land(self, gusts: int, source: str, target: str, frame: bytes) -> None:
        if gusts != self._gusts:
            self.lost += 1
            return
        ends = self._ends.get((target, source))
        if ends:
            self._random.choice(ends).arrive(frame)
        else:
            self.lost += 1


class _End:
    """One end of a pair, as a line."""

    def __init__(self, air: Air, links: "SimulatedLinks", link: Link) -> None:
        self.me = links.process
        self.peer = link.machine.peer
        self._air = air
        self._links = links
        self._link = link
        self._inbox: deque[bytes] = deque()

    def arrive(self, frame: bytes) -> None:
        self._inbox.append(frame)
        if len(self._inbox) == 1:
            self._links.arrived(self._link)

    def write(self, frame: bytes) -> bool:
        return self._air.carry(self.me, self.peer, frame)

    def read(self) -> bytes | None:
        return self._inbox.popleft() if self._inbox else None

    @property
    def readable(self) -> bool:
        return bool(self._inbox)

    def close(self, linger_s: float) -> None:
        self._air.close(self)


class SimulatedLinks(Links):
    """All links of one simulated process; made inside a running loop, mostly a VirtualLoop."""

    def __init__(
        self, air: Air, process: str, incarnation: int, digest: str, on_event: OnEvent, **options: Any
    ) -> None:
        super().__init__(process, incarnation, digest, on_event, **options)
        self._air = air
        self.loop = StoppableLoop(self._loop)
        """Stop it, and this process does nothing until it goes on."""
        self._loop = cast("asyncio.AbstractEventLoop", self.loop)

    def reach(self, peer: str, peer_incarnation: int = 0) -> None:
        """Speak and listen to whoever has the name of `peer`; said again, greet that incarnation."""
        link = self._link(peer)
        if isinstance(link.line, _End):
            self._join(link, link.line, peer_incarnation)
            return
        end = _End(self._air, self, link)
        self._air.open(end)
        self._join(link, end, peer_incarnation)

    def arrived(self, link: Link) -> None:
        """A frame waits for `link`; it is read in a turn of the loop of this process's own."""
        self._loop.call_soon(self._pump, link)

    def _dropped(self, link: Link) -> None:
        # One that is only lost may come back under its name; one that is fenced would catch what another should hear.
        if link.machine.state is LinkState.FENCED:
            self._cut(link)
