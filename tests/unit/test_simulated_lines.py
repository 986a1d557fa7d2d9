"""The air between simulated links: a pure function of its seed, in virtual time, and as bad as it is told to be."""

import asyncio

import pytest

from dpactors.net.notices import Delivered, LinkNotice
from dpactors.simulation.lines import Air, LineWeather, SimulatedLinks
from dpactors.simulation.loop import StoppableLoop, VirtualLoop
from dpactors.simulation.world import Deadlock
from tests.live.link_messages import FAST, Number

Frames = list[tuple[str, bool, bytes, float]]


async def talk(seed: int, weather: LineWeather, frames: Frames | None = None) -> tuple[list[int], Air]:
    """What b got of a hundred messages of a within a virtual minute."""
    loop = asyncio.get_running_loop()
    air = Air(seed, weather)
    got: list[int] = []

    def hear(notice: LinkNotice) -> None:
        if type(notice) is Delivered:
            got.append(notice.message.number)

    def note(peer: str, sent: bool, frame: bytes) -> None:
        if frames is not None:
            frames.append((peer, sent, frame, loop.time()))

    a, b = (SimulatedLinks(air, name, 1, "d", hear, limits=FAST, on_frame=note) for name in "ab")
    a.reach("b")
    b.reach("a")
    for number in range(100):
        a.send("b", 0, "", Number(number, b""))
    await asyncio.sleep(60)
    await a.close(0.0)
    await b.close(0.0)
    return got, air


def run(seed: int, weather: LineWeather, frames: Frames | None = None) -> tuple[list[int], Air]:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(talk(seed, weather, frames))


def test_a_minute_of_virtual_time_is_a_function_of_its_seed() -> None:
    bad = LineWeather(lose=0.2, double=0.2)
    first, again, other = Frames(), Frames(), Frames()
    run(1, bad, first)
    run(1, bad, again)
    run(2, bad, other)

    assert first == again != other
    assert 60.0 <= first[-1][3] < 65.0


@pytest.mark.parametrize(
    ("weather", "arrives"),
    [(LineWeather(), True), (LineWeather(lose=0.5, double=0.5), True), (LineWeather(lose=1.0), False)],
)
def test_the_air_does_what_the_weather_says(weather: LineWeather, arrives: bool) -> None:
    got, air = run(3, weather)

    assert got == (list(range(100)) if arrives else [])
    assert (air.lost > 0, air.doubled > 0) == (weather.lose > 0, weather.double > 0)


def test_where_nothing_can_happen_any_more_the_loop_says_so() -> None:
    loop = VirtualLoop()
    with pytest.raises(Deadlock):
        loop.run_until_complete(loop.create_future())
    loop.close()


def test_a_stopped_share_of_a_loop_does_later_what_fell_due_and_in_order() -> None:
    async def main() -> list[str]:
        share, done = StoppableLoop(asyncio.get_running_loop()), list[str]()
        share.call_soon(done.append, "before")
        await asyncio.sleep(0)
        share.stop()
        share.call_later(2.0, done.append, "second")
        share.call_later(1.0, done.append, "first")
        share.call_soon(done.append, "never").cancel()
        await asyncio.sleep(10)
        assert done == ["before"]
        share.go_on()
        await asyncio.sleep(0)
        share.call_soon(done.append, "after")
        await asyncio.sleep(0.1)
        return done

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert runner.run(main()) == ["before", "first", "second", "after"]
