"""Ranks that share memory, as real processes: what the others see when one is killed, stopped, or late for a reason."""

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from dpactors.serving.jobs import KeySet
from tests.live.exchange_rank import EXPERTS, HIDDEN, serve

LIMIT_S = 60


class Group:
    """Real ranks of one exchange; carries their rendezvous keys."""

    def __init__(self, size: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self.ranks: list[BaseProcess] = []
        self._answers: list[list[Any]] = [[] for _ in range(size)]
        self._heard = threading.Condition()
        for rank in range(size):
            ours, theirs = context.Pipe()
            self._pipes.append(ours)
            self.ranks.append(context.Process(target=serve, args=(rank, size, theirs, "auto"), daemon=True))
            self.ranks[-1].start()
            theirs.close()
        threading.Thread(target=self._carry, daemon=True).start()
        for rank in range(size):
            assert "joined" == self.answer(rank)

    def tell(self, rank: int, word: str) -> None:
        self._pipes[rank].send(word)

    def answer(self, rank: int) -> Any:
        with self._heard:
            assert self._heard.wait_for(lambda: self._answers[rank], LIMIT_S), f"no answer of rank {rank}"
            return self._answers[rank].pop(0)

    def all_do(self, word: str) -> list[Any]:
        ranks = range(len(self.ranks))
        for rank in ranks:
            self.tell(rank, word)
        return [self.answer(rank) for rank in ranks]

    def signal(self, rank: int, number: int) -> None:
        pid = self.ranks[rank].pid
        assert pid is not None
        os.kill(pid, number)

    def end(self) -> None:
        for rank in self.ranks:
            rank.kill()
            rank.join()

    def sleeps(self, rank: int) -> bool:
        """Whether every thread of the rank waits in the kernel."""
        states = [(task / "stat").read_text().rpartition(")")[2].split()[0] for task in self._tasks(rank)]
        return set(states) == {"S"}

    def _tasks(self, rank: int) -> list[Path]:
        return list(Path(f"/proc/{self.ranks[rank].pid}/task").iterdir())

    def _carry(self) -> None:
        open_pipes = dict.fromkeys(self._pipes)
        while open_pipes:
            for pipe in multiprocessing.connection.wait(list(open_pipes)):
                assert isinstance(pipe, Connection)
                try:
                    item = pipe.recv()
                except (EOFError, OSError):
                    del open_pipes[pipe]
                    continue
                if isinstance(item, KeySet):
                    for one in self._pipes:
                        one.send(item)
                else:
                    with self._heard:
                        self._answers[self._pipes.index(pipe)].append(item)
                        self._heard.notify_all()


@pytest.fixture
def group() -> Iterator[Group]:
    started = Group(3)
    yield started
    started.end()


def test_processes_exchange_and_a_kill_is_known_without_a_deadline(group: Group) -> None:
    """The survivors sleep in an exchange when the third is killed: both know which rank ended, long before 2 s."""
    expected = [float(EXPERTS * HIDDEN * (rank + 1)) for rank in range(3)]
    for _ in range(50):
        assert expected == group.all_do("experts")
        assert [3, 3, 3] == group.all_do("agree")
    for rank in (0, 1):
        group.tell(rank, "experts")
    _until(lambda: group.sleeps(0) and group.sleeps(1))

    group.signal(2, signal.SIGKILL)

    for rank in (0, 1):
        kind, text, _, _ = group.answer(rank)
        assert "ExchangeLost" == kind
        assert f"rank {rank} of 3: the process of rank 2 has ended" in text
    group.tell(0, "agree")
    assert "this rank has left the group" in group.answer(0)[1]


def test_a_stopped_rank_is_lost_after_the_deadline_and_finds_itself_alone(group: Group) -> None:
    """What the others gave before they left may still be taken: that operation is whole. The next one is not."""
    assert [3, 3, 3] == group.all_do("agree")
    group.signal(2, signal.SIGSTOP)
    for rank in (0, 1):
        group.tell(rank, "agree")

    for rank in (0, 1):
        kind, text, begun_s, ended_s = group.answer(rank)
        assert "ExchangeLost" == kind
        assert "no word of rank" in text or "has left" in text
        assert ended_s - begun_s >= 1.9 or "has left" in text
    group.signal(2, signal.SIGCONT)
    group.tell(2, "agree")
    assert 3 == group.answer(2)
    group.tell(2, "agree")
    assert "has left the group" in group.answer(2)[1]


def test_a_rank_with_a_long_prefill_is_waited_for(group: Group) -> None:
    """700 tokens allow 7 s: three seconds of silence, which would otherwise be too many, lose nobody."""
    assert [3, 3, 3] == group.all_do("agree")
    group.tell(2, "announce a long prefill")
    group.answer(2)
    group.signal(2, signal.SIGSTOP)
    for rank in range(3):
        group.tell(rank, "agree")
    time.sleep(3)
    group.signal(2, signal.SIGCONT)

    assert [3, 3, 3] == [group.answer(rank) for rank in range(3)]


def test_memory_has_no_name_anywhere(group: Group) -> None:
    """Nothing in /dev/shm, and no socket in the file system: a killed group leaves nothing to sweep."""
    before = set(os.listdir("/dev/shm"))
    assert [3, 3, 3] == group.all_do("agree")
    assert before == set(os.listdir("/dev/shm"))
    maps = Path(f"/proc/{group.ranks[0].pid}/maps").read_text()
    shared = [line for line in maps.splitlines() if "memfd:dpactors-exchange" in line]
    assert 3 == len(shared)
    assert 2 == sum("r--s" in line for line in shared), "a rank can write in another's segment"


def _until(true: Any) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
