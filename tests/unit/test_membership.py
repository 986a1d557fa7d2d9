"""How ranks meet, and meet again. Written as transcripts."""

from dpactors.serving.messages import FormGroup, GroupJoin
from dpactors.serving.protocol.membership import Membership


def join(rank: int, epoch: int = 0, seen: int = 0, wave: int = 0) -> GroupJoin:
    return GroupJoin(rank, epoch, seen, wave, running=False)


def formed(size: int = 2) -> Membership:
    group = Membership(size)
    for rank in range(size):
        group, form, _ = group.on_join(join(rank))
    assert form == FormGroup(1, size, 0)
    for rank in range(size):
        group, form, _ = group.on_join(join(rank, epoch=1, seen=1))
        assert form is None
    assert group.complete
    return group


def test_the_last_rank_to_ask_forms_the_epoch() -> None:
    group, form, _ = Membership(2).on_join(join(1))
    assert form is None
    assert group.missing == (0,)

    group, form, only = group.on_join(join(0))
    assert (form, only) == (FormGroup(1, 2, 0), None)


def test_a_repeat_that_crossed_the_form_is_answered_alone() -> None:
    group, _, _ = Membership(2).on_join(join(0))
    group, _, _ = group.on_join(join(1))

    group, form, only = group.on_join(join(0, seen=0))

    assert (form, only) == (FormGroup(1, 2, 0), 0)
    assert group.epoch == 1


def test_a_restarted_rank_brings_a_new_epoch_at_the_highest_wave() -> None:
    group = formed().on_lost(1)
    assert not group.complete

    group, form, _ = group.on_join(join(0, epoch=0, seen=1, wave=7))
    assert form is None
    group, form, _ = group.on_join(join(1))

    assert form == FormGroup(2, 2, 7)


def test_a_survivor_that_failed_first_waits_for_the_other() -> None:
    """The loss is known here only after the survivor asked: one meeting too many, then the right one."""
    group, form, _ = formed().on_join(join(0, epoch=0, seen=1))
    assert form == FormGroup(2, 2, 0)

    group = group.on_lost(1)
    group, form, _ = group.on_join(join(1))

    assert form == FormGroup(3, 2, 0)


def test_a_new_coordinator_learns_the_epoch_from_the_ranks() -> None:
    group = Membership(2)
    for rank in range(2):
        group, form, _ = group.on_join(join(rank, epoch=4, seen=4, wave=9))
        assert form is None

    assert group.complete
    assert group.epoch == 4
