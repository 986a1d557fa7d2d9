"""Group membership: how ranks meet in an epoch and meet again after a loss. Pure.

An epoch is one life of the collective group. It begins when every rank has asked to join, and it is over as soon as
one of them asks again with epoch 0 (it was restarted, or a collective failed under it). Joining is level-triggered:
a rank repeats GroupJoin until a FormGroup answers. The coordinator holds nothing that ranks do not tell again.
"""

from attrs import evolve, field, frozen

from dpactors.serving.messages import FormGroup, GroupJoin


def _nobody() -> "dict[int, GroupJoin]":
    return {}


@frozen
class Membership:
    """The coordinator's view of the group; replaced, never written to."""

    size: int
    epoch: int = 0
    members: "dict[int, GroupJoin]" = field(factory=_nobody)
    """Rank to the newest word of its living incarnation."""

    @property
    def complete(self) -> bool:
        """Every rank is in the current epoch."""
        return len(self.members) == self.size and all(m.epoch == self.epoch > 0 for m in self.members.values())

    def has(self, rank: int) -> bool:
        """Whether a rank said that it is in the current epoch; links keep order, so what it says then is of it."""
        member = self.members.get(rank)
        return member is not None and member.epoch == self.epoch > 0

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks that have not asked to join."""
        return tuple(rank for rank in range(self.size) if rank not in self.members)

    def on_join(self, join: GroupJoin) -> "tuple[Membership, FormGroup | None, int | None]":
        """Take a GroupJoin; the FormGroup, if any, goes to the one rank given or else to all."""
        fresh = join.rank not in self.members
        epoch = max(self.epoch, join.epoch, join.seen)
        after = evolve(self, epoch=epoch, members={**self.members, join.rank: join})
        if join.epoch == epoch and epoch > 0:
            return after, None, None
        if after.missing:
            return after, None, None
        if not fresh and join.seen < epoch:
            return after, FormGroup(epoch, self.size, after._wave()), join.rank  # noqa: SLF001 - of the same class
        return after._form()  # noqa: SLF001 - of the same class

    def on_lost(self, rank: int) -> "Membership":
        """A rank's process is gone: its word counts no more."""
        return evolve(self, members={r: m for r, m in self.members.items() if r != rank})

    def _wave(self) -> int:
        return max(m.wave for m in self.members.values())

    def _form(self) -> "tuple[Membership, FormGroup, None]":
        epoch = self.epoch + 1
        form = FormGroup(epoch, self.size, self._wave())
        members = {r: evolve(m, epoch=0, seen=epoch) for r, m in self.members.items()}
        return evolve(self, epoch=epoch, members=members), form, None
