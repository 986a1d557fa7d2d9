"""Every bound of a link under its name, and what a link counts."""

from attrs import define, frozen


@frozen
class LinkLimits:
    """Bounds and periods of one link; both ends should have the same."""

    window_messages: int = 4096
    """Reliable messages sent and not yet acknowledged."""
    window_bytes: int = 64 << 20
    """Bytes of those; a single larger message still goes, alone."""
    outbox_messages: int = 65_536
    """Reliable messages that wait for credit or for the peer; beyond it they come back as Undelivered."""
    outbox_bytes: int = 256 << 20
    latest_frames: int = 16
    """Unacknowledged frames of `latest` messages; beyond it the newest of each route waits."""
    batch_messages: int = 256
    batch_bytes: int = 1 << 20
    ack_messages: int = 512
    """Received messages after which an acknowledgement goes out on its own."""
    ack_bytes: int = 8 << 20
    ack_s: float = 0.1
    """The longest that a received message waits for its acknowledgement."""
    renack_s: float = 0.1
    """Pause before the same sequence is asked for again."""
    hello_s: float = 0.5
    """Period of greetings while the peer is unknown."""
    heartbeat_s: float = 0.5
    """An empty frame goes out after so long without any."""
    lease_s: float = 3.0
    """Nothing received for so long: the peer is reported silent."""


@define
class LinkCounters:
    """What happened on one link since it was made."""

    frames_sent: int = 0
    frames_received: int = 0
    messages_sent: int = 0
    messages_delivered: int = 0
    fenced: int = 0
    """Frames from or to another incarnation, dropped."""
    duplicates: int = 0
    """Messages that had arrived before, dropped."""
    gaps: int = 0
    """Frames that came ahead of a missing one, dropped and asked for again."""
    resent: int = 0
    malformed: int = 0
    coalesced: int = 0
    """`latest` messages replaced by a newer one before they were sent, or older than one received."""
    undelivered: int = 0
