"""Engine ranks as threads of one process, with real torch and real gloo groups between them."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

from dpactors.actor.address import Address
from dpactors.engine.performer import EnginePerformer
from dpactors.message.message import tokens
from dpactors.serving.jobs import AgreeIdle, JoinExchange, KeyKnown, KeySet, LoadModel, ModelLoaded, RunStep
from dpactors.serving.messages import Generate, RequestOutput, Sampling
from dpactors.serving.scheduling.scheduler import Scheduler, dummy
from dpactors.serving.settings import EngineSettings

CLIENT = Address("client", 0)
GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, seed=0, stop_token_ids=tokens(), ignore_eos=True, min_tokens=0)


def ask(name: str, prompt: Iterable[int], max_tokens: int, sampling: Sampling = GREEDY) -> Generate:
    """A request."""
    return Generate(name, tokens(prompt), max_tokens, sampling, rank=None)


def nothing(item: Any) -> None:
    """Hears what a job says."""


class Ranks:
    """`size` performers, each on a thread of its own, that carry each other's rendezvous keys."""

    def __init__(self, size: int, settings: EngineSettings, **performer: Any) -> None:
        self.size = size
        self.settings = settings
        self.performers = [EnginePerformer(**performer) for _ in range(size)]
        self.loaded: list[ModelLoaded] = []
        self.epoch = 0
        self.preemptions = 0
        self._pool = ThreadPoolExecutor(size)

    def __enter__(self) -> Self:
        self.loaded = self.each(self._load)
        self.join()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._pool.shutdown()
        for performer in self.performers:
            performer.close()

    def each(self, work: Callable[[int], Any]) -> list[Any]:
        """`work(rank)` on all ranks at once."""
        return list(self._pool.map(work, range(self.size)))

    def join(self) -> None:
        """Meet in a new epoch."""
        self.epoch += 1
        kind = self.settings.exchange
        self.each(lambda rank: self.perform(rank, JoinExchange(self.epoch, rank, self.size, "127.0.0.1", kind)))

    def perform(self, rank: int, job: Any) -> Any:
        """One job of one rank, on the calling thread."""

        def say(item: Any) -> None:
            if isinstance(item, KeySet):
                for performer in self.performers:
                    performer.feed(KeyKnown(item.key, item.value))

        return self.performers[rank].perform(job, say)

    def serve(self, requests: list[list[Generate]]) -> tuple[dict[str, list[int]], list[list[RunStep]]]:
        """Step in lockstep until no rank has work; `requests` by rank. Gives the answers and each rank's steps."""
        answers: dict[str, list[int]] = {}
        steps: list[list[RunStep]] = [[] for _ in range(self.size)]

        def rank_serves(rank: int) -> None:
            model = self.loaded[rank]
            queue = Scheduler(self.settings, model.end_tokens, model.max_model_len, model.kv_blocks, model.vocab_size)
            for generate in requests[rank]:
                refused = queue.add(generate, CLIENT)
                assert refused is None, refused
            unfinished = self.size
            while unfinished:
                plan = queue.plan()
                steps[rank].append(plan or dummy())
                result = self.perform(rank, steps[rank][-1])
                for _, output in queue.postprocess(result):
                    book(answers.setdefault(output.request_id, []), output)
                unfinished = self.perform(rank, AgreeIdle(queue.unfinished)).unfinished
            queue.check()
            self.preemptions += queue.preemptions
            assert queue.kv_used == 0.0

        self.each(rank_serves)
        return answers, steps

    def _load(self, rank: int) -> ModelLoaded:
        s = self.settings
        job = LoadModel(
            s.model, s.dtype, s.threads, s.kv_blocks, s.block_size, s.max_model_len, rank=rank, size=self.size
        )
        return self.performers[rank].perform(job, nothing)


def book(answer: list[int], output: RequestOutput) -> None:
    """Append one output, whose position must follow."""
    assert output.position == len(answer)
    answer += output.tokens
