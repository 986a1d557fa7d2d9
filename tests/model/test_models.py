"""Every interleaving of small systems: none is wrong in any state, and from each state all can still come to rest."""

import pytest

from dpactors.simulation.explore import explore
from dpactors.simulation.models.catalogue import MODELS

LARGE = {name for name in MODELS if name.endswith("-large")}
STATES_MAX = 60_000
LARGE_STATES_MAX = 3_000_000


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
@pytest.mark.parametrize("name", sorted(LARGE))
def test_a_large_model_is_explored_to_its_end_and_nothing_is_wrong(name: str) -> None:
    found = explore(MODELS[name].make(), LARGE_STATES_MAX)

    assert found.clean, (found.frontier, found.violation, found.story)
