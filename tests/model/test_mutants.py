"""Checks that find no seeded bug prove nothing: each bug of the list is found, and sound code passes every check."""

import pytest

from tests.model.mutants import MUTANTS, Mutant

CHECKS = {one.found_by.__name__: one.found_by for one in MUTANTS}


@pytest.mark.parametrize("name", CHECKS)
def test_sound_code_passes(name: str) -> None:
    assert CHECKS[name]() is None


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: one.name)
def test_a_seeded_bug_is_found(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.apply(monkeypatch)

    with pytest.raises(AssertionError):
        mutant.found_by()
