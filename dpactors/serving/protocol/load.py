"""Load: what one client believes of the ranks it may choose among."""

from collections import deque
from hashlib import blake2b

from attrs import Factory, define, field

from dpactors.serving.messages import RankLoad

CHUNK_TOKENS = 2048
"""Tokens of a step, for a rank that has not said its own limit."""
STEP_S = 0.010
"""A decode step, until the rank has measured one: only its ratio to PREFILL_TOKEN_S counts then."""
PREFILL_TOKEN_S = 0.0001
"""One prefilled token, likewise."""
UNBOUNDED = 1 << 62
"""Free KV of a rank that has not reported."""


def _salt_of(view: "RankView") -> int:
    return int.from_bytes(blake2b(str(view.rank).encode(), digest_size=8).digest(), "little")


@define
class RankView:
    """One rank as one client sees it. Mutable: touched several times a request, and read once a choice."""

    rank: int
    chunk_tokens: int = CHUNK_TOKENS
    """Most tokens that one of its steps computes."""
    newest: int = 0
    """Number of the newest report, or that from which those of this life begin."""
    report: RankLoad | None = None
    """The newest report as it came; never written to."""
    heard_s: float = 0.0
    """When it was true, on this client's clock."""
    in_flight: int = 0
    """This client's own requests on the rank without a terminal output."""
    dispatched: int = 0
    """Sequence of this client's last dispatch to the rank."""
    accepted: int = 0
    """Highest of them that a report has counted."""
    bookings: deque[int] = field(factory=deque[int])
    """Tokens of each dispatch that no report has counted, oldest first."""
    unseen_tokens: int = 0
    """Their sum."""
    salt: int = field(default=Factory(_salt_of, takes_self=True), init=False)
    """64 bits that set this rank apart from others wherever something is hashed to ranks."""

    # What follows from report and bookings; `believe` keeps it, so that a choice among many ranks only reads it.
    waiting: int = 0
    """Requests, those included that no report has counted."""
    requests: int = 0
    """Waiting and running, likewise."""
    load: int = 0
    """`requests`, but at least what this client and its peers must have there."""
    tokens: int = 0
    """KV in use and tokens of the waiting, likewise."""
    kv_used: float = 0.0
    """Share of KV blocks in use, 0 to 1, as reported."""
    kv_left: int = UNBOUNDED
    """KV capacity less `tokens`; negative where not all of them fit."""
    decoding: int = 0
    unseen_todo: int = 0
    """Tokens to prefill that no report has counted, peers' included."""
    free_s: float = 0.0
    """When all that the report counts is expected to be prefilled."""
    decode_step_s: float = STEP_S
    prefill_token_s: float = PREFILL_TOKEN_S

    @property
    def unseen(self) -> int:
        """Own dispatches that the newest report cannot know of yet."""
        return self.dispatched - self.accepted

    def believe(self, clients: int) -> None:
        """Count again after a report or booking; what this client did unseen, `clients` - 1 others did as well."""
        unseen = clients * (self.dispatched - self.accepted)
        self.unseen_todo = clients * self.unseen_tokens
        report = self.report
        if report is None:
            self.waiting = self.requests = unseen
            self.tokens = self.unseen_todo
        else:
            self.waiting = report.waiting + unseen
            self.requests = self.waiting + report.running
            self.tokens = report.kv_tokens + report.waiting_tokens + self.unseen_todo
            self.kv_used = report.kv_used
            self.kv_left = report.kv_capacity - self.tokens
            self.decoding = report.decoding
            self.decode_step_s = report.decode_step_s or STEP_S
            self.prefill_token_s = report.prefill_token_s or PREFILL_TOKEN_S
            self.free_s = self.heard_s + report.step_left_s + self.prefill_s(report.pending_tokens)
        self.load = max(clients * self.in_flight, self.requests)

    def prefill_s(self, tokens: int) -> float:
        """How long this rank is expected to need for `tokens`: each costs time, and each chunk a decode step."""
        return tokens * self.prefill_token_s + -(-tokens // self.chunk_tokens) * self.decode_step_s


@define
class LoadView:
    """All ranks of one client. A snapshot can never erase an assignment: only a report that counts it does.

    vLLM 0.32 and SGLang 0.5 overwrite their local increments with each snapshot, so a burst longer than its interval
    is forgotten; ours leave the view when the rank says that it has accepted them.
    """

    client: int
    """Index of this client; marks in reports carry it."""
    clients: int
    """How many clients share these ranks."""
    slots: tuple[int, ...]
    """Every rank that this client is wired to, ready or not, in order."""
    turn: int = 0
    """Where the next choice begins to look: the one thing that policies remember, moved by each Choice."""
    ranks: dict[int, RankView] = field(factory=dict[int, RankView])
    """Only ranks that can take requests, in rank order."""
    order: list[RankView] = field(factory=list[RankView])
    """The same, by place."""
    ring: list[RankView] = field(factory=list[RankView])
    """The same twice over, so that a scan from anywhere is one slice."""
    salted: list[RankView] = field(factory=list[RankView])
    """The same, by salt: the index of whoever hashes to ranks."""

    def add(self, rank: int, chunk_tokens: int = CHUNK_TOKENS, reports_from: int = 0) -> None:
        """A rank (or its new incarnation) can take requests; its reports have numbers above `reports_from`."""
        if rank not in self.ranks:
            self._arrange({**self.ranks, rank: RankView(rank, chunk_tokens, reports_from)})

    def remove(self, rank: int) -> None:
        """A rank is gone, and with it all that was believed of it."""
        self._arrange({number: view for number, view in self.ranks.items() if number != rank})

    def learn(self, load: RankLoad, true_s: float) -> bool:
        """Take a report that was true at `true_s`; False where a newer one is known, or it is of an earlier life."""
        view = self.ranks.get(load.rank)
        if view is None or load.report <= view.newest:
            return False
        view.newest = load.report
        view.report = load
        view.heard_s = true_s
        for mark in load.accepted:
            if mark.client == self.client:
                self._accept(view, min(mark.sequence, view.dispatched))
        view.believe(self.clients)
        return True

    def book(self, rank: int, tokens: int) -> int:
        """A request of `tokens` to prefill goes to `rank`; returns its dispatch sequence."""
        view = self.ranks[rank]
        view.in_flight += 1
        view.dispatched += 1
        view.bookings.append(tokens)
        view.unseen_tokens += tokens
        view.believe(self.clients)
        return view.dispatched

    def release(self, rank: int) -> None:
        """A request on `rank` had its terminal output."""
        view = self.ranks.get(rank)
        if view is not None:
            view.in_flight -= 1
            assert view.in_flight >= 0, f"rank {rank} released more often than booked"
            view.believe(self.clients)

    def check(self) -> None:
        """Assert that bookings and their sums agree."""
        for view in self.ranks.values():
            assert len(view.bookings) == view.unseen, f"bookings of rank {view.rank}"
            assert sum(view.bookings) == view.unseen_tokens, f"booked tokens of rank {view.rank}"

    def _accept(self, view: RankView, sequence: int) -> None:
        while view.accepted < sequence:
            view.accepted += 1
            view.unseen_tokens -= view.bookings.popleft()

    def _arrange(self, ranks: dict[int, RankView]) -> None:
        self.ranks = dict(sorted(ranks.items()))
        self.order = list(self.ranks.values())
        self.ring = self.order * 2
        self.salted = sorted(self.order, key=lambda view: view.salt)
