"""The rules that are held after every event do fire: each is shown one event that breaks it."""

from collections.abc import Callable

import pytest

from dpactors.actor.address import Address
from dpactors.actor.effects import Effect, Event, FeedJob, JobDone, Note, Received, Send, TimerFired
from dpactors.message.message import tokens
from dpactors.serving.jobs import Agreed, StepResult, StreamWrite
from dpactors.serving.messages import Abort, Dispatch, Reply, RequestOutput, StepOutputs
from dpactors.simulation.invariants import Invariants
from tests.loads import rank_load
from tests.world.town import Town

CLIENT, COORDINATOR, INGRESS = Address("client", 0), Address("coordinator", 0), Address("ingress", 0)
ENGINES = [Address("engine", rank) for rank in range(2)]
TICK = TimerFired("tick")


def output(position: int, *, finish: str | None = None) -> RequestOutput:
    return RequestOutput("r1", position, tokens([5]), finish, None, None, 200, 0)


def served() -> tuple[Town, Invariants]:
    """A pair that has served request r1 pinned to rank 0, and what was watched of it."""
    town = Town("internal_1node").warm()
    watched = Invariants(town.world)
    town.ask(max_tokens=4, rank=0)
    town.run_until_served()
    town.at_rest()
    town.world.observers.clear()
    return town, watched


def dispatched(town: Town, rank: int | None) -> Dispatch:
    generate = town.asked[1]
    return Dispatch(type(generate)("r2", generate.prompt, 4, generate.sampling, rank), 0, 1, False, tokens())


BREACHES: dict[str, Callable[[Town], tuple[Address, Event, list[Effect]]]] = {
    "is pinned to 1": lambda t: (CLIENT, TICK, [Send("requests", dispatched(t, 1), ENGINES[0])]),
    "tokens after its end": lambda t: (CLIENT, TICK, [Send("replies", Reply(0, 1, output(4)), None)]),
    "position 3 after 0": lambda t: (
        CLIENT,
        TICK,
        [
            Send("requests", dispatched(t, None), ENGINES[0]),
            Send("replies", Reply(0, 1, RequestOutput("r2", 3, tokens([5]), None, None, None, 200, 0)), None),
        ],
    ),
    "dispatched after its end": lambda t: (
        CLIENT,
        TICK,
        [Send("requests", Dispatch(t.asked[1], 0, 1, False, tokens()), ENGINES[0])],
    ),
    "written to after its end": lambda t: (INGRESS, TICK, [FeedJob("http", StreamWrite(1, tokens([5]), None))]),
    "came before the request": lambda t: (ENGINES[1], Received("requests", CLIENT, Abort(("r1",))), []),
    "to client.7, not client.0": lambda t: (
        ENGINES[0],
        TICK,
        [Send("outputs", StepOutputs(rank_load(0), (output(4),)), Address("client", 7))],
    ),
    "another rank has": lambda t: (
        ENGINES[0],
        JobDone("agree", Agreed(0)),
        [Note("wave.complete", {"wave": 0})],
    ),
}


@pytest.mark.parametrize("says", BREACHES)
def test_a_breach_is_told(says: str) -> None:
    town, watched = served()
    target, event, effects = BREACHES[says](town)
    if says == "another rank has":  # one rank ends a wave that the other goes on with
        watched.observe(ENGINES[1], JobDone("agree", Agreed(1)), [])

    with pytest.raises(AssertionError, match=says):
        watched.observe(target, event, effects)


@pytest.mark.parametrize("address", [COORDINATOR, ENGINES[1]])
def test_a_wave_that_goes_back_is_told(address: Address) -> None:
    town, watched = served()
    actor = town.world.actor(address)
    actor.wave = actor.wave.reset(0)

    with pytest.raises(AssertionError, match="goes back from wave 1"):
        watched.observe(address, TICK, [])


def test_an_older_snapshot_is_told() -> None:
    town, watched = served()
    town.world.actor(CLIENT).newest = (0, 1)

    with pytest.raises(AssertionError, match="older snapshot"):
        watched.observe(CLIENT, TICK, [])


def test_a_dummy_step_that_brings_output_is_told() -> None:
    town, watched = served()
    town.world.actor(ENGINES[1]).dummy_steps += 1
    said = StepOutputs(rank_load(1), (output(4),))

    with pytest.raises(AssertionError, match="a dummy step has an output"):
        watched.observe(ENGINES[1], JobDone("step", StepResult(tokens(), 0.0)), [Send("outputs", said, CLIENT)])
