"""Links between hosts that share one process and one loop: the machine and notices of real links, no socket.

Messages are encoded as on any link, so that a test which joins two hosts here sees what a wire would do to them.
Actors of one process do not come here: their host hands messages over by reference.
"""

from collections import deque

from dpactors.net.driver import Link, Links


class _End:
    """One end of a joined pair, as a line."""

    def __init__(self) -> None:
        self.inbox: deque[bytes] = deque()
        self.other: _End | None = None
        self.owner: LocalLinks | None = None
        self.link: Link | None = None

    def write(self, frame: bytes) -> bool:
        other = self.other
        if other is None or other.owner is None or other.link is None:
            return False
        other.inbox.append(frame)
        other.owner.arrived(other.link)
        return True

    def read(self) -> bytes | None:
        return self.inbox.popleft() if self.inbox else None

    @property
    def readable(self) -> bool:
        return bool(self.inbox)

    def close(self, linger_s: float) -> None:
        if self.other is not None:
            self.other.other = None
        self.other = self.owner = self.link = None


class LocalLinks(Links):
    """All links of one host that lives beside others in this process; made inside a running loop."""

    def arrived(self, link: Link) -> None:
        """A frame waits for `link`; it is read at the end of this turn of the loop."""
        self._flush(link, more=True)

    def _dropped(self, link: Link) -> None:
        self._cut(link)

    def attach(self, peer: str, end: _End) -> None:
        """Use one end of a pair for the link with `peer`."""
        link = self._link(peer)
        end.owner, end.link = self, link
        self._join(link, end, 0)


def join(one: LocalLinks, other: LocalLinks) -> None:
    """Link two hosts of this process; joining again replaces what linked them before."""
    left, right = _End(), _End()
    left.other, right.other = right, left
    one.attach(other.process, left)
    other.attach(one.process, right)
