"""How rows reach the experts that are not here: one small interface, and gloo behind it on CPUs.

Every rank of a group joins every operation, with zero rows where it has none; so no operation is ever skipped by a
decision that only one rank could make.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol, TypeAlias, cast

import torch
from torch import Tensor
from torch._C import _distributed_c10d as c10d  # the backend itself: init_process_group would be global state

from dpactors.engine.errors import ExchangeLost, MeetingFailed
from dpactors.engine.rendezvous import CarriedStore, Mailbox
from dpactors.engine.tensors import int_list
from dpactors.engine.weights import local_experts
from dpactors.serving.jobs import JoinExchange

Compute: TypeAlias = Callable[[Tensor, list[int]], Tensor]
"""Rows [rows, hidden] in order of this rank's experts, and rows of each; gives their outputs, same shape and order."""


class Exchange(Protocol):
    """The group of ranks that share the experts, as one of them sees it."""

    size: int

    def experts(self, rows: Tensor, counts: Tensor, compute: Compute) -> Tensor:
        """Outputs of `rows` [rows, hidden], which are in order of their expert; `counts` [experts] says how many each.

        Raises ExchangeLost when a rank is gone.
        """
        ...

    def agree(self, unfinished: bool) -> int:
        """How many ranks say `unfinished`. Raises ExchangeLost when a rank is gone."""
        ...

    def announce(self, tokens: int, step_s: float) -> None:
        """A step of `tokens` begins here and the last took `step_s`: what the others may have to wait for."""
        ...

    def interrupt(self) -> None:
        """Make an operation that waits end with ExchangeLost, where that can be done; from any thread."""
        ...

    def close(self) -> None:
        """Let go of sockets, memory and threads; whoever waits for this rank then raises ExchangeLost."""
        ...


class LocalExchange:
    """A group of one: every expert is here."""

    size = 1

    def experts(self, rows: Tensor, counts: Tensor, compute: Compute) -> Tensor:
        """Compute them here; nothing is raised."""
        return compute(rows, int_list(counts)) if rows.shape[0] else rows

    def agree(self, unfinished: bool) -> int:
        """1 or 0."""
        return int(unfinished)

    def announce(self, tokens: int, step_s: float) -> None:
        """Nobody waits."""

    def interrupt(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """Nothing is held."""


class GlooExchange:
    """Ranks over TCP. Only rows that a rank's experts need are sent to it; outputs come back in the sender's order."""

    def __init__(self, group: Any, rank: int, size: int, epoch: int) -> None:
        """`group` is a torch ProcessGroupGloo of `size` ranks."""
        self._group: Any = group
        self._rank = rank
        self.size = size
        self._epoch = epoch
        self._shares: dict[int, list[range]] = {}

    def experts(self, rows: Tensor, counts: Tensor, compute: Compute) -> Tensor:
        """Three operations: how many rows for which expert, the rows, their outputs."""
        shares = self._shares_of(counts.shape[0])
        owned = [len(share) for share in shares]
        here = owned[self._rank]
        asked = torch.empty(self.size * here, dtype=counts.dtype)
        self._alltoall("counts", asked, counts, [here] * self.size, owned)
        # Plain lists from here on: a handful of integers costs less in Python than one tensor operation.
        wanted, sent = int_list(asked), int_list(counts)
        receive = [sum(wanted[sender * here : (sender + 1) * here]) for sender in range(self.size)]
        send = [sum(sent[share.start : share.stop]) for share in shares]
        got = rows.new_empty(sum(receive), rows.shape[1])
        self._alltoall("rows", got, rows, receive, send)
        outputs = got
        if got.shape[0]:
            outputs = by_expert(got, asked, [sum(wanted[expert::here]) for expert in range(here)], compute)
        back = torch.empty_like(rows)
        self._alltoall("outputs", back, outputs, send, receive)
        return back

    def agree(self, unfinished: bool) -> int:
        """An all-reduce of one int32."""
        count = torch.tensor([int(unfinished)], dtype=torch.int32)
        try:
            self._group.allreduce([count]).wait()
        except RuntimeError as error:
            raise self._lost("finish agreement", error) from error
        return int(count.item())

    def announce(self, tokens: int, step_s: float) -> None:
        """Nothing: the deadline is fixed when the group is made."""

    def interrupt(self) -> None:
        """Nothing: a collective of gloo cannot be ended."""

    def close(self) -> None:
        """Close the group's sockets; peers that wait for this rank then raise ExchangeLost."""
        if self._group is not None:
            self._group.shutdown()
            self._group = None

    def _shares_of(self, experts: int) -> list[range]:
        if experts not in self._shares:
            self._shares[experts] = [local_experts(experts, rank, self.size) for rank in range(self.size)]
        return self._shares[experts]

    def _alltoall(self, what: str, output: Tensor, given: Tensor, receive: list[int], send: list[int]) -> None:
        try:
            self._group.alltoall_base(output, given, receive, send).wait()
        except RuntimeError as error:
            raise self._lost(f"exchange of expert {what}", error) from error

    def _lost(self, operation: str, error: RuntimeError) -> ExchangeLost:
        who = f"rank {self._rank} of {self.size}"
        return ExchangeLost(f"{operation} in epoch {self._epoch}, {who}: {_first_line(error)}")


def by_expert(got: Tensor, asked: Tensor, counts: list[int], compute: Compute) -> Tensor:
    """Compute rows that came in order of sender, then expert; `asked` is [senders * local experts]."""
    expert_of = torch.arange(len(counts)).repeat(asked.shape[0] // len(counts)).repeat_interleave(asked)
    order = expert_of.argsort(stable=True)
    outputs = torch.empty_like(got)
    outputs[order] = compute(got[order], counts)
    return outputs


def join_gloo(
    mailbox: Mailbox,
    job: JoinExchange,
    say: Callable[[Any], None],
    *,
    meeting_timeout_s: float,
    operation_timeout_s: float,
) -> GlooExchange:
    """Meet the other ranks of the job's epoch.

    Raises MeetingFailed when they do not come in time, on cancel, or where the job's address is not this machine's.
    """
    store = CarriedStore(mailbox, job.epoch, say, meeting_timeout_s)
    gloo = cast("Any", c10d).ProcessGroupGloo
    options = gloo._Options()  # noqa: SLF001 - the only way to set device, threads and timeout
    options._threads = 1  # noqa: SLF001 - one operation at a time
    options._timeout = timedelta(seconds=operation_timeout_s)  # noqa: SLF001
    try:
        options._devices = [gloo.create_device(hostname=job.address)]  # noqa: SLF001
        group = gloo(store, job.rank, job.size, options)
    except (RuntimeError, MeetingFailed) as error:
        if store.failure is not None:
            raise store.failure from error
        who = f"epoch {job.epoch}: rank {job.rank} at {job.address}"
        raise MeetingFailed(f"{who} could not meet the others: {_first_line(error)}") from error
    return GlooExchange(group, job.rank, job.size, job.epoch)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
