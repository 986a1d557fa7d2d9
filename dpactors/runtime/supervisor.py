"""Performs the supervisor's decisions: processes, sockets, signals, the run directory and the control socket."""

import asyncio
import os
import secrets
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import structlog
from attrs import frozen

from dpactors.actor.address import Address, Setup
from dpactors.actor.effects import ChildExited, Phase, Received, Stop
from dpactors.actor.errors import ActorFailed
from dpactors.net import notices
from dpactors.net.zeromq import ZmqLinks
from dpactors.runtime.boot import CATALOGUE, Boot
from dpactors.runtime.children import ChildSpec
from dpactors.runtime.control import SUPERVISOR, FaultRequest, StopRequest
from dpactors.runtime.host import ActorHost, HostHooks
from dpactors.runtime.logs import last_words
from dpactors.runtime.machine import FrontDoors
from dpactors.runtime.neighbours import Neighbours
from dpactors.runtime.orders import ControlServer
from dpactors.runtime.rows import View, rows_of
from dpactors.runtime.rundir import RunDir, State
from dpactors.runtime.spawner import Spawner
from dpactors.runtime.supervising import Supervising, SupervisingSettings, process_address
from dpactors.serving.settings import EngineSettings
from dpactors.topology.document import Document
from dpactors.topology.plan import ActorPlan, LinkPlan, Plan, ProcessPlan, Route

ME = Address("supervisor", 0)
LINGER_S = 0.2
INTERRUPTED = 130
ADDRESS_WORDS = {"kill": "KILL", "stop": "STOP", "cont": "CONT"}
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@frozen
class Deployment:
    """What a supervisor brings up: a checked document, its plan, and which hosts are here."""

    document: Document
    plan: Plan
    hosts: tuple[str, ...]
    trace: bool = True
    log_level: str = "info"
    catalogue: str = CATALOGUE
    folder: str = ""
    """Of the topology file; modules of its own actors may lie there."""
    keys: Path | None = None
    """Folder of the CURVE keys of links between hosts."""

    @property
    def processes(self) -> tuple[ProcessPlan, ...]:
        """The processes of this machine's hosts, in start order."""
        return tuple(one for one in self.plan.processes if one.host in self.hosts)

    @property
    def other_hosts(self) -> tuple[str, ...]:
        """Hosts with processes that another supervisor brings up."""
        used = dict.fromkeys(one.host for one in self.plan.processes)
        return tuple(host for host in used if host not in self.hosts)


class Supervisor:
    """One machine's part of a deployment, from its lock to its last exit."""

    def __init__(self, deployment: Deployment, run_dir: RunDir, doors: FrontDoors) -> None:
        """Made inside a running loop."""
        self._deployment = deployment
        self._run_dir = run_dir
        self._doors = doors
        self._incarnation = time.time_ns()
        self._ended: asyncio.Future[Stop] = asyncio.get_running_loop().create_future()
        self.ready = asyncio.Event()
        digest = deployment.plan.digest
        children = len(deployment.processes)
        self._links = ZmqLinks(
            SUPERVISOR, self._incarnation, digest, run_dir.links_dir, self._notice, links_max=children
        )
        self._neighbours = Neighbours(
            deployment.plan,
            deployment.hosts,
            deployment.other_hosts,
            self._incarnation,
            run_dir.links_dir,
            self._notice,
            deployment.keys,
        )
        self._spawner = Spawner(self._exited)
        process, plan = self._own_plan()
        hooks = HostHooks(self._phase, self._stop, self._failed)
        self._host = ActorHost(plan, process, self, {}, hooks, children=self, incarnation=self._incarnation)
        self._actor: Supervising = self._host.actors[ME]  # type: ignore[assignment] - the one actor of that plan
        self._control = ControlServer(self)

    async def run(self) -> Stop:
        """Bring everything up, keep it up, and return why it ended, with everything of it gone."""
        loop = asyncio.get_running_loop()
        for number, code in ((signal.SIGINT, INTERRUPTED), (signal.SIGTERM, 0), (signal.SIGHUP, 0)):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores the end of its terminal
                loop.add_signal_handler(number, self.ask_to_stop, 0.0, code, signal.Signals(number).name)
        await self._control.open(self._run_dir.control)
        self._run_dir.write_state(
            State(
                self._deployment.plan.name,
                os.getpid(),
                self._deployment.hosts,
                self._doors.urls,
                str(self._run_dir.links_dir),
                str(self._run_dir.control),
            )
        )
        self._neighbours.open()
        self._host.start()
        try:
            return await self._ended
        finally:
            await self._close()

    async def _close(self) -> None:
        self._doors.close()
        self._spawner.close()
        await self._host.close()
        await self._neighbours.close()
        await self._links.close(LINGER_S)
        await self._control.close()
        self._run_dir.release()

    # ------------------------------------------------------------- what the operator asks

    def view(self) -> View:
        """The deployment as it is now."""
        rows = rows_of(self._actor, self._spawner.pid, time.monotonic())
        name, path = self._deployment.plan.name, self._run_dir.path
        return View(name, path, self._doors.urls, tuple(rows), self._actor.ready)

    def ask_to_stop(self, drain_s: float, code: int, cause: str) -> None:
        """Stop in order; asked again, at once."""
        self._host.tell(ME, Received("commands", ME, StopRequest(drain_s, code, cause)))

    def take_down(self, drain_s: float) -> None:
        """Stop in order; a stop that runs already is hurried only by who grants less time."""
        stopping = self._actor.stopping
        if stopping is None or drain_s < stopping.drain_s:
            self.ask_to_stop(drain_s, 0, "dpactors down")

    def inject(self, word: str, addresses: Iterable[str]) -> dict[str, list[str]]:
        """Send a signal to the processes of some addresses; returns each process with all actors that share its fate.

        Raises ValueError for an unknown address, and then signals nobody.
        """
        found: dict[str, list[str]] = {}
        for address in addresses:
            process = self._process_of(address)
            found[process.name] = [str(one.setup.address) for one in process.actors]
        request = FaultRequest(ADDRESS_WORDS[word], tuple(found))  # type: ignore[arg-type] - the three words
        self._host.tell(ME, Received("commands", ME, request))
        return found

    def _process_of(self, address: str) -> ProcessPlan:
        known = [str(one.setup.address) for process in self._deployment.processes for one in process.actors]
        for process in self._deployment.processes:
            if address == process.name or address in [str(one.setup.address) for one in process.actors]:
                return process
        raise ValueError(f"no actor {address} here. Actors: {', '.join(known)}")

    # ------------------------------------------------------------- what the actor orders

    def send(self, peer: str, route: int, trace: str, message: Any, latest: bool = False) -> None:
        """Hand a message to a child or to another host's supervisor."""
        links = self._links if peer in self._actor.children else self._neighbours
        links.send(peer, route, trace, message, latest=latest)

    def hold(self) -> None:
        """Keep what goes to children until ``release``."""
        self._links.hold()

    def release(self) -> None:
        """Let it go."""
        self._links.release()

    def spawn(self, child: str, incarnation: int) -> None:
        """Start a child process with all that it must know."""
        process = next(one for one in self._deployment.processes if one.name == child)
        endpoint = self._links.bind(child, "ipc", "")
        boot = Boot(
            document=self._deployment.document.to_dict(),
            process=child,
            incarnation=incarnation,
            run_dir=str(self._run_dir.path),
            links_dir=str(self._run_dir.links_dir),
            supervisor_endpoint=endpoint,
            supervisor_incarnation=self._incarnation,
            supervisor_pid=os.getpid(),
            listen=self._doors.of(child),
            trace=self._deployment.trace,
            log_level=self._deployment.log_level,
            catalogue=self._deployment.catalogue,
            folder=self._deployment.folder,
            keys=str(self._deployment.keys or ""),
        )
        log = self._run_dir.open_log(child)
        self._spawner.start(boot, log, _environment(process), tuple(boot.listen.values()))

    def signal(self, child: str, name: str) -> None:
        """Signal a child process."""
        self._spawner.signal(child, name)

    def _exited(self, child: str, incarnation: int, code: int) -> None:
        known = self._actor.children[child]
        if not known.last_words and code:
            known.last_words = last_words(self._run_dir.log(child))
        self._run_dir.forget_sockets(child, incarnation)
        self._links.drop(child, f"{child} ended")
        self._host.tell(ME, ChildExited(child, incarnation, code))

    # ------------------------------------------------------------- what happens

    def _notice(self, notice: notices.LinkNotice) -> None:
        match notice:
            case notices.Delivered(peer, route, trace, message):
                self._host.delivered(peer, route, trace, message)
            case notices.LinkUp(peer, incarnation):
                self._host.peer_up(peer, incarnation)
            case notices.Heard(peer) if self._neighbours.knows(peer):
                self._host.peer_up(peer, 0)
            case notices.LinkDown(peer, _, reason):
                self._host.peer_down(peer, reason)
            case notices.Silent(peer, silent_s) if self._neighbours.knows(peer):
                self._host.peer_down(peer, f"silent for {silent_s:.1f} s")
            case notices.Undelivered(peer, route, trace, message, may_have_run, _):
                self._host.undelivered(peer, route, trace, message, may_have_run=may_have_run)
            case notices.Refused(peer, reason) | notices.BadFrame(peer, reason):
                structlog.get_logger().warning("link.refused", peer=peer, reason=reason)
            case _:
                pass

    def _phase(self, address: Address, phase: Phase) -> None:
        if phase.state == "ready":
            self.ready.set()

    def _stop(self, stop: Stop) -> None:
        if not self._ended.done():
            self._ended.set_result(stop)

    def _failed(self, failed: ActorFailed) -> None:
        self._stop(Stop(1, str(failed)))

    def _own_plan(self) -> tuple[ProcessPlan, Plan]:
        """The supervisor as the one actor of a plan of its own, linked to its children and to its like."""
        links = [self._link_to(one.name) for one in self._deployment.processes] + self._neighbours.links(ME)
        children = tuple(self._spec(one) for one in self._deployment.processes)
        settings = SupervisingSettings(
            self._deployment.plan.name,
            children,
            self._deployment.other_hosts,
            first_incarnation=self._incarnation + secrets.randbelow(1000) + 1,
        )
        orders = tuple(process_address(one.name) for one in children)
        setup = Setup(ME, settings, {"orders": orders, "tellings": self._neighbours.addresses})
        actor = ActorPlan(Supervising, setup)
        process = ProcessPlan(SUPERVISOR, SUPERVISOR, self._deployment.hosts[0], (actor,), (), 0.0)
        plan = self._deployment.plan
        own = Plan(plan.name, plan.digest, plan.hosts, (process,), tuple(links), (), plan.rendezvous_port, plan.keys)
        return process, own

    def _link_to(self, child: str) -> LinkPlan:
        """Routes in the order of control.ORDERS, REPORTS, STATUS."""
        address = process_address(child)
        routes = (
            Route(ME, "orders", address, "orders", "reliable"),
            Route(address, "reports", ME, "reports", "reliable"),
            Route(address, "status", ME, "reports", "latest"),
        )
        return LinkPlan(SUPERVISOR, child, "ipc", routes)

    def _spec(self, process: ProcessPlan) -> ChildSpec:
        peers = [
            link.connector if link.binder == process.name else link.binder
            for link in self._deployment.plan.links
            if process.name in (link.binder, link.connector)
        ]
        actors = tuple(str(one.setup.address) for one in process.actors)
        return ChildSpec(process.name, process.role, process.host, actors, process.start_limit_s, tuple(peers))


def _environment(process: ProcessPlan) -> dict[str, str]:
    """A child's environment: numeric libraries read their thread counts before any code of ours runs."""
    env = {**os.environ, **process.env}
    for one in process.actors:
        if isinstance(one.setup.settings, EngineSettings):
            env.update(dict.fromkeys(THREAD_VARIABLES, str(one.setup.settings.threads)))
    return env
