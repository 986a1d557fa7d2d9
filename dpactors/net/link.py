"""One end of a link between two processes, as a pure machine: no socket, no clock, no task.

Rule 1: a link is (my incarnation, the peer's incarnation); a frame that names another pair changes nothing but a
        counter, so nothing meant for a dead process ever reaches the one that took its name.
Rule 2: between two living incarnations a reliable message is delivered exactly once and in order; when the pair ends,
        every message that was not acknowledged comes back as Undelivered.
Rule 3: an incarnation that was given up never comes back. A later one of the same name has a larger number.
Rule 4: everything kept here is bounded by LinkLimits, whatever the peer or the owner does.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Any

from dpactors import __version__
from dpactors.message.codec import encode
from dpactors.message.errors import MessageError
from dpactors.net import frames
from dpactors.net.frames import Frame, Greeting, why_no_match
from dpactors.net.incoming import Incoming
from dpactors.net.limits import LinkCounters, LinkLimits
from dpactors.net.notices import (
    BadFrame,
    Heard,
    LinkDown,
    LinkNotice,
    LinkUp,
    Refused,
    Silent,
    Undelivered,
)
from dpactors.net.outgoing import Outgoing, Parcel


class LinkState(Enum):
    """Where a link stands."""

    JOINING = "joining"
    """The peer is not known yet; reliable messages wait for it."""
    UP = "up"
    LOST = "lost"
    """The peer was given up; reliable messages come straight back until a later incarnation greets."""
    FENCED = "fenced"
    """The peer serves a later incarnation of this process; nothing goes any more."""
    LEFT = "left"
    """This process took its leave."""


_ENDED = (LinkState.LOST, LinkState.FENCED, LinkState.LEFT)


class LinkMachine:
    """Frames and times in, notices and frames out; `now_s` is any clock that never goes back."""

    def __init__(self, me: str, peer: str, incarnation: int, digest: str, limits: LinkLimits | None = None) -> None:
        self.me = me
        self.peer = peer
        self.incarnation = incarnation
        self.digest = digest
        self.limits = limits or LinkLimits()
        self.counters = LinkCounters()
        self.state = LinkState.JOINING
        self.peer_incarnation: int | None = None
        self._floor = 0
        self._out = Outgoing(self.limits, self.counters)
        self._in = Incoming(self.limits, self.counters)
        self._hello_due = False
        self._welcome_due = False
        self._bye = b""
        self._refuse_due: int | None = None
        self._refused_before = ""
        self._greeted_s = self._sent_s = self._heard_s = float("-inf")
        self._silent = False
        self.delivering = False
        """While the owner is told of a frame: nothing of it is acknowledged before the owner has all of it."""
        self.parted = True
        """False from taking leave of a living peer until it says so too."""

    # ------------------------------------------------------------- what the owner says

    def join(self, now_s: float, peer_incarnation: int = 0) -> list[LinkNotice]:
        """Look for the peer, now; where its incarnation is known, no earlier one counts any more."""
        notices: list[LinkNotice] = []
        if self.state in (LinkState.FENCED, LinkState.LEFT):
            return notices
        if self.peer_incarnation is not None and self.peer_incarnation < peer_incarnation:
            notices = self._part(f"incarnation {peer_incarnation} took its place", LinkState.JOINING)
        self._floor = max(self._floor, peer_incarnation)
        if self.state is not LinkState.UP:
            self.state = LinkState.JOINING
            self._hello_due = True
        self._greeted_s = now_s
        return notices

    def send(self, route: int, trace: str, message: Any, *, latest: bool = False) -> Sequence[LinkNotice]:
        """Take a message; raises MessageError for one that cannot travel, returns Undelivered for one that may not."""
        if latest:
            self._out.put_latest(route, frames.envelope(route, trace, encode(message)))
            return ()
        if self.state is not LinkState.UP and self.state in _ENDED:
            return self._undelivered([((route, trace, message, b""), False)], f"the link is {self.state.value}")
        parcel = (route, trace, message, frames.envelope(route, trace, encode(message)))
        if not self._out.put(parcel):
            return self._undelivered([(parcel, False)], f"the outbox is full, {self._out.waiting} messages wait")
        return ()

    def lost(self, reason: str, incarnation: int | None = None) -> list[LinkNotice]:
        """The peer is gone, says one who knows; word of an `incarnation` already replaced changes nothing."""
        if incarnation is not None:
            if incarnation < self._floor:
                return []
            self._floor = incarnation + 1
        if self.state in _ENDED:
            return []
        return self._part(reason, LinkState.LOST)

    def leave(self) -> list[LinkNotice]:
        """Take leave of the peer; what it did not acknowledge comes back."""
        if self.state is LinkState.UP:
            self._say_bye()
            self.parted = False
        notices = self._part("this process leaves", LinkState.LEFT)
        return [one for one in notices if type(one) is not LinkDown]  # the peer lives, it is us who go

    def tick(self, now_s: float) -> list[LinkNotice]:
        """Time passed; call it a few times per heartbeat, after reading what has arrived."""
        if self.state is LinkState.JOINING and now_s - self._greeted_s >= self.limits.hello_s:
            self._hello_due = True
            self._greeted_s = now_s
        if self.state is LinkState.UP and not self._silent and now_s - self._heard_s >= self.limits.lease_s:
            self._silent = True
            return [Silent(self.peer, now_s - self._heard_s)]
        return []

    # ------------------------------------------------------------- what the network says

    def receive(self, data: bytes, now_s: float) -> list[LinkNotice]:
        """Take one frame as it came; never raises, whatever the bytes."""
        self.counters.frames_received += 1
        try:
            frame = frames.read(data)
        except MessageError as error:
            return self._malformed(str(error))
        if self.state is not LinkState.UP and self.state in (LinkState.FENCED, LinkState.LEFT):
            self.parted |= isinstance(frame, Frame) and (frame.kind, frame.addressed) == (frames.BYE, self.incarnation)
            return []
        if isinstance(frame, Greeting):
            return self._greeting(frame, now_s)
        if frame.kind == frames.REFUSE:
            return self._fenced(frame)
        if frame.sender != self.peer_incarnation or frame.addressed != self.incarnation:
            return self._stranger(frame)
        notices: list[LinkNotice] = []
        if self.state is LinkState.JOINING:
            # It addresses this incarnation, so it has our greeting, and we have its: both ends are through.
            notices = self._established(now_s)
        self._heard_s = now_s
        if self._silent:
            notices += self._alive(now_s)
        if not self._out.acknowledged(frame.ack, frame.latest_ack):
            return notices + self._malformed(f"acknowledges {frame.ack}, {frame.latest_ack}, which were never sent")
        if frame.kind == frames.DATA:
            notices += self._in.take(self.peer, frame, len(data), now_s)
        else:
            self._sort(frame, now_s, notices)
        return notices

    def _sort(self, frame: Frame, now_s: float, notices: list[LinkNotice]) -> None:
        match frame.kind:
            case frames.LATEST:
                notices += self._in.take_latest(self.peer, frame, now_s)
            case frames.NACK:
                if not self._out.rewind(frame.first):
                    notices += self._malformed(f"asks for {frame.first}, which was never sent")
            case frames.REJECT:
                parcel = self._out.reject(frame.first)
                if parcel is not None:
                    why = str(frame.body[0])[: frames.TEXT_CHARS_MAX] if frame.body else "no reason"
                    notices += self._undelivered([(parcel, False)], f"the peer cannot read it: {why}")
            case _:
                self._say_bye()  # so that it need not wonder whether its last frame was read
                notices += self._part("it took its leave", LinkState.LOST)

    # ------------------------------------------------------------- what goes out

    def speaks(self, now_s: float) -> bool:
        """Whether ``frames_to_send`` may make any frame; asked after each reading, and mostly the answer is no."""
        out, inside = self._out, self._in
        return bool(out.queue or out.newest) or self._owes() or inside.ack_due(now_s)

    def _owes(self) -> bool:
        """Whether a frame that is no message is due."""
        inside = self._in
        return bool(
            self._hello_due
            or self._welcome_due
            or self._bye
            or self._refuse_due is not None
            or inside.nack_due
            or inside.rejects
        )

    def express(self, now_s: float) -> bytes | None:
        """The frame of the one message that waits, where it may go at once and nothing else is due; else None.

        What ``frames_to_send`` would make, at a third of its cost: every ask goes this way.
        """
        if self.state is not LinkState.UP or self.delivering or self._owes():
            return None
        batch = self._out.next_single()
        if batch is None:
            return None
        first, data = batch
        inside = self._in
        assert self.peer_incarnation is not None, "a link is up with somebody"
        self._sent_s = now_s
        self.counters.frames_sent += 1
        inside.told()
        return frames.write_single(
            self.incarnation, self.peer_incarnation, first, inside.received, inside.latest_received, data
        )

    def frames_to_send(self, now_s: float) -> list[bytes]:
        """All frames that may go now, batched; the transport hands on each in order, once."""
        made: list[bytes] = []
        if self._refuse_due is not None:
            made.append(self._frame(frames.REFUSE, self._refuse_due, self._floor))
            self._refuse_due = None
        if self._hello_due:
            self._hello_due = False
            made.append(self._greet(frames.HELLO, 0))
        peer = self.peer_incarnation
        if peer is not None:
            if self._welcome_due:
                self._welcome_due = False
                made.append(self._greet(frames.WELCOME, peer))
            if self.state is LinkState.UP:
                self._fill(made, peer, now_s)
        if self._bye:
            made.append(self._bye)
            self._bye = b""
        if made:
            self._sent_s = now_s
            self.counters.frames_sent += len(made)
        return made

    def _fill(self, made: list[bytes], peer: int, now_s: float) -> None:
        inside, out = self._in, self._out
        sure = not self.delivering
        while sure and inside.rejects:
            sequence, why = inside.rejects.popleft()
            # Acknowledges only what came before: the sender must still have the message when it reads why.
            made.append(self._frame(frames.REJECT, peer, sequence, [frames.text_item(why)], sequence))
        if sure and inside.nack_due:
            inside.nack_due = False
            made.append(self._frame(frames.NACK, peer, inside.received))
        spoke = False
        while out.queue and (batch := out.next_batch()) is not None:
            made.append(self._frame(frames.DATA, peer, *batch))
            spoke = True
        for batch in out.latest_again(now_s, self._heard_s):
            made.append(self._frame(frames.LATEST, peer, *batch))
            spoke = True
        while out.newest and (batch := out.next_latest(now_s)) is not None:
            made.append(self._frame(frames.LATEST, peer, *batch))
            spoke = True
        # A silent peer hears less often, so that a wedged one does not gather a pile of heartbeats.
        period_s = self.limits.lease_s if self._silent else self.limits.heartbeat_s
        if sure and not spoke and (inside.ack_due(now_s) or now_s - self._sent_s >= period_s):
            made.append(self._frame(frames.DATA, peer, self._out.next_sequence))
            spoke = True
        if sure and spoke:
            inside.told()

    def _frame(
        self, kind: int, addressed: int, first: int, items: Sequence[bytes] = (), ack: int | None = None
    ) -> bytes:
        inside = self._in
        upto, latest = inside.acknowledged if self.delivering else (inside.received, inside.latest_received)
        return frames.write_frame(kind, self.incarnation, addressed, first, upto if ack is None else ack, latest, items)

    def _say_bye(self) -> None:
        assert self.peer_incarnation is not None, "a link is up with somebody"
        self._bye = self._frame(frames.BYE, self.peer_incarnation, self._out.next_sequence)

    def _greet(self, kind: int, addressed: int) -> bytes:
        return frames.write_greeting(
            Greeting(kind, frames.LINK_VERSION, self.me, self.incarnation, self.digest, __version__, addressed)
        )

    # ------------------------------------------------------------- for the owner to look at

    @property
    def settled(self) -> bool:
        """Whether the peer has acknowledged everything it was sent, or there is no living peer."""
        return self.state is not LinkState.UP or not (self._out.waiting or self._out.flying)

    @property
    def backlog(self) -> int:
        """Reliable messages that wait for credit or for the peer."""
        return self._out.waiting

    @property
    def unacknowledged(self) -> int:
        """Reliable messages sent and not yet acknowledged."""
        return self._out.flying

    # ------------------------------------------------------------- handshake

    def _greeting(self, hello: Greeting, now_s: float) -> list[LinkNotice]:
        mismatch = why_no_match(hello, self.peer, self.digest)
        if mismatch:
            return self._refused(mismatch)
        if hello.incarnation < self._floor:
            self.counters.fenced += 1
            self._refuse_due = hello.incarnation
            return self._refused(f"incarnation {hello.incarnation} is stale, {self._floor} or later is served")
        notices: list[LinkNotice] = []
        if hello.incarnation != self.peer_incarnation:
            if self.peer_incarnation is not None:
                notices = self._part(f"restarted as incarnation {hello.incarnation}", LinkState.JOINING)
            self.peer_incarnation = self._floor = hello.incarnation
            self.state = LinkState.JOINING
        if hello.kind == frames.HELLO:
            self._welcome_due = True
        elif hello.addressed != self.incarnation:
            self.counters.fenced += 1  # a welcome to an incarnation of this name that is not this one
        elif self.state is LinkState.JOINING:
            self._welcome_due = True
            notices += self._established(now_s)
        return notices + self._alive(now_s)

    def _established(self, now_s: float) -> list[LinkNotice]:
        assert self.peer_incarnation is not None, "a link is up with somebody"
        self.state = LinkState.UP
        self._hello_due = False
        self._silent = False
        self._heard_s = now_s
        self._refused_before = ""
        return [LinkUp(self.peer, self.peer_incarnation)]

    def _part(self, reason: str, after: LinkState) -> list[LinkNotice]:
        """End the pair: what is on its way or waits comes back, numbers start from zero."""
        notices: list[LinkNotice] = []
        if self.peer_incarnation is not None:
            if self.state is LinkState.UP:
                notices.append(LinkDown(self.peer, self.peer_incarnation, reason))
            self._floor = max(self._floor, self.peer_incarnation + 1)
            self.peer_incarnation = None
        notices += self._undelivered(self._out.abandon(), reason)
        self._in.reset()
        self._hello_due = self._welcome_due = self._silent = False
        self.state = after
        return notices

    def _stranger(self, frame: Frame) -> list[LinkNotice]:
        """A frame of another pair: drop it, and tell a stale incarnation that it is one."""
        self.counters.fenced += 1
        if frame.sender < self._floor:
            self._refuse_due = frame.sender
        return []

    def _fenced(self, frame: Frame) -> list[LinkNotice]:
        if frame.addressed != self.incarnation or frame.first <= self.incarnation:
            self.counters.fenced += 1  # meant for another that has or had this name
            return []
        reason = f"{self.peer} serves incarnation {frame.first} or later of {self.me}, this is {self.incarnation}"
        return [*self._part(reason, LinkState.FENCED), Refused(self.peer, reason)]

    # ------------------------------------------------------------- delivery

    def _alive(self, now_s: float) -> list[LinkNotice]:
        self._heard_s = now_s
        if not self._silent:
            return []
        self._silent = False
        return [Heard(self.peer)]

    def _malformed(self, why: str) -> list[LinkNotice]:
        self.counters.malformed += 1
        return [BadFrame(self.peer, why)]

    def _refused(self, reason: str) -> list[LinkNotice]:
        """Said once: greetings repeat twice a second."""
        if reason == self._refused_before:
            return []
        self._refused_before = reason
        return [Refused(self.peer, reason)]

    def _undelivered(self, parcels: Sequence[tuple[Parcel, bool]], reason: str) -> list[LinkNotice]:
        self.counters.undelivered += len(parcels)
        return [
            Undelivered(self.peer, route, trace, message, sent, reason) for (route, trace, message, _), sent in parcels
        ]
