"""An actor class is checked when it is written, not when it runs."""

from collections.abc import Iterator

import pytest

from dpactors import Actor, inlet, message, outlet
from dpactors.actor.actor import Effects, handle
from dpactors.actor.address import Address, Setup, parse_address
from dpactors.actor.effects import Effect, JobDone, Received, Send, SetTimer, Started, TimerFired
from dpactors.actor.errors import ContractError
from dpactors.actor.supervision import BudgetSettings, RestartBudget


@message("test.ping/1")
class Ping:
    n: int


@message("test.pong/1")
class Pong:
    n: int


class Echo(Actor):
    pings = inlet(Ping)
    pongs = outlet(Pong)

    def on_start(self, now_s: float) -> Effects:
        yield SetTimer("tick", 1.0)

    def on_pings(self, message: Ping, sender: Address, now_s: float) -> Iterator[Effect]:
        yield self.pongs.to(sender, Pong(message.n))

    def on_timer(self, timer: str, now_s: float) -> Effects:
        return (self.pongs.each(Pong(0)),)


def echo() -> Echo:
    return Echo(Setup(Address("echo", 0), None))


def test_events_become_effects() -> None:
    actor, asker = echo(), Address("asker", 3)

    assert handle(actor, Started(), 0.0) == [SetTimer("tick", 1.0)]
    assert handle(actor, Received("pings", asker, Ping(7)), 0.0) == [Send("pongs", Pong(7), asker)]
    assert handle(actor, TimerFired("tick"), 0.0) == [Send("pongs", Pong(0), None)]


def test_an_event_without_handler_is_the_actors_fault() -> None:
    with pytest.raises(AssertionError, match=r"echo\.0"):
        handle(echo(), JobDone("load", None), 0.0)


def test_ports_are_collected_with_their_names() -> None:
    assert set(Echo.inlets) == {"pings"}
    assert set(Echo.outlets) == {"pongs"}
    assert Echo.pongs.name == "pongs"


def test_a_missing_handler_is_refused_at_import() -> None:
    with pytest.raises(ContractError, match="no on_pings"):

        class Deaf(Actor):
            pings = inlet(Ping)


def test_a_handler_of_other_messages_is_refused_at_import() -> None:
    with pytest.raises(ContractError, match=r"on_pings.*Ping \| Pong"):

        class Half(Actor):
            pings = inlet(Ping, Pong)

            def on_pings(self, message: Ping, sender: Address, now_s: float) -> Effects:
                return ()


def test_a_port_carries_messages_only() -> None:
    with pytest.raises(ContractError, match="int"):

        class Odd(Actor):
            numbers = outlet(int)


@pytest.mark.parametrize("text", ["engine", "engine.", ".1", "engine.x", "engine.-1"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match=r"role\.index"):
        parse_address(text)


def test_addresses_round_trip() -> None:
    assert parse_address(str(Address("prefill_engine", 12))) == Address("prefill_engine", 12)


def test_a_budget_backs_off_then_gives_up_then_forgets() -> None:
    budget = RestartBudget(BudgetSettings(restarts_max=3, period_s=10.0, backoff_s=0.1, backoff_max_s=0.3))

    assert [budget.spend(0.0), budget.spend(1.0), budget.spend(2.0)] == [0.1, 0.2, 0.3]
    assert budget.spend(3.0) is None
    assert budget.spend(11.5) == 0.2
