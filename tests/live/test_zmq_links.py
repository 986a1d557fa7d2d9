"""Links over real sockets: order, restarts, kills, twins and leaving, each told by notices and never by the clock."""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import uvloop

from dpactors.net.driver import Links
from dpactors.net.errors import EndpointError
from dpactors.net.limits import LinkLimits
from dpactors.net.memory import LocalLinks, join
from dpactors.net.notices import Delivered, Heard, LinkDown, LinkNotice, LinkUp, Refused, Silent, Undelivered
from dpactors.net.zeromq import ZmqLinks
from tests.live.link_messages import FAST, Number

PATIENCE_S = 60.0
ROOT = Path(__file__).parents[2]


@pytest.fixture
def run_dir() -> Iterator[Path]:
    """A short folder: pytest's own would exceed a socket's path."""
    path = Path(tempfile.mkdtemp(prefix="dpa-"))
    yield path
    shutil.rmtree(path)


class Owner:
    """One process's links and everything they told."""

    living: ClassVar[list["Owner"]] = []

    def __init__(self, name: str, run_dir: Path, incarnation: int = 1, digest: str = "d", **options: Any) -> None:
        self.name = name
        Owner.living.append(self)
        self.seen: list[LinkNotice] = []
        self._waits: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self.links: Links
        if run_dir.name == "memory":
            self.links = LocalLinks(name, incarnation, digest, self.hear, **options)
        else:
            self.links = ZmqLinks(name, incarnation, digest, run_dir, self.hear, **options)

    def hear(self, notice: LinkNotice) -> None:
        self.seen.append(notice)
        self.look()

    def look(self) -> None:
        for true, done in self._waits:
            if not done.done() and true():
                done.set_result(None)

    async def until(self, true: Callable[[], bool]) -> None:
        if true():
            return
        done = asyncio.get_running_loop().create_future()
        self._waits.append((true, done))
        await asyncio.wait_for(done, PATIENCE_S)

    async def until_seen(self, kind: type, count: int = 1) -> None:
        await self.until(lambda: sum(type(one) is kind for one in self.seen) >= count)

    async def until_got(self, *numbers: int) -> None:
        await self.until(lambda: set(numbers) <= set(self.numbers()))

    def numbers(self, kind: type = Delivered) -> list[int]:
        return [one.message.number for one in self.seen if type(one) is kind]

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
        if isinstance(self.links, ZmqLinks):
            self.links._context.destroy(linger=0)


def zmq_of(owner: Owner) -> ZmqLinks:
    assert isinstance(owner.links, ZmqLinks)
    return owner.links


def connect(transport: str, binder: Owner, connector: Owner) -> None:
    if transport == "memory":
        assert isinstance(binder.links, LocalLinks)
        assert isinstance(connector.links, LocalLinks)
        join(binder.links, connector.links)
        return
    endpoint = zmq_of(binder).bind(connector.name, transport, "127.0.0.1")  # type: ignore[arg-type]
    zmq_of(connector).connect(binder.name, endpoint, binder.links.incarnation)


def files(folder: Path) -> list[str]:
    return [one.name for one in folder.iterdir()]


def place(transport: str, run_dir: Path) -> Path:
    return Path("memory") if transport == "memory" else run_dir


def go(main: Awaitable[None], loop: str = "uvloop") -> None:
    async def bounded() -> None:
        try:
            await asyncio.wait_for(main, PATIENCE_S * 2)
        finally:
            while Owner.living:
                Owner.living.pop().crash()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop if loop == "uvloop" else None) as runner:
        runner.run(bounded())


NETWORKS = pytest.mark.parametrize("transport", ["ipc", "tcp", "memory"])
SOCKETS = pytest.mark.parametrize("transport", ["ipc", "tcp"])


# ------------------------------------------------------------- every network


@NETWORKS
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_ten_thousand_messages_each_way_arrive_once_and_in_order(run_dir: Path, transport: str, loop: str) -> None:
    count = 10_000

    async def main() -> None:
        a, b = (Owner(name, place(transport, run_dir)) for name in "ab")
        a.say("b", *range(count // 2))
        connect(transport, a, b)
        b.say("a", *range(count))
        for start in range(count // 2, count, 100):
            a.say("b", *range(start, start + 100))
            await asyncio.sleep(0)
        await a.until(lambda: len(a.numbers()) == count)
        await b.until(lambda: len(b.numbers()) == count)
        assert a.numbers() == b.numbers() == list(range(count))
        await a.links.close()
        await b.links.close()
        assert {type(one) for one in a.seen} == {LinkUp, Delivered}

    go(main(), loop)


@NETWORKS
def test_routes_traces_and_three_owners(run_dir: Path, transport: str) -> None:
    async def main() -> None:
        a, b, c = (Owner(name, place(transport, run_dir)) for name in "abc")
        connect(transport, a, b)
        connect(transport, a, c)
        connect(transport, b, c)
        a.say("b", 1, route=3)
        a.say("c", 2)
        b.say("c", 3)
        c.say("a", 4)
        await a.until_got(4)
        await b.until_got(1)
        await c.until_got(2, 3)
        assert Delivered("a", 3, "t1", Number(1, b"")) in b.seen
        assert {(one["peer"], one["state"]) for one in a.links.status()} == {("b", "up"), ("c", "up")}
        for owner in (a, b, c):
            await owner.links.close()

    go(main())


@NETWORKS
def test_of_latest_values_the_newest_arrives(run_dir: Path, transport: str) -> None:
    async def main() -> None:
        a, b = (Owner(name, place(transport, run_dir)) for name in "ab")
        connect(transport, a, b)
        await a.until_seen(LinkUp)
        a.say("b", *range(1000), latest=True)
        await b.until_got(999)
        assert b.numbers() == sorted(b.numbers())
        assert len(b.numbers()) <= 3
        assert a.links.machine("b").counters.coalesced >= 997
        await a.links.close()
        await b.links.close()

    go(main())


@NETWORKS
def test_another_digest_is_refused_at_both_ends(run_dir: Path, transport: str) -> None:
    async def main() -> None:
        a, b = Owner("a", place(transport, run_dir)), Owner("b", place(transport, run_dir), digest="e")
        connect(transport, a, b)
        a.say("b", 1)
        await a.until_seen(Refused)
        await b.until_seen(Refused)
        assert "topology d here, e at b" in next(one.reason for one in a.seen if type(one) is Refused)
        await a.links.close(0.1)
        await b.links.close(0.1)
        assert {type(one) for one in b.seen} == {Refused}
        assert a.numbers(Undelivered) == [1]

    go(main())


@NETWORKS
def test_closing_waits_for_what_was_sent_and_takes_leave(run_dir: Path, transport: str) -> None:
    async def main() -> None:
        a, b = (Owner(name, place(transport, run_dir)) for name in "ab")
        connect(transport, a, b)
        await a.until_seen(LinkUp)
        a.say("b", *range(5000), weight=50)
        await a.links.close(PATIENCE_S)
        await b.until_seen(LinkDown)
        assert b.numbers() == list(range(5000))
        assert a.numbers(Undelivered) == []
        b.say("a", 1)
        assert b.numbers(Undelivered) == [1]
        await b.links.close()
        b.say("a", 2)
        b.say("nobody", 3)
        assert b.numbers(Undelivered) == [1, 2, 3]

    go(main())


@NETWORKS
def test_an_owner_that_fails_on_one_notice_gets_the_next(run_dir: Path, transport: str) -> None:
    async def main() -> None:
        failures: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        a, b = (Owner(name, place(transport, run_dir)) for name in "ab")
        hear = b.hear

        def fails_on_five(notice: LinkNotice) -> None:
            hear(notice)
            if type(notice) is Delivered and notice.message.number == 5:
                raise RuntimeError("five")

        b.links._on_event = fails_on_five
        connect(transport, a, b)
        a.say("b", *range(10))
        await b.until_got(9)
        assert b.numbers() == list(range(10))
        assert [str(one["exception"]) for one in failures] == ["five"]
        await a.links.close()
        await b.links.close()

    go(main())


# ------------------------------------------------------------- sockets only


def test_a_connector_may_come_first(run_dir: Path) -> None:
    async def main() -> None:
        b = Owner("b", run_dir)
        zmq_of(b).connect("a", f"ipc://{run_dir}/a+b.1", 1)
        b.say("a", 1)
        a = Owner("a", run_dir)
        a.say("b", 2)
        assert zmq_of(a).bind("b", "ipc", "127.0.0.1") == f"ipc://{run_dir}/a+b.1"
        await a.until_got(1)
        await b.until_got(2)
        await a.links.close()
        await b.links.close()

    go(main())


@SOCKETS
def test_a_restarted_connector_gets_nothing_of_its_predecessor(run_dir: Path, transport: str) -> None:
    async def main() -> None:
        a, b = (Owner(name, run_dir) for name in "ab")
        connect(transport, a, b)
        await a.until_seen(LinkUp)
        b.crash()
        a.say("b", *range(100))
        again = Owner("b", run_dir, incarnation=2)
        connect(transport, a, again)
        again.say("a", 7)
        await a.until_got(7)
        a.say("b", 1000)
        await again.until_got(1000)
        assert again.numbers() == [1000]
        assert a.numbers(Undelivered) == list(range(100))
        assert [type(one) for one in a.seen if type(one) in (LinkUp, LinkDown)] == [LinkUp, LinkDown, LinkUp]
        await a.links.close()
        await again.links.close()

    go(main())


@SOCKETS
def test_a_restarted_binder_gets_nothing_of_its_predecessor(run_dir: Path, transport: str) -> None:
    async def main() -> None:
        a, b = (Owner(name, run_dir) for name in "ab")
        connect(transport, a, b)
        await b.until_seen(LinkUp)
        a.crash()
        b.say("a", *range(100))
        b.links.drop("a", "exit code -9", 1)
        assert b.numbers(Undelivered) == list(range(100))
        again = Owner("a", run_dir, incarnation=2)
        connect(transport, again, b)
        b.say("a", 1000)
        await again.until_got(1000)
        assert again.numbers() == [1000]
        b.links.drop("a", "late word of the first", 1)
        again.say("b", 1)
        await b.until_got(1)
        await again.links.close()
        await b.links.close()

    go(main())


@SOCKETS
def test_a_connection_that_breaks_loses_and_doubles_nothing(run_dir: Path, transport: str) -> None:
    async def main() -> None:
        a, b = (Owner(name, run_dir, limits=FAST) for name in "ab")
        connect(transport, a, b)
        await b.until_seen(LinkUp)
        endpoint = zmq_of(a).bind("b", "ipc", "")
        for turn in range(5):
            b.say("a", *range(turn * 20, turn * 20 + 20), weight=10_000)
            a.say("b", *range(turn * 20, turn * 20 + 20), weight=10_000)
            b.links._cut(b.links._links["a"])  # unsent frames go down with the socket
            zmq_of(b).connect("a", endpoint, 1)
            await asyncio.sleep(0)
        await a.until(lambda: len(a.numbers()) == 100)
        await b.until(lambda: len(b.numbers()) == 100)
        assert a.numbers() == b.numbers() == list(range(100))
        assert not [one for one in (*a.seen, *b.seen) if type(one) in (LinkDown, Undelivered)]
        await a.links.close()
        await b.links.close()

    go(main())


@SOCKETS
def test_of_two_processes_with_one_name_the_later_is_served(run_dir: Path, transport: str) -> None:
    async def main() -> None:
        a, b = (Owner(name, run_dir, limits=FAST) for name in "ab")
        connect(transport, a, b)
        await b.until_seen(LinkUp)
        twin = Owner("b", run_dir, incarnation=2, limits=FAST)
        connect(transport, a, twin)
        await twin.until_seen(LinkUp)
        b.say("a", 1)
        twin.say("a", 2)
        await b.until_seen(Refused)
        a.say("b", *range(10, 50))
        await twin.until(lambda: len(twin.numbers()) == 40)
        assert a.numbers() == [2]
        assert twin.numbers() == list(range(10, 50))
        assert b.numbers() == []
        assert b.numbers(Undelivered) == [1]
        for owner in (a, b, twin):
            await owner.links.close(0.2)

    go(main())


def test_sockets_leave_no_file(run_dir: Path) -> None:
    async def main() -> None:
        a, b = (Owner(name, run_dir) for name in "ab")
        connect("ipc", a, b)
        await a.until_seen(LinkUp)
        assert files(run_dir) == ["a+b.1"]
        await a.links.close()
        assert files(run_dir) == []
        await b.links.close()

    go(main())


def test_an_endpoint_that_cannot_be_is_refused(run_dir: Path) -> None:
    async def main() -> None:
        a = Owner("a", run_dir)
        with pytest.raises(EndpointError, match="at most 107"):
            zmq_of(a).bind("b" * 100, "ipc", "")
        with pytest.raises(EndpointError, match=r"cannot listen for b on 203\.0\.113\.7"):
            zmq_of(a).bind("b", "tcp", "203.0.113.7")
        with pytest.raises(EndpointError, match="cannot reach b at nowhere"):
            zmq_of(a).connect("b", "nowhere", 1)
        zmq_of(a).bind("c", "ipc", "")
        twin = Owner("a", run_dir)
        with pytest.raises(EndpointError, match="runs twice"):
            zmq_of(twin).bind("c", "ipc", "")
        await a.links.close()
        await twin.links.close()

    go(main())


def test_every_frame_passes_the_trace(run_dir: Path) -> None:
    async def main() -> None:
        traced: list[tuple[str, bool, bytes]] = []
        a = Owner("a", run_dir, on_frame=lambda *one: traced.append(one))
        b = Owner("b", run_dir)
        connect("ipc", a, b)
        a.say("b", *range(10))
        b.say("a", 1)
        await a.until_got(1)
        await b.until_got(9)
        counters = a.links.machine("b").counters
        assert sum(sent for _, sent, _ in traced) == counters.frames_sent
        assert sum(not sent for _, sent, _ in traced) == counters.frames_received
        await a.links.close()
        await b.links.close()

    go(main())


# ------------------------------------------------------------- a real process


async def child(run_dir: Path, endpoint: str, incarnation: int = 1) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.live.link_child", str(run_dir), endpoint, str(incarnation), cwd=ROOT
    )


@SOCKETS
def test_what_a_killed_process_did_not_acknowledge_comes_back(run_dir: Path, transport: str) -> None:
    async def main() -> None:
        parent = Owner("parent", run_dir, limits=FAST)
        endpoint = zmq_of(parent).bind("child", transport, "127.0.0.1")  # type: ignore[arg-type]
        process = await child(run_dir, endpoint)
        parent.say("child", *range(20))
        await parent.until(lambda: len(parent.numbers()) == 20)
        os.kill(process.pid, signal.SIGKILL)
        parent.say("child", *range(100, 130))
        assert await process.wait() == -signal.SIGKILL
        parent.links.drop("child", "killed by signal 9", 1)

        back = [one for one in parent.seen if type(one) is Undelivered]
        assert set(range(100, 130)) >= {one.message.number for one in back if not one.may_have_run}
        assert [one.message.number for one in back][-30:] == list(range(100, 130))
        assert parent.numbers() == list(range(20))

        second = await child(run_dir, endpoint, incarnation=2)
        await parent.until_seen(LinkUp, 2)
        parent.say("child", 500)
        await parent.until_got(500)
        assert parent.numbers() == [*range(20), 500]
        await parent.links.close(PATIENCE_S)
        second.kill()
        await second.wait()

    go(main())


@SOCKETS
def test_a_stopped_process_is_silent_holds_little_and_goes_on(run_dir: Path, transport: str) -> None:
    async def main() -> None:
        parent = Owner("parent", run_dir, limits=FAST)
        endpoint = zmq_of(parent).bind("child", transport, "127.0.0.1")  # type: ignore[arg-type]
        process = await child(run_dir, endpoint)
        parent.say("child", 0)
        await parent.until_got(0)
        os.kill(process.pid, signal.SIGSTOP)
        await parent.until_seen(Silent)
        parent.say("child", *range(1, 1001))
        machine = parent.links.machine("child")
        kept = machine.backlog + machine.unacknowledged
        assert kept <= FAST.window_messages + FAST.outbox_messages
        assert parent.numbers(Undelivered) == list(range(kept + 1, 1001))
        os.kill(process.pid, signal.SIGCONT)
        await parent.until_seen(Heard)
        await parent.until_got(kept)
        assert parent.numbers() == list(range(kept + 1))
        process.kill()
        await process.wait()
        await parent.links.close(0.2)

    go(main())


def test_defaults_are_those_of_the_reference() -> None:
    limits = LinkLimits()
    assert (limits.window_messages, limits.window_bytes, limits.outbox_messages) == (4096, 64 << 20, 65_536)
    assert (limits.heartbeat_s, limits.lease_s) == (0.5, 3.0)
