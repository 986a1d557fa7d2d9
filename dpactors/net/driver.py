"""Drives the link machines of one process on an asyncio loop; a transport only supplies lines.

A line reads and writes whole frames without ever waiting. What is sent while frames are read, or between ``hold`` and
``release``, leaves together when that is over. Otherwise a message to a peer that has acknowledged all before it leaves
at once (an ask waits for nothing), and on a busy link those of one turn of the loop leave together (a stream is
batched). One timer serves all links.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeAlias

from attrs import define, field

from dpactors.net.limits import LinkLimits
from dpactors.net.link import LinkMachine, LinkState
from dpactors.net.notices import LinkDown, LinkNotice, Refused

PUMP_MESSAGES = 1024
"""About as many messages are read from one line before other callbacks of the loop get a turn."""
PUMP_FRAME_WEIGHT = 16
"""In messages: what reading a frame costs besides."""
SHARE_MESSAGES = 32
"""As many go ahead of the rest of a turn, so that their receiver works on them while this process works on; of a longer
turn twice as many each time, for every frame costs both ends as much as some messages."""
TICK_S = 0.1
LINGER_S_MIN = 0.05
"""For the last frame, however late it is."""

OnEvent: TypeAlias = Callable[[LinkNotice], None]
OnFrame: TypeAlias = Callable[[str, bool, bytes], None]
"""Peer, whether it was sent (else received), and the frame by reference; called once a frame."""


class Line(Protocol):
    """What carries the frames of one link; nothing here blocks."""

    def write(self, frame: bytes) -> bool:
        """Hand a frame on; False where there is nobody to take it now."""
        ...

    def read(self) -> bytes | None:
        """The next frame, or None."""
        ...

    @property
    def readable(self) -> bool:
        """Whether a read would bring a frame, or a write that failed would now succeed."""
        ...

    def close(self, linger_s: float) -> None:
        """Let go of it; frames handed over may take `linger_s` to leave."""
        ...


@define(eq=False)
class Link:
    """A machine, the line that carries its frames, and what the driver keeps for it."""

    machine: LinkMachine
    line: Line | None = None
    stuck: deque[bytes] = field(factory=deque[bytes])
    """Frames that the machine has let go and no line took yet; never more than its window."""
    unsent: int = 0
    """Messages that wait for the end of a hold or of this turn of the loop."""
    listed: bool = False
    """Whether that end will see to it."""
    share: int = SHARE_MESSAGES
    """Unsent messages that go ahead of that end."""
    again: bool = False
    """Whether the next turn of the loop will read on."""
    wrote: bool = False
    """Whether something was written since the line was last asked for more to read: a write may swallow its edge."""


class Links:
    """All links of one process; made inside a running loop."""

    def __init__(
        self,
        process: str,
        incarnation: int,
        digest: str,
        on_event: OnEvent,
        *,
        limits: LinkLimits | None = None,
        on_frame: OnFrame | None = None,
    ) -> None:
        self.process = process
        self.incarnation = incarnation
        self._digest = digest
        self._on_event = on_event
        self._limits = limits or LinkLimits()
        self._on_frame = on_frame
        self._loop = asyncio.get_running_loop()
        self._links: dict[str, Link] = {}
        self._unsent: list[Link] = []
        self._again: list[Link] = []
        self._held = 0
        self._turn: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._awaited: tuple[Callable[[LinkMachine], bool], asyncio.Future[None]] | None = None
        self._closed = False

    # ------------------------------------------------------------- for actors' hosts

    def send(self, peer: str, route: int, trace: str, message: Any, latest: bool = False) -> None:
        """Send a message to a peer; raises MessageError for one that cannot travel.

        Before the first contact it waits; after the peer is lost it comes straight back as Undelivered.
        """
        link = self._links.get(peer) or self._link(peer)
        notices = link.machine.send(route, trace, message, latest=latest)
        if notices:
            self._tell(link, notices)
        if link.unsent:
            link.unsent += 1
            if link.unsent >= link.share:
                link.share *= 2
                self._flush(link)
        elif self._held or latest or link.machine.unacknowledged:
            link.unsent = 1
            if not link.listed:
                link.listed, link.share = True, SHARE_MESSAGES
                self._unsent.append(link)
            if not self._held:
                self._turn_soon()
        else:
            self._flush(link)

    def hold(self) -> None:
        """Keep what is sent from now on until ``release``."""
        self._held += 1

    def release(self) -> None:
        """Let go what was sent since ``hold``; as many calls as there were of it."""
        self._held -= 1
        if self._unsent and not self._held:
            self._let_go()

    def drop(self, peer: str, reason: str, incarnation: int | None = None) -> None:
        """The peer (that incarnation of it) is gone: everything unacknowledged comes back."""
        link = self._links.get(peer) or self._link(peer)
        self._tell(link, link.machine.lost(reason, incarnation))
        if link.machine.state is LinkState.LOST:
            self._dropped(link)

    def status(self) -> list[dict[str, Any]]:
        """One dict a link: peer, state, incarnation, backlog, unacknowledged."""
        return [
            {
                "peer": peer,
                "state": one.machine.state.value,
                "incarnation": one.machine.peer_incarnation,
                "backlog": one.machine.backlog,
                "unacknowledged": one.machine.unacknowledged,
            }
            for peer, one in self._links.items()
        ]

    def machine(self, peer: str) -> LinkMachine:
        """The machine of one link, for its counters; raises KeyError for a peer never named."""
        return self._links[peer].machine

    async def close(self, linger_s: float = 1.0) -> None:
        """Wait for acknowledgements up to `linger_s`, take leave of every peer, let go of all lines."""
        if self._closed:
            return
        ends_s = self._loop.time() + linger_s
        await self._until(lambda machine: machine.settled, ends_s)
        for link in self._links.values():
            self._tell(link, link.machine.leave())
            self._flush(link)
        # A transport may forget what has arrived when its connection ends, so the peers' answers are waited for.
        await self._until(lambda machine: machine.parted, ends_s)
        self._closed = True
        for handle in (self._turn, self._timer):
            if handle is not None:
                handle.cancel()
        for link in self._links.values():
            if link.line is not None:
                link.line.close(max(LINGER_S_MIN, ends_s - self._loop.time()))
                link.line = None
        await self._released()

    # ------------------------------------------------------------- for transports

    async def _released(self) -> None:
        """All lines were closed; free what they shared."""

    def _dropped(self, link: Link) -> None:
        """The peer was given up; a transport may close its line."""

    def _link(self, peer: str) -> Link:
        """The link with a peer, made where it is new."""
        link = self._links.get(peer)
        if link is None:
            machine = LinkMachine(self.process, peer, self.incarnation, self._digest, self._limits)
            link = self._links[peer] = Link(machine)
            if self._closed:
                machine.leave()
            elif self._timer is None:
                self._timer = self._loop.call_later(TICK_S, self._tick)
        return link

    def _join(self, link: Link, line: Line, peer_incarnation: int) -> None:
        """Use `line` from now on, and greet."""
        if link.line is not None and link.line is not line:
            link.line.close(0)
        link.line = line
        link.stuck.clear()
        self._tell(link, link.machine.join(self._loop.time(), peer_incarnation))
        self._flush(link, more=True)

    def _cut(self, link: Link) -> None:
        """Close the line; the machine goes on without one."""
        line, link.line = link.line, None
        link.stuck.clear()
        if line is not None:
            line.close(0)

    def _pump(self, link: Link) -> None:
        """Read what has arrived, tell it, send what that asks for."""
        line = link.line
        if line is None or self._closed:
            return
        self._held += 1
        try:
            more = self._drain(link, line)
        finally:
            self._held -= 1
        if link.unsent or more or link.machine.speaks(self._loop.time()):
            self._flush(link, more=more)
        if self._unsent and not self._held:
            self._let_go()
        if self._awaited is not None:
            true, done = self._awaited
            if not done.done() and self._all(true):
                done.set_result(None)

    def _drain(self, link: Link, line: Line) -> bool:
        """Read frame by frame and tell; whether there is more to read."""
        machine, now_s = link.machine, self._loop.time()
        room = PUMP_MESSAGES
        while room > 0:
            frame = line.read()
            if frame is None:
                return False
            if self._on_frame is not None:
                self._on_frame(machine.peer, False, frame)  # noqa: FBT003 - received
            notices = machine.receive(frame, now_s)
            room -= len(notices) + PUMP_FRAME_WEIGHT
            if notices:
                machine.delivering = True
                self._tell(link, notices)
                machine.delivering = False
            if link.line is not line:
                return False
            if not line.readable:  # cheaper than a read in vain, which raises
                return False
        return True

    # ------------------------------------------------------------- inside

    def _turn_soon(self) -> None:
        if self._turn is None and not self._closed:
            self._turn = self._loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._turn = None
        self._let_go()
        again, self._again = self._again, []
        for link in again:
            link.again = False
            self._pump(link)

    def _let_go(self) -> None:
        """Send on every link what was held back."""
        unsent, self._unsent = self._unsent, []
        for link in unsent:
            link.listed = False
            if link.unsent:  # else it was seen to in the meantime
                self._flush(link)

    def _flush(self, link: Link, *, more: bool = False) -> None:
        """Write what may go, and see that the line is read on where there is `more` or a write swallowed its edge."""
        link.unsent = 0
        line = link.line
        if line is None:
            return
        if not link.stuck or self._unstick(link, line):
            machine, now_s = link.machine, self._loop.time()
            if (lone := machine.express(now_s)) is not None:
                self._put(link, line, lone)
            else:
                for frame in machine.frames_to_send(now_s):
                    self._put(link, line, frame)
        if link.wrote:
            link.wrote = False
            more = more or line.readable
        if more and not link.again:
            link.again = True
            self._again.append(link)
            self._turn_soon()

    def _unstick(self, link: Link, line: Line) -> bool:
        """Write what was stuck; whether all of it went."""
        while link.stuck:
            if not line.write(link.stuck[0]):
                return False
            link.stuck.popleft()
            link.wrote = True
        return True

    def _put(self, link: Link, line: Line, frame: bytes) -> None:
        if self._on_frame is not None:
            self._on_frame(link.machine.peer, True, frame)  # noqa: FBT003 - sent
        if link.stuck or not line.write(frame):
            link.stuck.append(frame)
        else:
            link.wrote = True

    def _tick(self) -> None:
        self._timer = self._loop.call_later(TICK_S, self._tick)
        for link in list(self._links.values()):
            # Reading first: after a long stall of this process the peer's frames wait here, and it is not silent.
            self._pump(link)
            notices = link.machine.tick(self._loop.time())
            if notices:
                self._tell(link, notices)
            self._flush(link)

    async def _until(self, true: Callable[[LinkMachine], bool], ends_s: float) -> None:
        """Wait until it is true of every machine with a line, or time is up."""
        if self._all(true):
            return
        done = self._loop.create_future()
        self._awaited = (true, done)
        await asyncio.wait([done], timeout=max(LINGER_S_MIN, ends_s - self._loop.time()))
        self._awaited = None

    def _all(self, true: Callable[[LinkMachine], bool]) -> bool:
        return all(one.line is None or true(one.machine) for one in self._links.values())

    def _tell(self, link: Link, notices: Iterable[LinkNotice]) -> None:
        for notice in notices:
            if type(notice) is LinkDown:
                link.stuck.clear()
            elif type(notice) is Refused and link.machine.state is LinkState.FENCED:
                self._dropped(link)
            try:
                self._on_event(notice)
            except Exception as error:  # noqa: BLE001 - the notices after it must not be lost with it
                self._loop.call_exception_handler(
                    {"message": f"owner of the links failed on {type(notice).__name__}", "exception": error}
                )
