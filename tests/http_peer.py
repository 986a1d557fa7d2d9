"""The other side of an edge in tests: takes what it says and answers as an engine would."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from dpactors.http.server import HttpEdge
from dpactors.message.message import tokens
from dpactors.serving.jobs import Availability, ClientGone, Listening, ServeHttp, StreamWrite, Submitted
from dpactors.serving.messages import FinishReason, RankLoad

END = 2
"""tiny-moe's end token."""
CONTEXT = 2048
LIMIT_S = 20.0
"""A step of a test that takes longer has failed."""


def load(rank: int, waiting: int = 0, running: int = 0) -> RankLoad:
    """A rank's load with a quarter of its KV in use."""
    return RankLoad(rank, 1, 0, 0, waiting, running, 0.25, ())


READY = Availability((0, 1), 2, CONTEXT, (load(0), load(1)))


class EnginePeer:
    """Hears what an edge says; answers each request with `answer` unless that is None."""

    def __init__(self, edge: HttpEdge, answer: Sequence[int] | None = None) -> None:
        self.edge = edge
        self.answer = answer
        self.urls: asyncio.Future[tuple[str, ...]] = asyncio.get_running_loop().create_future()
        self.submitted: asyncio.Queue[Submitted] = asyncio.Queue()
        self.all_submitted: list[Submitted] = []
        self.gone: asyncio.Queue[int] = asyncio.Queue()
        self.all_gone: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def say(self, item: Any) -> None:
        """What the edge calls."""
        match item:
            case Listening():
                self.urls.set_result(item.urls)
            case Submitted():
                self.all_submitted.append(item)
                self.submitted.put_nowait(item)
                if self.answer is not None:
                    task = asyncio.ensure_future(self._answer(item.stream, self.answer))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
            case ClientGone():
                self.all_gone.add(item.stream)
                self.gone.put_nowait(item.stream)
            case _:
                raise AssertionError(item)

    def write(self, stream: int, ids: Sequence[int], finish: FinishReason | None = None, **more: Any) -> None:
        """News of one stream, from rank 1 unless told."""
        self.edge.feed(StreamWrite(stream, tokens(ids), finish, **{"rank": 1, **more}))

    async def _answer(self, stream: int, ids: Sequence[int]) -> None:
        for token in ids:
            if stream in self.all_gone:
                return
            self.write(stream, [token])
            await asyncio.sleep(0)
        self.write(stream, [END], "stop", stop_token=END)


@asynccontextmanager
async def serving(
    answer: Sequence[int] | None = None, make: Callable[[], HttpEdge] = HttpEdge, listen: str = "127.0.0.1:0"
) -> AsyncGenerator[tuple[EnginePeer, str]]:
    """A live edge, ready ranks behind it; ends with no task left that was not there before."""
    before = asyncio.all_tasks()
    edge = make()
    peer = EnginePeer(edge, answer)
    edge.feed(READY)
    task = asyncio.ensure_future(edge.perform(ServeHttp("tiny-moe", "tiny-moe", listen), peer.say))
    try:
        async with asyncio.timeout(LIMIT_S):
            await asyncio.wait((task, peer.urls), return_when="FIRST_COMPLETED")
        if task.done():
            task.result()
        yield peer, peer.urls.result()[0]
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await asyncio.sleep(0)  # tasks that were cancelled end in their next turn
    left = asyncio.all_tasks() - before
    assert not left, left
