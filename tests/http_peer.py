"""The other side of an edge in tests: takes what it says and answers as an engine would."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
from tokenizers import Tokenizer

from dpactors.http.server import HttpEdge
from dpactors.message.message import tokens
from dpactors.models import model_dir
from dpactors.serving.jobs import Availability, ClientGone, Listening, ServeHttp, StreamWrite, Submitted
from dpactors.serving.messages import FinishReason, RankLoad
from tests.loads import rank_load

if TYPE_CHECKING:
    import openai

END = 2
"""tiny-moe's end token."""
CONTEXT = 2048
LIMIT_S = 20.0
"""A step of a test that takes longer has failed."""

TOKENIZER = Tokenizer.from_file(str(model_dir("tiny-moe") / "tokenizer.json"))
SAID = "A wave is one 波 in which all engines run together."
ANSWER = TOKENIZER.encode(SAID).ids
CHAT = {"messages": [{"role": "user", "content": "What is a wave?"}]}
BODIES = [("/v1/completions", {"prompt": "What"}), ("/v1/chat/completions", CHAT)]
"""Each endpoint with a small request."""


def load(rank: int, waiting: int = 0, running: int = 0) -> RankLoad:
    """A rank's load with a quarter of its KV in use."""
    return rank_load(rank, waiting=waiting, running=running, kv_used=0.25)


READY = Availability((0, 1), (0, 1), CONTEXT, (load(0), load(1)))


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
    answer: Sequence[int] | None = None,
    make: Callable[[], HttpEdge] = HttpEdge,
    listen: str = "127.0.0.1:0",
    **limits: Any,
) -> AsyncGenerator[tuple[EnginePeer, str]]:
    """A live edge, ready ranks behind it; ends with no task left that was not there before."""
    before = asyncio.all_tasks()
    edge = make()
    peer = EnginePeer(edge, answer)
    edge.feed(READY)
    task = asyncio.ensure_future(edge.perform(ServeHttp("tiny-moe", "tiny-moe", listen, **limits), peer.say))
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


def official(url: str) -> "openai.AsyncOpenAI":
    import openai  # late: a test weighs a process that imports this file

    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=LIMIT_S)


def plain(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, timeout=LIMIT_S)


def events(body: str) -> list[Any]:
    """The data lines of a stream; [DONE] stays text."""
    lines = [line.removeprefix("data: ") for line in body.split("\n\n") if line]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


async def drained(client: httpx.AsyncClient) -> None:
    """No HTTP request but this one's is left at the edge."""
    async with asyncio.timeout(LIMIT_S):
        while (await client.get("/load")).json() != {"server_load": 0}:
            pass
