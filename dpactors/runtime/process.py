"""One process of a deployment: ``python -m dpactors.runtime.process`` with a Boot record on stdin."""

import asyncio
import gc
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import structlog

from dpactors.actor.address import Address
from dpactors.actor.effects import Phase, Stop
from dpactors.actor.errors import ActorFailed
from dpactors.net import notices
from dpactors.net.curve import KeysError, Security, load_keys
from dpactors.net.link import LinkState
from dpactors.net.zeromq import ZmqLinks
from dpactors.runtime.boot import Boot, load_catalogue, planned, process_of, read_boot
from dpactors.runtime.control import (
    REPORTS,
    STATUS,
    SUPERVISOR,
    Announce,
    Directory,
    Failed,
    PhaseReport,
    StatusReport,
    StopOrder,
)
from dpactors.runtime.flow import FlowRecorder
from dpactors.runtime.host import ActorHost, HostHooks
from dpactors.runtime.lifeline import ORPHANED, die_with_parent, watch_parent
from dpactors.runtime.logs import set_up_logs
from dpactors.runtime.performing import performers_of
from dpactors.runtime.rundir import sweep_run_dir
from dpactors.runtime.trace import TraceFile
from dpactors.runtime.wiring import Wiring
from dpactors.topology.document import Document
from dpactors.topology.plan import Plan, ProcessPlan

HEARTBEAT_S = 0.5
TRACE_FLUSH_S = 0.2
LAST_FLUSH_S = 0.1
DRAIN_POLL_S = 0.02
LINGER_S = 0.3
"""For the last messages of a process that ends: replies, the report of its failure."""
GC_THRESHOLDS = (50_000, 20, 100)
"""Messages under way are many and have no cycles: the usual 700 would look through them again and again."""
FAILED, REFUSED = 1, 2


class Process:
    """The actors of this process, their links, and its conversation with the supervisor."""

    def __init__(self, boot: Boot, plan: Plan, me: ProcessPlan, security: Security | None) -> None:
        self._boot = boot
        self._me = me
        self._log = structlog.get_logger()
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._stopping = False
        self._phases: dict[Address, Phase] = {}
        self._supervised = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._trace = TraceFile(Path(boot.run_dir) / "traces" / f"{me.name}.jsonl") if boot.trace else None
        self._flow = FlowRecorder(me.name) if boot.trace else None
        own_links = 1 + sum(me.name in (link.binder, link.connector) for link in plan.links)
        self._links = ZmqLinks(
            me.name,
            boot.incarnation,
            plan.digest,
            Path(boot.links_dir),
            self._notice,
            links_max=own_links,
            on_frame=self._flow.frame if self._flow else None,
            security=security,
        )
        self._wiring = Wiring(me.name, plan, self._links)
        self._host = ActorHost(
            plan,
            me,
            self._links,
            performers_of(me, boot.listen),
            HostHooks(self._phase, self._stop, self._failed),
            recorder=self._flow,
            incarnation=boot.incarnation,
        )

    async def run(self) -> int:
        """Live until told to end; returns the exit code."""
        self._links.connect(SUPERVISOR, self._boot.supervisor_endpoint, self._boot.supervisor_incarnation)
        self._wiring.bind()
        self._host.start()
        asyncio.get_running_loop().call_soon(self._settle)
        self._keep(self._beat())
        if self._trace is not None and self._flow is not None:
            self._keep(self._flush(self._trace, self._flow))
        code = await self._ended
        await self._close()
        return code

    def end(self, code: int) -> None:
        """Leave the main wait; the first code given counts."""
        if not self._ended.done():
            self._ended.set_result(code)

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await self._host.close()
        await self._links.close(LINGER_S)
        if self._trace is not None and self._flow is not None:
            self._trace.write(self._flow.take(LAST_FLUSH_S))
            self._trace.close()

    def _keep(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ------------------------------------------------------------- to the supervisor

    def _report(self, message: Any) -> None:
        if self._supervised:
            self._links.send(SUPERVISOR, REPORTS, "", message)

    def _announce(self) -> None:
        self._report(Announce(self._me.name, self._boot.incarnation, self._wiring.endpoints()))

    def _report_phase(self, address: Address) -> None:
        phase = self._phases[address]
        self._report(
            PhaseReport(
                self._me.name,
                self._boot.incarnation,
                str(address),
                phase.state,
                phase.doing,
                phase.waits_for,
                phase.progress,
            )
        )

    def _settle(self) -> None:
        """Every actor has had its first event: one that says nothing of a phase has none to go through."""
        for address in self._host.actors:
            if address not in self._phases:
                self._phase(address, Phase("ready"))

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        lag_s = 0.0
        while True:
            facts = json.dumps({"lag_ms": round(lag_s * 1000, 1), "actors": self._host.status()}, default=repr)
            if self._supervised:
                status = StatusReport(self._me.name, self._boot.incarnation, facts)
                self._links.send(SUPERVISOR, STATUS, "", status, latest=True)
            due_s = loop.time() + HEARTBEAT_S
            await asyncio.sleep(HEARTBEAT_S)
            lag_s = max(0.0, loop.time() - due_s)

    async def _flush(self, trace: TraceFile, flow: FlowRecorder) -> None:
        while True:
            await asyncio.sleep(TRACE_FLUSH_S)
            trace.write(flow.take())

    # ------------------------------------------------------------- from the links

    def _notice(self, notice: notices.LinkNotice) -> None:
        if notice.peer == SUPERVISOR:
            self._of_supervisor(notice)
            return
        match notice:
            case notices.Delivered(peer, route, trace, message):
                self._host.delivered(peer, route, trace, message)
            case notices.LinkUp(peer, incarnation):
                self._log.info("link.up", peer=peer, incarnation=incarnation)
                self._wiring.linked(peer, incarnation)
                self._host.peer_up(peer, incarnation)
            case notices.LinkDown(peer, incarnation, reason):
                self._log.info("link.down", peer=peer, incarnation=incarnation, reason=reason)
                self._host.peer_down(peer, reason)
            case notices.Undelivered(peer, route, trace, message, may_have_run, _):
                self._host.undelivered(peer, route, trace, message, may_have_run=may_have_run)
            case notices.Refused(peer, reason) if self._links.machine(peer).state is LinkState.FENCED:
                self._last_words(ORPHANED, f"{peer} has given this incarnation up: {reason}")
            case _:
                self._remark(notice)

    def _of_supervisor(self, notice: notices.LinkNotice) -> None:
        match notice:
            case notices.Delivered(message=message):
                self._order(message)
            case notices.LinkUp():
                self._supervised = True
                self._announce()
                for address in self._phases:
                    self._report_phase(address)
            case notices.LinkDown():
                self._supervised = False
            case notices.Undelivered():
                pass  # reports are repeated when the link stands again
            case _:
                self._remark(notice)

    def _remark(self, notice: Any) -> None:
        name = type(notice).__name__.lower()
        fields = {key: getattr(notice, key) for key in ("silent_s", "reason") if hasattr(notice, key)}
        level = self._log.info if name == "heard" else self._log.warning
        level(f"link.{name}", peer=notice.peer, **fields)

    def _order(self, message: Any) -> None:
        match message:
            case Directory():
                if self._wiring.learn(message.entries):
                    self._announce()
            case StopOrder():
                self.stop(message.drain_s)
            case _:
                self._log.warning("control.unknown", message=type(message).__name__)

    # ------------------------------------------------------------- from the actors

    def _phase(self, address: Address, phase: Phase) -> None:
        self._phases[address] = phase
        self._log.info(
            "actor.phase", actor=str(address), state=phase.state, doing=phase.doing, waits_for=phase.waits_for
        )
        self._report_phase(address)

    def _stop(self, stop: Stop) -> None:
        self._last_words(stop.code, stop.reason)

    def _failed(self, failed: ActorFailed) -> None:
        self._last_words(FAILED, f"{failed.address} failed on {failed.event}")

    def _last_words(self, code: int, reason: str) -> None:
        level = self._log.error if code else self._log.info
        level("process.ends", code=code, reason=reason)
        if code:
            self._report(Failed(self._me.name, self._boot.incarnation, reason))
        self.end(code)

    # ------------------------------------------------------------- the end

    def stop(self, drain_s: float) -> None:
        """Finish what runs within `drain_s` seconds, then end; asked again, end now."""
        if self._stopping:
            self.end(0)
            return
        self._stopping = True
        self._log.info("process.stopping", drain_s=drain_s)
        self._keep(self._drain(drain_s))

    async def _drain(self, drain_s: float) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + drain_s
        for address in self._host.actors:
            self._phase(address, Phase("draining"))
        while loop.time() < until and any(  # noqa: ASYNC110 - actors know no event for having nothing to do
            row.get("running") or row.get("waiting") for row in self._host.status()
        ):
            await asyncio.sleep(DRAIN_POLL_S)
        self.end(0)


async def _live(boot: Boot, plan: Plan, me: ProcessPlan, security: Security | None) -> int:
    loop = asyncio.get_running_loop()
    process = Process(boot, plan, me, security)
    run_dir = Path(boot.run_dir)
    watch_parent(
        boot.supervisor_pid,
        lambda: loop.call_soon_threadsafe(process.end, ORPHANED),
        lambda: sweep_run_dir(run_dir),
    )
    loop.add_signal_handler(signal.SIGTERM, process.stop, 0.0)
    code = await process.run()
    if os.getppid() != boot.supervisor_pid:
        sweep_run_dir(run_dir)  # a killed supervisor leaves its files to those who outlive it for a moment
    return code


def main() -> NoReturn:
    """Read the Boot record, live, and end without waiting for threads that may never come back."""
    die_with_parent(os.getppid())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the supervisor's to answer
    log = structlog.get_logger()
    try:
        code = _begin()
    except _Refused as error:
        log.error("process.refused", reason=str(error))  # noqa: TRY400 - the text names place and mend
        code = REFUSED
    except Exception as error:  # whatever it was, its reason belongs in the log
        log.exception("process.failed", reason=f"{type(error).__name__}: {error}")
        code = FAILED
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class _Refused(Exception):
    """A topology, catalogue or record that starting again would not mend."""


def _begin() -> int:
    try:
        boot = read_boot(sys.stdin.buffer.read())
        set_up_logs("json", boot.log_level, process=boot.process, pid=os.getpid())
        plan = planned(Document.from_dict(boot.document), load_catalogue(boot.catalogue, boot.folder))
        me = process_of(plan, boot.process)
        security = None
        if boot.keys:
            keyring = load_keys(Path(boot.keys), me.host, plan.hosts)
            security = Security(keyring, {one.name: one.host for one in plan.processes})
    except (ValueError, KeysError) as error:
        raise _Refused(str(error)) from error
    if os.getppid() != boot.supervisor_pid:
        return ORPHANED
    _name_process(boot.process, me)
    if me.cores:
        os.sched_setaffinity(0, me.cores)
    structlog.get_logger().info("process.start", incarnation=boot.incarnation, host=me.host)
    gc.collect()
    gc.freeze()  # what is imported by now lives as long as the process: no collection need look at it
    gc.set_threshold(*GC_THRESHOLDS)
    # Never closed: closing would wait for threads, and this process ends by os._exit.
    return asyncio.Runner(loop_factory=_loop_factory()).run(_live(boot, plan, me, security))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415 - optional
    except ImportError:
        return None
    return uvloop.new_event_loop


def _name_process(name: str, me: ProcessPlan) -> None:
    try:
        from setproctitle import setproctitle  # noqa: PLC0415 - optional: a name for ps and top
    except ImportError:
        return
    actors = ", ".join(str(plan.setup.address) for plan in me.actors)
    setproctitle(f"dpactors: {name}" if actors == name else f"dpactors: {name} ({actors})")


if __name__ == "__main__":
    main()
