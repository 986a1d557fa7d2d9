"""Links between hosts that share one process and one loop: the machine and notices of real links, no socket.

Messages are encoded as on any link, so that a test which joins two hosts here sees what a wire would do to them.
Actors of one process do not come here: their host hands messages over by reference.
"""

from collections import deque

from dpactors.net.driver import Link, Links


class _End:
    """One end of a pair, as a line; where two hosts have one name both hear, and the machines tell them apart."""

    def __init__(self, owner: "LocalLinks", link: Link) -> None:
        self.others: list[_End] = []
        self._inbox: deque[bytes] = deque()
        self._owner = owner
        self._link = link

    def write(self, frame: bytes) -> bool:
        for other in self.others:
            other.arrive(frame)
        return bool(self.others)

    def arrive(self, frame: bytes) -> None:
        self._inbox.append(frame)
        if len(self._inbox) == 1:
            self._owner.arrived(self._link)

    def read(self) -> bytes | None:
        return self._inbox.popleft() if self._inbox else None

    @property
    def readable(self) -> bool:
        return bool(self._inbox)

    def close(self, linger_s: float) -> None:
        for other in self.others:
            other.others.remove(self)
        self.others.clear()


class LocalLinks(Links):
    """All links of one host that lives beside others in this process; made inside a running loop."""

    def arrived(self, link: Link) -> None:
        """A frame waits for `link`; it is read in a turn of the loop of this host's own."""
        self._loop.call_soon(self._pump, link)

    def end(self, peer: str) -> _End:
        """The line to whoever has that name, made where it is new."""
        link = self._link(peer)
        return link.line if isinstance(link.line, _End) else _End(self, link)

    def use(self, peer: str, end: _End) -> None:
        """Greet over `end`."""
        self._join(self._link(peer), end, 0)

    def _dropped(self, link: Link) -> None:
        self._cut(link)


def join(one: LocalLinks, other: LocalLinks) -> None:
    """Link two hosts of this process; joining again after either restarted or was cut links them again."""
    left, right = one.end(other.process), other.end(one.process)
    if right not in left.others:
        left.others.append(right)
        right.others.append(left)
    one.use(other.process, left)
    other.use(one.process, right)
