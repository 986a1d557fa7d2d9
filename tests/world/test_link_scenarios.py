"""Slow readers and strangers, on the link machines that carry every wire between processes."""

import attrs
import pytest

from dpactors.message.message import tokens
from dpactors.net.limits import LinkLimits
from dpactors.net.link import LinkMachine, LinkState
from dpactors.net.notices import Delivered, LinkUp, Refused, Undelivered
from dpactors.serving.messages import LoadSnapshot, RequestOutput, StartWave, StepOutputs
from tests.loads import rank_load
from tests.world.town import plan_of

RELIABLE, NEWEST = 0, 1
LIMITS = LinkLimits(outbox_messages=2000, window_messages=500)


def pair(digests: tuple[str, str] = ("d", "d"), names: tuple[str, str] = ("a", "b")) -> tuple[LinkMachine, LinkMachine]:
    """Two ends that look for each other."""
    one = LinkMachine(names[0], names[1], 1, digests[0], LIMITS)
    other = LinkMachine(names[1], names[0], 1, digests[1], LIMITS)
    one.join(0.0)
    other.join(0.0)
    return one, other


def talk(one: LinkMachine, other: LinkMachine, now_s: float = 0.0) -> list[object]:
    """Carry frames until both are quiet; what both tell."""
    told: list[object] = []
    while True:
        out, back = one.frames_to_send(now_s), other.frames_to_send(now_s)
        if not out and not back:
            return told
        told += [notice for frame in out for notice in other.receive(frame, now_s)]
        told += [notice for frame in back for notice in one.receive(frame, now_s)]


def output(number: int) -> StepOutputs:
    load = rank_load(0, number, 0.5, step=number, running=1)
    one = RequestOutput("r", number, tokens([7]), None, None, None, 200, 0)
    return StepOutputs(load, (one,))


def snapshot(number: int) -> LoadSnapshot:
    return LoadSnapshot(1, number, (), number, running=False)


def test_s33_a_front_end_that_stops_reading_costs_bounded_memory_and_delays_no_control_message() -> None:
    """Ten thousand outputs to it; the line to the coordinator is another, and stays empty."""
    engine, stalled = pair()
    talk(engine, stalled)
    control, coordinator = pair(names=("engine.0", "coordinator.0"))
    talk(control, coordinator)
    returned = 0
    for number in range(10_000):
        returned += len([n for n in engine.send(RELIABLE, "", output(number)) if isinstance(n, Undelivered)])
        engine.frames_to_send(0.0)  # into a socket that nobody reads
        assert engine.unacknowledged <= LIMITS.window_messages
        assert engine.backlog <= LIMITS.outbox_messages
        if number % 1000 == 0:
            control.send(RELIABLE, "", StartWave(number))
            assert [n.message for n in talk(control, coordinator) if isinstance(n, Delivered)] == [StartWave(number)]

    assert returned == 10_000 - LIMITS.window_messages - LIMITS.outbox_messages


def test_s34_a_slow_subscriber_gets_the_newest_snapshot_and_every_start() -> None:
    coordinator, slow = pair()
    talk(coordinator, slow)
    for number in range(1, 1001):
        coordinator.send(NEWEST, "", snapshot(number), latest=True)
        if number % 100 == 0:
            coordinator.send(RELIABLE, "", StartWave(number))

    got = [n.message for n in talk(coordinator, slow) if isinstance(n, Delivered)]

    assert [one for one in got if isinstance(one, LoadSnapshot)] == [snapshot(1000)]
    assert [one.wave for one in got if isinstance(one, StartWave)] == list(range(100, 1001, 100))


@pytest.mark.parametrize("setting", ["sync_interval=8", "block_size=32", "model=other", "dtype=bfloat16"])
def test_s38_a_rank_with_another_setting_is_refused_by_name(setting: str) -> None:
    """All settings are in the digest that greetings carry; both digests are told beside the name of the peer."""
    here, there = plan_of("internal_1node"), plan_of("internal_1node", f"roles.engine.settings.{setting}")
    coordinator, rank = pair((here.digest, there.digest), ("coordinator.0", "engine.1"))

    refused = [n for n in talk(coordinator, rank) if isinstance(n, Refused)]

    assert {n.peer for n in refused} == {"engine.1", "coordinator.0"}
    assert all(here.digest in n.reason and there.digest in n.reason for n in refused)
    assert LinkState.UP not in (coordinator.state, rank.state)


def test_s39_an_unexpected_rank_is_refused_by_name() -> None:
    coordinator, _ = pair(names=("coordinator.0", "engine.1"))
    stranger = LinkMachine("engine.7", "coordinator.0", 1, "d", LIMITS)
    stranger.join(0.0)

    (refused,) = [n for frame in stranger.frames_to_send(0.0) for n in coordinator.receive(frame, 0.0)]

    assert isinstance(refused, Refused)
    assert "engine.1 was expected, engine.7 greets" in refused.reason
    assert coordinator.state is LinkState.JOINING


def test_s39_a_second_greeting_of_the_same_life_changes_nothing() -> None:
    coordinator, rank = pair()
    (hello,) = rank.frames_to_send(0.0)
    coordinator.receive(hello, 0.0)
    talk(coordinator, rank)

    assert coordinator.receive(hello, 0.0) == []
    assert coordinator.state is LinkState.UP


def test_s39_two_processes_of_one_name_only_the_later_is_served() -> None:
    coordinator, rank = pair()
    talk(coordinator, rank)
    twin = LinkMachine("b", "a", 2, "d", LIMITS)
    twin.join(0.0)

    told = talk(coordinator, twin)
    rank.send(RELIABLE, "", StartWave(1))
    late = talk(coordinator, rank)

    assert LinkUp("b", 2) in told
    assert not [n for n in late if isinstance(n, Delivered)]
    assert rank.state is LinkState.FENCED


def test_s39_a_word_before_any_greeting_is_dropped_and_counted() -> None:
    _, rank = pair()
    talk(_, rank)
    rank.send(RELIABLE, "", StartWave(1))
    coordinator = LinkMachine("a", "b", 2, "d", LIMITS)

    told = [n for frame in rank.frames_to_send(0.0) for n in coordinator.receive(frame, 0.0)]

    assert told == []
    assert attrs.asdict(coordinator.counters)["fenced"] > 0
