"""Users that leave at the worst moments."""

import random

from dpactors.actor.address import Address
from tests.world.town import Town


def test_s31_a_thousand_users_that_leave_mid_stream_leave_nothing_behind() -> None:
    town, draw = Town("internal_2node").warm(), random.Random(31)
    gone: set[int] = set()
    while len(gone) < 1000:
        streams = [(town.ask(n % 4, max_tokens=200), n % 4) for n in range(50)]
        town.wait(draw.uniform(0.0, 0.4))
        for stream, ingress in streams:
            town.leave(stream, ingress)
            gone.add(stream)
        town.wait(draw.uniform(0.0, 0.1))

    assert all(len(town.tokens(s)) < 200 for s in gone)
    assert any(town.tokens(s) for s in gone)
    town.at_rest()
    assert all(town.world.actor(i).streams == {} for i in town.ingresses)
    assert all(
        town.world.actor(e).scheduler.owned_by(Address("client", n)) == [] for e in town.engines for n in range(4)
    )


def test_s32_an_abort_that_races_with_the_last_token_gives_one_end() -> None:
    """A user leaves around the moment of the last step; the invariants see to it that nothing comes behind an end."""
    ended: set[bool] = set()
    for half_ms in range(40):
        town = Town("internal_1node").warm()
        stream = town.ask(max_tokens=4)
        town.world.run(town.world.now_s + 1.0, lambda town=town, stream=stream: len(town.tokens(stream)) == 3)
        town.wait(half_ms * 0.0005)
        town.leave(stream)
        town.at_rest()

        assert len(town.ends(stream)) <= 1
        assert bool(town.ends(stream)) == (len(town.tokens(stream)) == 4)
        assert town.world.actor(town.ingresses[0]).streams == {}
        ended.add(bool(town.ends(stream)))

    assert ended == {False, True}  # both sides of the race were met
