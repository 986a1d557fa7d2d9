"""The supervisor's decisions: start order, restarts, directories, limits, ordered stop. Pure: an actor like any other.

Stages are roles in the file's order. A stage opens as soon as every process of the stages before it has bound its
endpoints, so slow loading runs side by side; stopping goes through the stages backwards, each ended before the next.
"""

from attrs import Factory, evolve, frozen

from dpactors.actor.actor import Actor, Effects
from dpactors.actor.address import Address, Setup
from dpactors.actor.effects import CancelTimer, Effect, Phase, SetTimer, Signal, Spawn, Stop, Undelivered, note
from dpactors.actor.port import inlet, outlet
from dpactors.actor.supervision import BudgetSettings
from dpactors.runtime.children import Child, ChildSpec, ending, make_child
from dpactors.runtime.control import (
    Announce,
    Directory,
    Entry,
    Failed,
    FaultRequest,
    PhaseReport,
    StatusReport,
    StopOrder,
    StopRequest,
)

REFUSED = 2
"""Exit code of a process that refused its input: starting it again would change nothing."""

ROSTER_S = 1.0
"""Between two tellings of all processes to the other hosts' supervisors, so that a lost one is made good."""


@frozen
class SupervisingSettings:
    """All that the supervisor decides by."""

    name: str
    children: tuple[ChildSpec, ...]
    """In start order."""
    other_hosts: tuple[str, ...] = ()
    """Hosts of the topology that other supervisors bring up."""
    first_incarnation: int = 1
    """Larger than any that an earlier supervisor of this deployment gave."""
    budget: BudgetSettings = Factory(BudgetSettings)
    close_limit_s: float = 5.0
    """Beyond the drain, before a stopping process gets SIGTERM."""
    term_limit_s: float = 2.0
    """Between SIGTERM and SIGKILL."""
    silence_s: float = 2.0
    """4 missed heartbeats of 0.5 s: the process is suspect."""


class Supervising(Actor):
    """Keeps the processes of this machine's hosts up, tells them of each other, and ends them in order."""

    Settings = SupervisingSettings

    reports = inlet(Announce, PhaseReport, StatusReport, Failed)
    commands = inlet(StopRequest, FaultRequest)
    rosters = inlet(Directory)
    orders = outlet(Directory, StopOrder)
    tellings = outlet(Directory, fan="each")

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.settings: SupervisingSettings = setup.settings
        specs = self.settings.children
        self.children = {spec.name: make_child(spec, self.settings.budget) for spec in specs}
        roles = dict.fromkeys(spec.role for spec in specs)
        self.stages = [[child for child in self.children.values() if child.spec.role == role] for role in roles]
        self.elsewhere: dict[str, Entry] = {}
        """Processes of other supervisors."""
        self.stopping: StopRequest | None = None
        self.killing = False
        self.was_ready = False
        self._incarnation = self.settings.first_incarnation
        self._version = 0

    # ------------------------------------------------------------- what ps and the start table ask

    def state_of(self, child: Child, now_s: float) -> str:
        """The state word of ``ps`` for a process."""
        if child.life in {"backoff", "gone"}:
            return "stopped" if self.stopping else "down"
        if self.stopping and child.alive:
            return "draining"
        if child.life == "up" and now_s - child.heard_s > self.settings.silence_s:
            return "suspect"
        return "ready" if child.ready else "starting"

    @property
    def ready(self) -> bool:
        """Whether every process of this supervisor is ready."""
        return all(child.ready for child in self.children.values())

    # ------------------------------------------------------------- starting

    def on_start(self, now_s: float) -> Effects:
        yield Phase("starting", f"starting {len(self.children)} processes")
        for child in self.children.values():
            child.since_s = now_s
        if self.settings.other_hosts:
            yield SetTimer("roster", ROSTER_S)
        yield from self._open_stages(now_s)

    def _open_stages(self, now_s: float) -> Effects:
        for stage in self.stages:
            for child in stage:
                if child.life == "waiting":
                    yield from self._spawn(child, now_s)
            if not all(child.introduced for child in stage):
                return

    def _spawn(self, child: Child, now_s: float) -> Effects:
        child.begin(self._incarnation, now_s)
        self._incarnation += 1
        name = child.spec.name
        yield note("process.spawn", child=name, incarnation=child.incarnation, restarts=child.restarts)
        yield SetTimer(f"limit {name}", child.spec.start_limit_s)
        yield Spawn(name, child.incarnation)

    def on_reports(
        self, message: Announce | PhaseReport | StatusReport | Failed, sender: Address, now_s: float
    ) -> Effects:
        child = self.children.get(message.process)
        if child is None or child.incarnation != message.incarnation:
            return
        if isinstance(message, Failed):
            child.last_words = message.reason
            return
        if not child.alive:
            return
        child.heard_s = now_s
        match message:
            case StatusReport():
                child.facts = message.facts
            case Announce():
                yield from self._announced(child, message, now_s)
            case PhaseReport():
                phase = Phase(message.state, message.doing, message.waits_for, message.progress)
                child.phases[message.actor] = phase
                yield from self._maybe_ready(child, now_s)

    def _announced(self, child: Child, message: Announce, now_s: float) -> Effects:
        child.endpoints = message.endpoints
        if not child.announced:
            child.announced = child.introduced = True
            if child.life == "starting":
                child.life = "up"
            yield note("process.announced", child=child.spec.name, endpoints=len(message.endpoints))
        yield self._directory(child)
        yield from self._tell_of(child.spec.name)
        if self.stopping is None:
            yield from self._open_stages(now_s)
        yield from self._maybe_ready(child, now_s)

    def _maybe_ready(self, child: Child, now_s: float) -> Effects:
        if child.was_ready or not child.ready:
            return
        child.was_ready, child.since_s = True, now_s
        yield CancelTimer(f"limit {child.spec.name}")
        yield note("process.ready", child=child.spec.name, incarnation=child.incarnation)
        if self.ready and not self.was_ready:
            self.was_ready = True
            yield note("deployment.ready", name=self.settings.name)
            yield Phase("ready")

    # ------------------------------------------------------------- directories

    def _directory(self, child: Child) -> Effect:
        """What `child` must know: its peers, and where they wait for it."""
        me = child.spec.name
        entries = [self.children[peer].entry(me) for peer in child.spec.peers if peer in self.children]
        for peer in child.spec.peers:
            entry = self.elsewhere.get(peer)
            if entry is not None:
                mine = tuple(one for one in entry.endpoints if one.peer == me)
                entries.append(Entry(entry.process, entry.incarnation, entry.host, entry.state, mine))
        self._version += 1
        return self.orders.to(process_address(me), Directory(self._version, tuple(entries)))

    def _tell_of(self, process: str) -> Effects:
        """Everyone who shares a link with `process` hears of its news; so do the other supervisors."""
        for child in self.children.values():
            if process in child.spec.peers and child.announced and child.alive:
                yield self._directory(child)
        if process in self.children and self.settings.other_hosts:
            yield self.tellings.each(self._roster())

    def _roster(self) -> Directory:
        self._version += 1
        return Directory(self._version, tuple(child.entry() for child in self.children.values()))

    def on_rosters(self, message: Directory, sender: Address, now_s: float) -> Effects:
        news = [entry for entry in message.entries if self.elsewhere.get(entry.process) != entry]
        for entry in news:
            if entry.process not in self.children:
                self.elsewhere[entry.process] = entry
        touched = {entry.process for entry in news}
        for child in self.children.values():
            if child.announced and child.alive and touched.intersection(child.spec.peers):
                yield self._directory(child)

    def on_peer_joined(self, peer: Address, incarnation: int, now_s: float) -> Effects:
        if peer in self.setup.peers.get("tellings", ()):
            yield note("host.joined", host=peer.role)
            yield self.tellings.to(peer, self._roster())

    def on_peer_lost(self, peer: Address, reason: str, now_s: float) -> Effects:
        """A host that says nothing is gone with all its processes; its next roster brings them back."""
        if peer not in self.setup.peers.get("tellings", ()):
            return
        yield note("host.lost", "warning", host=peer.role, reason=reason)
        gone = {e.process: evolve(e, state="down") for e in self.elsewhere.values() if e.host == peer.role}
        self.elsewhere.update(gone)
        for child in self.children.values():
            if child.announced and child.alive and gone.keys() & set(child.spec.peers):
                yield self._directory(child)

    def on_undelivered(self, lost: Undelivered, now_s: float) -> Effects:
        # Whoever did not get a directory or an order has ended or comes back with an Announce.
        return ()

    # ------------------------------------------------------------- faults

    def on_child_exited(self, child: str, incarnation: int, code: int, now_s: float) -> Effects:
        one = self.children[child]
        if incarnation != one.incarnation or not one.alive:
            return
        one.life, one.since_s, one.endpoints, one.facts = "gone", now_s, (), ""
        one.announced = False
        level = "info" if self.stopping else "warning"
        yield CancelTimer(f"limit {child}")
        yield note("process.exited", level, child=child, incarnation=incarnation, how=ending(code), said=one.last_words)
        yield from self._tell_of(child)
        if self.stopping is not None:
            yield from self._stop_next()
            return
        yield from self._restart(one, code, now_s)

    def _restart(self, child: Child, code: int, now_s: float) -> Effects:
        said = f": {child.last_words}" if child.last_words else ""
        if code == REFUSED:
            yield from self._give_up(f"{child.spec.name} refused its input ({ending(code)}){said}")
            return
        wait_s = child.budget.spend(now_s)
        if wait_s is None:
            limits = self.settings.budget
            yield from self._give_up(
                f"{child.spec.name} ended with {ending(code)}, after {limits.restarts_max} restarts "
                f"within {limits.period_s:g} s{said}"
            )
            return
        child.life = "backoff"
        child.restarts += 1
        yield SetTimer(f"respawn {child.spec.name}", wait_s)

    def _hung(self, child: Child) -> Effects:
        """A process is not ready at its start limit."""
        limit = f"limit {child.spec.name}"
        if self._strangers():  # nobody can be ready before the other machines are there: their time is not ours
            yield SetTimer(limit, child.spec.start_limit_s)
            return
        cause = f"{child.spec.name} was not ready after {child.spec.start_limit_s:g} s: {child.hang()}"
        others = [one for one in self.children.values() if not one.ready and one is not child]
        if others:
            cause += ". Not ready either: " + "; ".join(one.hang() for one in others)
        if not self.was_ready:
            yield from self._give_up(cause)
            return
        child.last_words = cause
        yield note("process.hung", "error", child=child.spec.name, cause=cause)
        yield Signal(child.spec.name, "KILL")

    def _strangers(self) -> bool:
        """Whether a host of the topology was not heard of yet."""
        known = {entry.host for entry in self.elsewhere.values()}
        return bool(set(self.settings.other_hosts) - known)

    def _give_up(self, cause: str) -> Effects:
        yield note("deployment.failed", "error", cause=cause)
        yield from self._begin_stop(StopRequest(0.0, 1, cause))

    # ------------------------------------------------------------- commands

    def on_commands(self, message: StopRequest | FaultRequest, sender: Address, now_s: float) -> Effects:
        if isinstance(message, FaultRequest):
            for name in message.processes:
                if self.children[name].alive:
                    yield note("fault.signal", "warning", child=name, signal=message.signal)
                    yield Signal(name, message.signal)
        elif self.stopping is None:
            yield note("deployment.stopping", cause=message.cause, drain_s=message.drain_s)
            yield from self._begin_stop(message)
        elif not self.killing:
            self.killing = True
            yield note("deployment.killing", "warning", cause=message.cause)
            for child in self.children.values():
                if child.alive:
                    yield Signal(child.spec.name, "KILL")

    # ------------------------------------------------------------- stopping

    def _begin_stop(self, request: StopRequest) -> Effects:
        self.stopping = request
        yield Phase("draining", request.cause)
        for child in self.children.values():
            yield CancelTimer(f"limit {child.spec.name}")
            yield CancelTimer(f"respawn {child.spec.name}")
            if not child.alive:
                child.life = "gone"
        yield from self._stop_next()

    def _stop_next(self) -> Effects:
        """Order the last stage that still lives to end; with none left, this process ends."""
        assert self.stopping is not None, "nobody asked to stop"
        for number in reversed(range(len(self.stages))):
            alive = [child for child in self.stages[number] if child.alive]
            fresh = [child for child in alive if child.life != "stopping"]
            for child in fresh:
                if child.life == "up":
                    yield self.orders.to(process_address(child.spec.name), StopOrder(self.stopping.drain_s))
                else:
                    yield Signal(child.spec.name, "TERM")
                child.life = "stopping"
            if fresh:
                yield SetTimer(f"term {number}", self.stopping.drain_s + self.settings.close_limit_s)
            if alive:
                return
        yield Stop(self.stopping.code, self.stopping.cause)

    def on_timer(self, timer: str, now_s: float) -> Effects:
        word, _, name = timer.partition(" ")
        match word:
            case "limit":
                child = self.children[name]
                if self.stopping is None and child.alive and not child.was_ready:
                    yield from self._hung(child)
            case "respawn":
                if self.stopping is None and self.children[name].life == "backoff":
                    yield from self._spawn(self.children[name], now_s)
            case "roster":
                yield SetTimer("roster", ROSTER_S)
                yield self.tellings.each(self._roster())
            case "term" | "kill":
                late = [child for child in self.stages[int(name)] if child.alive]
                for child in late:
                    yield note(f"process.{word}", "warning", child=child.spec.name)
                    yield Signal(child.spec.name, "TERM" if word == "term" else "KILL")
                if late and word == "term":
                    yield SetTimer(f"kill {name}", self.settings.term_limit_s)
            case _:
                raise AssertionError(f"no timer is called {timer}")

    def check(self) -> None:
        """A stage is opened only after those before it; while stopping nothing is waiting to start."""
        for earlier, later in zip(self.stages, self.stages[1:], strict=False):
            if any(child.life != "waiting" for child in later) and self.stopping is None:
                assert all(child.introduced for child in earlier), "a stage opened too early"
        if self.stopping is not None:
            assert not any(child.life in {"waiting", "backoff"} for child in self.children.values()), "still starting"


def process_address(name: str) -> Address:
    """A process as the peer of a supervisor: ``engine.0`` -> Address("engine", 0)."""
    role, _, index = name.rpartition(".")
    return Address(role, int(index))
