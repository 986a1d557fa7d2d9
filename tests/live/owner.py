"""One process's links, everything they told, and a far end that says every message back."""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from dpactors.net.driver import Links
from dpactors.net.notices import Delivered, LinkNotice, Undelivered
from dpactors.net.zeromq import ZmqLinks
from tests.live.link_messages import Number


class Owner:
    """Owns links as a process does, and remembers all that they told."""

    def __init__(self, make: Callable[[Callable[[LinkNotice], None]], Links], patience_s: float) -> None:
        self.seen: list[LinkNotice] = []
        self.echo_to = ""
        """Where every message that arrives is sent back to."""
        self._patience_s = patience_s
        self._waits: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self.links = make(self.hear)
        self.name = self.links.process

    def hear(self, notice: LinkNotice) -> None:
        self.seen.append(notice)
        if self.echo_to and type(notice) is Delivered:
            self.links.send(self.echo_to, notice.route, notice.trace, notice.message)
        for true, done in self._waits:
            if not done.done() and true():
                done.set_result(None)

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait until it is true after some notice; a deadline that only a hang meets makes it fail."""
        if true():
            return
        done = asyncio.get_running_loop().create_future()
        self._waits.append((true, done))
        await asyncio.wait_for(done, self._patience_s)

    async def until_seen(self, kind: type, count: int = 1) -> None:
        await self.until(lambda: sum(type(one) is kind for one in self.seen) >= count)

    async def until_got(self, *numbers: int) -> None:
        await self.until(lambda: set(numbers) <= set(self.numbers()))

    def numbers(self, kind: type = Delivered) -> list[int]:
        """Of the messages in notices of a kind, in order."""
        return [one.message.number for one in self.seen if type(one) is kind and one.message.number >= 0]

    def of(self, kind: type) -> list[Any]:
        return [one for one in self.seen if type(one) is kind]

    def back(self) -> dict[int, bool]:
        """What came back, once each, and whether it may have run."""
        found = [one for one in self.of(Undelivered) if one.message.number >= 0]
        assert len({one.message.number for one in found}) == len(found), "handed back twice"
        return {one.message.number: one.may_have_run for one in found}

    def say(self, peer: str, *numbers: int, latest: bool = False, weight: int = 0, route: int = 0) -> None:
        for number in numbers:
            self.links.send(peer, route, f"t{number}", Number(number, bytes(weight)), latest)

    def crash(self) -> None:
        """End as a killed process does: sockets closed, nothing said."""
        self.links._closed = True
        for link in self.links._links.values():
            self.links._cut(link)
        if self.links._timer is not None:
            self.links._timer.cancel()
        if isinstance(self.links, ZmqLinks) and not self.links._context.closed:
            if self.links._doorkeeper is not None:
                self.links._doorkeeper.close()
            self.links._context.destroy(linger=0)


class Far(Protocol):
    """A peer called ``far`` that says every message back to ``near``."""

    def stop(self) -> None:
        """As SIGSTOP does."""
        ...

    def go_on(self) -> None:
        """As SIGCONT does."""
        ...

    async def hang(self) -> None:
        """Its loop is stuck, whatever else of it lives on."""
        ...

    def wake(self) -> None:
        """Its loop turns again."""
        ...

    async def kill(self) -> None:
        """As SIGKILL does; stopped and hung ones too."""
        ...

    def got(self) -> list[int]:
        """What was delivered to it in its life, also when that is over."""
        ...


def accounted(sent: list[int], back: dict[int, bool], *got: list[int]) -> None:
    """Every message that was sent was delivered once or came back once, and both only where that was said."""
    delivered = [number for one in got for number in one]
    assert len(set(delivered)) == len(delivered), "delivered twice"
    assert set(delivered) | set(back) == set(sent), f"vanished: {set(sent) - set(delivered) - set(back)}"
    assert [number for number in delivered if not back.get(number, True)] == [], (
        "delivered, though said not to have run"
    )
    assert all(one == sorted(one) for one in got), "out of order"
