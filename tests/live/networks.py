"""The networks that links run over, as one interface, so that every network is held to the same cases."""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop

from dpactors.net.curve import make_keys
from dpactors.net.driver import Links, OnEvent
from dpactors.net.memory import LocalLinks, join
from dpactors.net.zeromq import Transport, ZmqLinks
from dpactors.simulation.lines import Air, LineWeather, SimulatedLinks
from dpactors.simulation.loop import StoppableLoop, VirtualLoop
from tests.live.link_messages import FAST, HANG, Number, one_host
from tests.live.owner import Far, Owner

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0
"""Only a hang meets it."""
VIRTUAL_PATIENCE_S = 3600.0
STORM = LineWeather(lose=0.1, double=0.1)


class Network:
    """Owners, what joins them, and far ends that can be stopped and killed."""

    loops: tuple[Callable[[], asyncio.AbstractEventLoop]] = (asyncio.new_event_loop,)
    patience_s = PATIENCE_S

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.seed = seed
        self._owners: list[Owner] = []
        self._fars: list[Far] = []

    def run(self, main: Callable[["Network"], Awaitable[None]]) -> None:
        """Run one case and leave nothing behind."""

        async def bounded() -> None:
            self.open()
            try:
                await asyncio.wait_for(main(self), self.patience_s * 2)
            finally:
                for far in self._fars:
                    await far.kill()
                for owner in self._owners:
                    owner.crash()

        with asyncio.Runner(loop_factory=self.loops[0]) as runner:
            runner.run(bounded())

    def owner(self, name: str, incarnation: int = 1, digest: str = "d", **options: Any) -> Owner:
        """A process of this network."""
        options.setdefault("limits", FAST)
        made = Owner(lambda hear: self.links(name, incarnation, digest, hear, **options), self.patience_s)
        self._owners.append(made)
        return made

    def joined(self, *names: str, **options: Any) -> list[Owner]:
        """Processes that are all linked with each other."""
        made = [self.owner(name, **options) for name in names]
        for number, binder in enumerate(made):
            for connector in made[number + 1 :]:
                self.join(binder, connector)
        return made

    async def far(self, near: Owner, incarnation: int = 1) -> Far:
        """A linked far end."""
        made = await self.make_far(near, incarnation)
        self._fars.append(made)
        return made

    def open(self) -> None:
        """The loop runs."""

    def calm(self) -> None:
        """From now on frames arrive, for cases in which a lost one is reported in another way."""

    def links(self, name: str, incarnation: int, digest: str, hear: OnEvent, **options: Any) -> Links:
        """Made as its kind is."""
        raise NotImplementedError

    def join(self, binder: Owner, connector: Owner) -> None:
        """Bring two owners together; said again, or of a restarted one, together again."""
        raise NotImplementedError

    def disturb(self, binder: Owner, connector: Owner) -> None:
        """Their connection breaks with all that is under way in it, and comes back."""
        raise NotImplementedError

    async def make_far(self, near: Owner, incarnation: int) -> Far:
        """Made as its kind is."""
        raise NotImplementedError


# ------------------------------------------------------------- ZeroMQ


class ZmqNetwork(Network):
    transport: Transport

    def links(self, name: str, incarnation: int, digest: str, hear: OnEvent, **options: Any) -> ZmqLinks:
        return ZmqLinks(name, incarnation, digest, self.folder, hear, **options)

    def join(self, binder: Owner, connector: Owner) -> None:
        endpoint = zmq_of(binder).bind(connector.name, self.transport, "127.0.0.1")
        zmq_of(connector).connect(binder.name, endpoint, binder.links.incarnation)

    def disturb(self, binder: Owner, connector: Owner) -> None:
        connector.links._cut(connector.links._links[binder.name])
        self.join(binder, connector)

    async def make_far(self, near: Owner, incarnation: int) -> Far:
        endpoint = zmq_of(near).bind("far", self.transport, "127.0.0.1")
        journal = self.folder / f"journal.{incarnation}"
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.live.link_child"),
            *(str(self.folder), endpoint, str(incarnation), str(near.links.incarnation), str(journal)),
            *self.more_for_far(),
            cwd=ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        return _FarProcess(near, process, journal)

    def more_for_far(self) -> tuple[str, ...]:
        """More arguments of its process."""
        return ()


class Ipc(ZmqNetwork):
    transport = "ipc"
    loops = (uvloop.new_event_loop,)


class Tcp(ZmqNetwork):
    transport = "tcp"


class Keyed(Tcp):
    """Tcp with CURVE keys; all processes are on one host of the plan."""

    def open(self) -> None:
        make_keys(self.folder / "keys", ["node0"])

    def links(self, name: str, incarnation: int, digest: str, hear: OnEvent, **options: Any) -> ZmqLinks:
        return super().links(name, incarnation, digest, hear, security=one_host(self.folder / "keys"), **options)

    def more_for_far(self) -> tuple[str, ...]:
        return (str(self.folder / "keys"),)


class _FarProcess:
    def __init__(self, near: Owner, process: asyncio.subprocess.Process, journal: Path) -> None:
        self._near = near
        self._process = process
        self._journal = journal

    def stop(self) -> None:
        os.kill(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    async def hang(self) -> None:
        assert self._process.stdout is not None
        self._near.say("far", HANG)
        assert await asyncio.wait_for(self._process.stdout.readline(), PATIENCE_S) == b"hangs\n"

    def wake(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"wake\n")

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    def got(self) -> list[int]:
        return [int(line) for line in self._journal.read_text().split()]


def zmq_of(owner: Owner) -> ZmqLinks:
    assert isinstance(owner.links, ZmqLinks)
    return owner.links


# ------------------------------------------------------------- in one process


class _FarOwner:
    def __init__(self, owner: Owner, loop: StoppableLoop) -> None:
        self._owner = owner
        self._loop = loop

    def stop(self) -> None:
        self._loop.stop()

    def go_on(self) -> None:
        self._loop.go_on()

    async def hang(self) -> None:
        self._loop.stop()

    def wake(self) -> None:
        self._loop.go_on()

    async def kill(self) -> None:
        self._owner.crash()

    def got(self) -> list[int]:
        return self._owner.numbers()


class Memory(Network):
    def links(self, name: str, incarnation: int, digest: str, hear: OnEvent, **options: Any) -> LocalLinks:
        made = LocalLinks(name, incarnation, digest, hear, **options)
        made._loop = cast("asyncio.AbstractEventLoop", StoppableLoop(made._loop))
        return made

    def join(self, binder: Owner, connector: Owner) -> None:
        join(cast("LocalLinks", binder.links), cast("LocalLinks", connector.links))

    def disturb(self, binder: Owner, connector: Owner) -> None:
        connector.links._cut(connector.links._links[binder.name])
        binder.links._cut(binder.links._links[connector.name])
        self.join(binder, connector)

    async def make_far(self, near: Owner, incarnation: int) -> Far:
        owner = self.owner("far", incarnation)
        owner.echo_to = near.name
        self.join(near, owner)
        return _FarOwner(owner, cast("StoppableLoop", owner.links._loop))


class Simulated(Network):
    """Virtual time, and air that loses, doubles and reorders one frame in ten."""

    loops = (VirtualLoop,)
    patience_s = VIRTUAL_PATIENCE_S

    def open(self) -> None:
        self.air = Air(self.seed, STORM)

    def calm(self) -> None:
        self.air.weather = LineWeather()

    def links(self, name: str, incarnation: int, digest: str, hear: OnEvent, **options: Any) -> SimulatedLinks:
        return SimulatedLinks(self.air, name, incarnation, digest, hear, **options)

    def join(self, binder: Owner, connector: Owner) -> None:
        cast("SimulatedLinks", binder.links).reach(connector.name)
        cast("SimulatedLinks", connector.links).reach(binder.name, binder.links.incarnation)

    def disturb(self, binder: Owner, connector: Owner) -> None:
        self.air.clear()

    async def make_far(self, near: Owner, incarnation: int) -> Far:
        owner = self.owner("far", incarnation)
        owner.echo_to = near.name
        self.join(near, owner)
        return _FarOwner(owner, cast("SimulatedLinks", owner.links).loop)


# ------------------------------------------------------------- for tests

NETWORKS: dict[str, type[Network]] = {"ipc": Ipc, "tcp": Tcp, "keyed": Keyed, "memory": Memory, "simulated": Simulated}
EVERY = [
    *(pytest.param(kind, marks=pytest.mark.soak) if kind == "keyed" else kind for kind in NETWORKS),
    *(pytest.param(f"simulated-{seed}", marks=pytest.mark.soak) for seed in range(1, 40)),
]
"""The seeds take minutes, and what is particular to keys has tests of its own."""
Case = Callable[[Network], Awaitable[None]]


def over(*kinds: str) -> Callable[[Case], Callable[[str], None]]:
    """Make a case a test over each of these networks, of all where none is named."""

    def make(case: Case) -> Callable[[str], None]:
        @pytest.mark.parametrize("kind", kinds or EVERY)
        def test(kind: str) -> None:
            folder = Path(tempfile.mkdtemp(prefix="dpa-"))  # pytest's own would exceed a socket's path
            try:
                name, _, seed = kind.partition("-")
                NETWORKS[name](folder, int(seed or 0)).run(case)
            finally:
                shutil.rmtree(folder)

        test.__name__, test.__doc__, test.__module__ = case.__name__, case.__doc__, case.__module__
        return test

    return make


everywhere = over()
__all__ = ["FAST", "HANG", "NETWORKS", "Network", "Number", "Owner", "Simulated", "everywhere", "over", "zmq_of"]
