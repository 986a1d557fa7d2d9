"""The supervisor's decisions, written as transcripts."""

from collections.abc import Iterable

from dpactors.actor.actor import handle
from dpactors.actor.address import Address, Setup
from dpactors.actor.effects import (
    ChildExited,
    Effect,
    Event,
    PeerJoined,
    PeerLost,
    Phase,
    Received,
    Send,
    SetTimer,
    Signal,
    Spawn,
    Started,
    Stop,
    TimerFired,
)
from dpactors.actor.supervision import BudgetSettings
from dpactors.runtime.children import ChildSpec
from dpactors.runtime.control import (
    Announce,
    Directory,
    Endpoint,
    Entry,
    Failed,
    FaultRequest,
    PhaseReport,
    StopOrder,
    StopRequest,
)
from dpactors.runtime.supervising import Supervising, SupervisingSettings, process_address

ME = Address("supervisor", 0)
NAMES = ("coordinator.0", "engine.0", "engine.1", "frontend.0")
OTHER = Address("node1", 0)


class Desk:
    """A supervisor with its children played by hand."""

    def __init__(self, other_hosts: tuple[str, ...] = ()) -> None:
        specs = tuple(
            ChildSpec(name, name.partition(".")[0], "node0", (name,), 120.0, tuple(n for n in NAMES if n != name))
            for name in NAMES
        )
        settings = SupervisingSettings("test", specs, other_hosts, budget=BudgetSettings(restarts_max=2))
        peers = {
            "orders": tuple(process_address(n) for n in NAMES),
            "tellings": tuple(Address(h, 0) for h in other_hosts),
        }
        self.actor = Supervising(Setup(ME, settings, peers))
        self.now_s = 100.0
        self.seen: list[Effect] = []
        self.do(Started())

    def do(self, event: Event) -> list[Effect]:
        effects = handle(self.actor, event, self.now_s)
        self.actor.check()
        self.seen += effects
        return effects

    def hear(self, message: object) -> list[Effect]:
        inlet = "commands" if isinstance(message, StopRequest | FaultRequest) else "reports"
        return self.do(Received(inlet, ME, message))

    def announce(self, *names: str) -> list[Effect]:
        effects: list[Effect] = []
        for name in names:
            endpoints = (Endpoint("frontend.0", f"ipc://{name}"),)
            effects += self.hear(Announce(name, self.incarnation(name), endpoints))
        return effects

    def ready(self, *names: str) -> list[Effect]:
        effects: list[Effect] = []
        for name in names:
            effects += self.hear(PhaseReport(name, self.incarnation(name), name, "ready", "", "", None))
        return effects

    def exit(self, name: str, code: int = -9) -> list[Effect]:
        return self.do(ChildExited(name, self.incarnation(name), code))

    def incarnation(self, name: str) -> int:
        return self.actor.children[name].incarnation

    def up(self) -> "Desk":
        for name in NAMES:
            self.announce(name)
            self.ready(name)
        assert self.actor.ready
        return self


def spawned(effects: Iterable[Effect]) -> list[str]:
    return [e.child for e in effects if isinstance(e, Spawn)]


def signalled(effects: Iterable[Effect]) -> list[tuple[str, str]]:
    return [(e.child, e.name) for e in effects if isinstance(e, Signal)]


def ordered(effects: Iterable[Effect], kind: type) -> list[str]:
    return [str(e.to) for e in effects if isinstance(e, Send) and isinstance(e.message, kind)]


def test_a_stage_opens_when_the_one_before_has_announced_and_need_not_be_ready() -> None:
    desk = Desk()
    assert spawned(desk.seen) == ["coordinator.0"]

    assert spawned(desk.announce("coordinator.0")) == ["engine.0", "engine.1"]
    assert spawned(desk.announce("engine.0")) == []
    assert spawned(desk.announce("engine.1")) == ["frontend.0"]


def test_the_deployment_is_ready_once_when_the_last_child_is() -> None:
    desk = Desk().up()

    assert [e for e in desk.seen if e == Phase("ready")] == [Phase("ready")]


def test_an_announcement_reaches_all_who_share_a_link() -> None:
    desk = Desk()
    desk.announce("coordinator.0", "engine.0")

    told = ordered(desk.announce("engine.1"), Directory)

    assert set(told) == {"coordinator.0", "engine.0", "engine.1"}


def test_a_killed_child_comes_back_as_a_new_incarnation_after_its_backoff() -> None:
    desk = Desk().up()
    old = desk.incarnation("engine.1")

    effects = desk.exit("engine.1")

    assert spawned(effects) == []
    assert SetTimer("respawn engine.1", 0.1) in effects
    assert spawned(desk.do(TimerFired("respawn engine.1"))) == ["engine.1"]
    assert desk.incarnation("engine.1") > old
    assert desk.actor.children["engine.1"].restarts == 1


def test_word_of_an_older_incarnation_changes_nothing() -> None:
    desk = Desk().up()
    old = desk.incarnation("engine.1")
    desk.exit("engine.1")
    desk.do(TimerFired("respawn engine.1"))

    assert desk.hear(Announce("engine.1", old, ())) == []
    assert desk.do(ChildExited("engine.1", old, 1)) == []


def test_a_spent_budget_stops_all_with_the_cause() -> None:
    desk = Desk().up()
    for _ in range(2):
        desk.exit("engine.1")
        desk.do(TimerFired("respawn engine.1"))
    desk.hear(Failed("engine.1", desk.incarnation("engine.1"), "no such checkpoint"))

    effects = desk.exit("engine.1", 1)
    assert ordered(effects, StopOrder) == ["frontend.0"]
    for name in ("frontend.0", "engine.0", "coordinator.0"):
        effects = desk.exit(name, 0)

    (stop,) = [e for e in effects if isinstance(e, Stop)]
    assert stop.code == 1
    assert "engine.1 ended with exit code 1, after 2 restarts within 30 s: no such checkpoint" in stop.reason


def test_refused_input_is_not_tried_again() -> None:
    desk = Desk()
    desk.announce("coordinator.0")

    effects = desk.exit("engine.0", 2)

    assert signalled(effects) or ordered(effects, StopOrder)
    assert "engine.0 refused its input" in desk.actor.stopping.cause  # type: ignore[union-attr]


def test_stopping_goes_backwards_through_the_stages_and_ends_each_before_the_next() -> None:
    desk = Desk().up()

    assert ordered(desk.hear(StopRequest(5.0, 0, "asked")), StopOrder) == ["frontend.0"]
    assert sorted(ordered(desk.exit("frontend.0", 0), StopOrder)) == ["engine.0", "engine.1"]
    assert ordered(desk.exit("engine.1", 0), StopOrder) == []
    assert ordered(desk.exit("engine.0", 0), StopOrder) == ["coordinator.0"]
    assert desk.exit("coordinator.0", 0)[-1] == Stop(0, "asked")


def test_who_does_not_stop_is_terminated_then_killed() -> None:
    desk = Desk().up()
    effects = desk.hear(StopRequest(1.0, 0, "asked"))
    assert SetTimer("term 2", 6.0) in effects

    effects = desk.do(TimerFired("term 2"))
    assert signalled(effects) == [("frontend.0", "TERM")]
    assert SetTimer("kill 2", 2.0) in effects
    assert signalled(desk.do(TimerFired("kill 2"))) == [("frontend.0", "KILL")]


def test_a_second_request_kills_at_once() -> None:
    desk = Desk().up()
    desk.hear(StopRequest(30.0, 0, "asked"))

    assert {name for name, _ in signalled(desk.hear(StopRequest(0.0, 0, "again")))} == set(NAMES)
    assert signalled(desk.hear(StopRequest(0.0, 0, "and again"))) == []


def test_stopping_while_starting_starts_nobody_more() -> None:
    desk = Desk()
    desk.hear(StopRequest(0.0, 130, "SIGINT"))

    assert spawned(desk.announce("coordinator.0")) == []
    assert desk.exit("coordinator.0", -15)[-1] == Stop(130, "SIGINT")


def test_a_start_that_hangs_names_who_waits_for_what() -> None:
    desk = Desk()
    desk.announce("coordinator.0", "engine.0", "engine.1")
    desk.hear(PhaseReport("engine.0", desk.incarnation("engine.0"), "engine.0", "starting", "joining", "rank 1", None))

    desk.do(TimerFired("limit engine.0"))

    cause = desk.actor.stopping.cause  # type: ignore[union-attr]
    assert "engine.0 was not ready after 120 s: engine.0 was joining, waiting for rank 1" in cause
    assert "engine.1 was starting its process" in cause


def test_a_fault_signals_only_the_living() -> None:
    desk = Desk().up()
    desk.exit("engine.1")

    effects = desk.hear(FaultRequest("KILL", ("engine.0", "engine.1")))

    assert signalled(effects) == [("engine.0", "KILL")]


def test_other_hosts_are_told_again_and_again_and_count_as_gone_when_silent() -> None:
    desk = Desk(("node1",)).up()
    there = Entry("engine.9", 7, "node1", "up", (Endpoint("engine.0", "tcp://h:1"),))
    object.__setattr__(desk.actor.children["engine.0"].spec, "peers", ("engine.9",))

    assert ordered(desk.do(PeerJoined(OTHER, 1)), Directory) == ["node1.0"]
    assert ordered(desk.do(Received("rosters", OTHER, Directory(1, (there,)))), Directory) == ["engine.0"]
    assert ordered(desk.do(TimerFired("roster")), Directory) == ["None"]  # each of them

    effects = desk.do(PeerLost(OTHER, "silent"))
    (told,) = [e.message for e in effects if isinstance(e, Send)]
    assert [(e.process, e.state) for e in told.entries] == [("engine.9", "down")]
