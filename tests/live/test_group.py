"""A real lockstep pair: torch forwards, gloo exchanges, real links; both ranks in this process, so that it can be watched."""

from array import array

import pytest
import torch

from dpactors.actor.address import Address
from dpactors.actor.effects import JobDone
from dpactors.serving.jobs import Agreed, StepResult
from tests.live.house import House
from tests.world.town import plan_of

PROMPT = array("i", [1, 200, 300, 400, 500, 600])
RANKS = (Address("engine", 0), Address("engine", 1))


def kv_bytes(house: House, rank: Address) -> list[torch.Tensor]:
    decoder = house.performers[rank].decoder
    assert decoder is not None
    return [tensor.clone() for pages in decoder.cache.layers for tensor in (pages.keys, pages.values)]


@pytest.mark.asyncio
async def test_one_short_request_on_an_idle_pair() -> None:
    """Both ranks take the same steps, the wave goes up by one, both pause, and dummies leave no mark on the other."""
    async with House(plan_of("internal_1node")) as house:
        engines = [house.actor(rank) for rank in RANKS]
        waves = [engine.wave.wave for engine in engines]
        before = kv_bytes(house, RANKS[1])
        door = house.doors["frontend.0"]

        tokens = await door.answer(door.ask(PROMPT, 5, rank=0))
        await house.until(lambda: not any(engine.wave.running for engine in engines))

        assert len(tokens) == 5
        assert [(e.real_steps, e.dummy_steps) for e in engines] == [(5, 11), (0, 16)]
        assert [e.wave.wave for e in engines] == [wave + 1 for wave in waves]
        assert [e.scheduler.kv_used for e in engines] == [0.0, 0.0]
        assert [(e.scheduler.waiting, e.scheduler.running) for e in engines] == [(0, 0), (0, 0)]
        for engine in engines:
            engine.scheduler.check()
        after = kv_bytes(house, RANKS[1])
        assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


@pytest.mark.asyncio
async def test_a_request_at_each_moment_of_wind_down_is_served() -> None:
    """The n-th step or agreement that rank 0 ends lets a request in on rank 1, for every n up to the pause."""
    moment = {"seen": 0, "at": 0, "rank": 0}
    asked: list[int] = []

    def watch(address: Address, event: object, effects: object) -> None:
        if address == RANKS[0] and isinstance(event, JobDone) and isinstance(event.result, StepResult | Agreed):
            moment["seen"] += 1
            if moment["seen"] == moment["at"]:
                asked.append(door.ask(PROMPT, 3, rank=moment["rank"]))

    async with House(plan_of("internal_1node"), watch) as house:
        engines = [house.actor(rank) for rank in RANKS]
        door = house.doors["frontend.0"]
        alone = await door.answer(door.ask(PROMPT, 3, rank=1))
        for at in range(1, 19):
            await house.until(lambda: not any(engine.wave.running for engine in engines))
            moment.update(seen=0, at=at, rank=at % 2)
            first = await door.answer(door.ask(PROMPT, 5, rank=0))
            await house.until(lambda at=at: moment["seen"] >= at)

            assert await door.answer(asked[-1]) == alone, at
            assert first[:3] == alone

        assert len(asked) == 18
        await house.until(lambda: not any(engine.wave.running for engine in engines))
        assert len({engine.wave.wave for engine in engines}) == 1
        steps = [engine.real_steps + engine.dummy_steps for engine in engines]
        assert steps[0] == steps[1]
