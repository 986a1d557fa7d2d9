"""Every interleaving of small groups: from every state that can come about, the group can still come to rest.

At rest means that no request waits, no rank works or sits in a collective, and all ranks sleep in the same wave.
"""

import pytest

from dpactors.simulation.explore import explore
from tests.model.wave_model import Rules, State, at_rest, make_moves, start

STATES_MAX = 60_000

SMALL = {
    "one request and one abort": start(2, 1, 1, 1, aborts=1),
    "agreement every second step, one abort": start(2, 1, 1, 2, aborts=1),
    "two lost messages": start(2, 1, 1, 1, losses=2),
    "one coordinator restart": start(2, 1, 1, 1, restarts=1),
}


@pytest.mark.parametrize("state", SMALL.values(), ids=SMALL)
def test_every_state_can_still_come_to_rest(state: State) -> None:
    found = explore(state, make_moves(), at_rest, STATES_MAX)

    assert found.complete, found.states
    assert found.stuck == 0, found.story


@pytest.mark.parametrize("rules", [Rules(first_request=False), Rules(retry=False)], ids=["no FIRST_REQ", "no repeats"])
def test_each_wake_path_suffices_alone(rules: Rules) -> None:
    """FIRST_REQ is only the fast path, and repeats are only for lost messages."""
    found = explore(start(2, 1, 1, 2, aborts=1), make_moves(rules), at_rest, STATES_MAX)

    assert found.complete, found.states
    assert found.stuck == 0, found.story


def test_a_late_request_is_stranded_without_level_triggered_waking() -> None:
    """Without WaveWanted, a FIRST_REQ that comes while the group is thought to run is the last word."""
    found = explore(start(2, 1, 2, 1), make_moves(Rules(wanted=False)), at_rest, STATES_MAX)

    assert found.complete, found.states
    assert found.stuck > 0


def test_a_lost_start_strands_the_others_without_repeats() -> None:
    """A rank whose START is lost and that has no work of its own never comes; only the repeat brings it."""
    found = explore(start(2, 1, 1, 1, losses=1), make_moves(Rules(retry=False)), at_rest, STATES_MAX)

    assert found.complete, found.states
    assert found.stuck > 0
    assert any("lose start" in move for move in found.story), found.story


@pytest.mark.soak
@pytest.mark.parametrize(
    "state",
    [start(2, 1, 2, 1), start(2, 1, 2, 1, aborts=1), start(2, 2, 1, 1), start(3, 1, 1, 1, aborts=1)],
    ids=["two requests", "two requests and an abort", "two clients", "three ranks and an abort"],
)
def test_larger_groups_come_to_rest(state: State) -> None:
    found = explore(state, make_moves(), at_rest, 3_000_000)

    assert found.complete, found.states
    assert found.stuck == 0, found.story
