"""Every interleaving of small systems: none is wrong in any state, and from each state all can still come to rest."""

import pytest
from attrs import evolve

from dpactors.simulation.explore import explore
from dpactors.simulation.models.catalogue import MODELS
from dpactors.simulation.models.wave import Budget, Rules, State, wave_model

LARGE = {name for name in MODELS if name.endswith("-large")}
CUT = {"rank-restart-large"}
"""Its end was not reached in a quarter of an hour."""
STATES_MAX = 60_000
LARGE_STATES_MAX = 1_500_000


@pytest.mark.parametrize("name", [n for n, one in MODELS.items() if not one.breaks and n not in LARGE])
def test_a_model_is_explored_to_its_end_and_nothing_is_wrong(name: str) -> None:
    found = explore(MODELS[name].make(), STATES_MAX)

    assert found.clean, (found.frontier, found.violation, found.story)


@pytest.mark.parametrize("name", [n for n, one in MODELS.items() if one.breaks])
def test_a_model_without_a_needed_repair_tells_its_shortest_failure(name: str) -> None:
    found = explore(MODELS[name].make(), STATES_MAX)

    assert found.violation
    assert 0 < len(found.story) <= 12
    assert found.there


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", sorted(LARGE - CUT))
def test_a_large_model_is_explored_to_its_end_and_nothing_is_wrong(name: str) -> None:
    found = explore(MODELS[name].make(), LARGE_STATES_MAX)

    assert found.clean, (found.frontier, found.violation, found.story)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", sorted(CUT))
def test_what_was_visited_of_a_model_without_known_end_is_sound(name: str) -> None:
    found = explore(MODELS[name].make(), LARGE_STATES_MAX)

    assert not found.violation, found.story


@pytest.mark.parametrize("rules", [Rules(), Rules(wanted=False)], ids=["sound", "without wanted"])
def test_parts_that_trade_places_change_the_count_and_not_the_verdict(rules: Rules) -> None:
    def itself(state: State) -> State:
        return state

    model = wave_model(2, 1, 1, Budget(requests=1 if rules.wanted else 2), rules)
    short, long = explore(model, STATES_MAX), explore(evolve(model, same=itself), STATES_MAX)

    assert short.states < long.states
    assert (short.frontier, short.violation, len(short.story)) == (long.frontier, long.violation, len(long.story))
