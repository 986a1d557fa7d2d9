"""What travels between the owners of links in live tests."""

from pathlib import Path

from dpactors.message.message import message
from dpactors.net.curve import Security, load_keys
from dpactors.net.limits import LinkLimits

FAST = LinkLimits(
    window_messages=50, outbox_messages=100, ack_messages=10, heartbeat_s=0.1, lease_s=0.6, hello_s=0.1, ack_s=0.02
)
HANG = -1
"""The number on which a far process blocks its loop."""


NAMES = ("a", "b", "c", "near", "far", "other", "nobody")


def one_host(folder: Path) -> Security:
    """The keys of a plan all of whose processes are on one host."""
    return Security(load_keys(folder, "node0", ["node0"]), dict.fromkeys(NAMES, "node0"))


@message("test.live.number/1")
class Number:
    """One numbered message with some weight."""

    number: int
    weight: bytes
