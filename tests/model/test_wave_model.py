"""Every interleaving of small groups: no request waits for ever, no rank sits alone in a collective."""

import pytest

from dpactors.simulation.explore import explore
from tests.model.wave_model import Rules, at_rest, make_moves, start

STATES_MAX = 400_000


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("DP2, two requests", start(2, 1, 2, 1)),
        ("DP2, two requests, one abort", start(2, 1, 2, 1, aborts=1)),
        ("DP2, agreement every second step, one abort", start(2, 1, 1, 2, aborts=1)),
        ("DP3, one request, one abort", start(3, 1, 1, 1, aborts=1)),
        ("DP2, two clients", start(2, 2, 1, 1)),
        ("DP2, one request, two messages lost", start(2, 1, 1, 1, losses=2)),
        ("DP2, one request, one coordinator restart", start(2, 1, 1, 1, restarts=1)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_state_can_still_come_to_rest(name: str, state: object) -> None:
    found = explore(state, make_moves(), at_rest, STATES_MAX)  # type: ignore[type-var]

    assert found.complete, f"{name}: more than {STATES_MAX} states"
    assert found.stuck == 0, (name, found.states, found.story)


@pytest.mark.parametrize("rules", [Rules(first_request=False), Rules(retry=False)], ids=["no FIRST_REQ", "no repeats"])
def test_each_wake_path_suffices_alone(rules: Rules) -> None:
    """FIRST_REQ is only the fast path, and repeats are only for lost messages."""
    found = explore(start(2, 1, 2, 1, aborts=1), make_moves(rules), at_rest, STATES_MAX)

    assert found.complete
    assert found.stuck == 0, found.story


def test_a_late_request_is_stranded_without_level_triggered_waking() -> None:
    """Without WaveWanted, a FIRST_REQ that comes while the group is thought to run is the last word."""
    found = explore(start(2, 1, 2, 1), make_moves(Rules(wanted=False)), at_rest, STATES_MAX)

    assert found.stuck > 0


def test_an_excluded_rank_that_lost_its_request_strands_the_others() -> None:
    """vLLM's exclusion: with the repairs off, the named rank never joins once its request was aborted."""
    rules = Rules(excluded=True, retry=False, wanted=False)
    found = explore(start(2, 1, 1, 1, aborts=1), make_moves(rules), at_rest, STATES_MAX)

    assert found.stuck > 0
    assert any("abort" in move for move in found.story), found.story
