"""Load: what one client believes of the ranks it may choose among."""

from attrs import define

from dpactors.serving.messages import RankLoad


@define
class RankView:
    """One rank as one client sees it. Mutable: touched several times a request."""

    rank: int
    report: RankLoad | None = None
    """The newest report as it came; never written to."""
    in_flight: int = 0
    """This client's own requests on the rank without a terminal output."""
    dispatched: int = 0
    """Sequence of this client's last dispatch to the rank."""
    accepted: int = 0
    """Highest of them that a report has counted."""

    @property
    def unseen(self) -> int:
        """Own dispatches that the newest report cannot know of yet."""
        return self.dispatched - self.accepted

    @property
    def waiting(self) -> int:
        return self.report.waiting if self.report else 0

    @property
    def running(self) -> int:
        return self.report.running if self.report else 0

    @property
    def kv_used(self) -> float:
        return self.report.kv_used if self.report else 0.0


@define
class LoadView:
    """All ranks of one client. A snapshot can never erase an assignment: only a report that counts it does.

    vLLM 0.32 overwrites its local increments with each snapshot, so a burst longer than 100 ms is forgotten;
    ours leave the view when the rank says that it has accepted them.
    """

    client: int
    """Index of this client; marks in reports carry it."""
    clients: int
    """How many clients share these ranks."""
    ranks: dict[int, RankView]
    """Only ranks that can take requests, in rank order."""
    start: int = 0
    """Where the scan for the lightest rank begins."""

    def add(self, rank: int) -> None:
        """A rank (or its new incarnation) can take requests; idempotent."""
        if rank not in self.ranks:
            self.ranks = dict(sorted({**self.ranks, rank: RankView(rank)}.items()))

    def remove(self, rank: int) -> None:
        """A rank is gone, and with it all that was believed of it."""
        self.ranks.pop(rank, None)

    def learn(self, load: RankLoad) -> bool:
        """Take a report; False where an equal or newer one is known."""
        view = self.ranks.get(load.rank)
        if view is None or (view.report is not None and view.report.report >= load.report):
            return False
        view.report = load
        for mark in load.accepted:
            if mark.client == self.client:
                view.accepted = max(view.accepted, min(mark.sequence, view.dispatched))
        return True

    def book(self, rank: int) -> int:
        """A request goes to `rank`; returns its dispatch sequence."""
        view = self.ranks[rank]
        view.in_flight += 1
        view.dispatched += 1
        return view.dispatched

    def release(self, rank: int) -> None:
        """A request on `rank` had its terminal output."""
        view = self.ranks.get(rank)
        if view is not None:
            view.in_flight -= 1
            assert view.in_flight >= 0, f"rank {rank} released more often than booked"
