"""Performs an engine core's jobs with torch, on one thread that is the host's."""

import time
from typing import Any, TypeAlias

import torch

from dpactors.actor.performer import Say
from dpactors.engine.attention import KVCache
from dpactors.engine.config import ModelConfig, read_config
from dpactors.engine.errors import EngineError, ExchangeLost, ExchangeMissing, ModelRefused
from dpactors.engine.exchange import Exchange, LocalExchange
from dpactors.engine.meeting import join_exchange
from dpactors.engine.model import Decoder
from dpactors.engine.rendezvous import Mailbox
from dpactors.engine.sampling import draw
from dpactors.engine.weights import load_weights
from dpactors.models import model_dir
from dpactors.serving.jobs import (
    Agreed,
    AgreeIdle,
    JoinExchange,
    KeyKnown,
    LoadModel,
    ModelLoaded,
    RunStep,
    StepResult,
)

EngineJob: TypeAlias = LoadModel | JoinExchange | RunStep | AgreeIdle

MEETING_TIMEOUT_S = 120.0
"""How long a rank waits for the others to come to an epoch: they may still be loading weights."""


class EnginePerformer:
    """A ThreadPerformer for LoadModel, JoinExchange, RunStep and AgreeIdle.

    `perform` is called by one thread; `feed` and `cancel` by any.
    """

    def __init__(
        self,
        *,
        operation_timeout_s: float | None = None,
        meeting_timeout_s: float = MEETING_TIMEOUT_S,
        device: str = "cpu",
    ) -> None:
        """Times in seconds; `device` is torch's name of where the model lives.

        `operation_timeout_s` is the shortest time after which a silent rank is lost; None takes the exchange's own.
        """
        self._operation_timeout_s = operation_timeout_s
        self._meeting_timeout_s = meeting_timeout_s
        self._device = device
        self._mailbox = Mailbox()
        self._decoder: Decoder | None = None
        self._size = 1
        self._exchange: Exchange | None = None
        self._last_step_s = 0.0

    @property
    def decoder(self) -> Decoder | None:
        """The loaded model with its KV cache, for tests and diagnosis."""
        return self._decoder

    def feed(self, item: KeyKnown) -> None:
        """A rendezvous key of some rank; early and late ones are kept apart by their epoch."""
        self._mailbox.put(item.key, item.value)

    def cancel(self) -> None:
        """Make the running job give up at once: a JoinExchange with MeetingFailed, another with ExchangeLost.

        A job that waits for no other rank ends by itself; so does one over gloo.
        """
        self._mailbox.cancel()
        exchange = self._exchange
        if exchange is not None:
            exchange.interrupt()

    def perform(self, job: EngineJob, say: Say) -> Any:
        """Do `job` and return its result.

        Raises ModelRefused, MeetingFailed, ExchangeMissing, or ExchangeLost after which the group must be joined anew.
        """
        try:
            with torch.inference_mode():
                match job:
                    case RunStep():
                        return self._step(job)
                    case AgreeIdle():
                        return Agreed(self._agree(unfinished=job.unfinished))
                    case JoinExchange():
                        return self._join(job, say)
                    case LoadModel():
                        return self._load(job, say)
        except ExchangeLost:
            # A rank that leaves tells the other ranks at once what silence would tell them after a timeout.
            self._leave()
            raise
        finally:
            self._mailbox.rearm()

    def close(self) -> None:
        """Leave the group; for the end of the process and for tests."""
        self._leave()

    # --------------------------------------------------------- one method a job

    def _load(self, job: LoadModel, say: Say) -> ModelLoaded:
        torch.set_num_threads(job.threads)
        directory = model_dir(job.model)
        config = read_config(directory)
        max_model_len = _context(config, job)
        dtype = getattr(torch, config.dtype if job.dtype == "auto" else job.dtype)
        weights = load_weights(directory, config, dtype, say, rank=job.rank, size=job.size, device=self._device)
        cache = KVCache(config, job.kv_blocks, job.block_size, dtype, self._device)
        self._leave()
        self._decoder = Decoder(config, weights, cache, max_model_len)
        self._size = job.size
        self._exchange = LocalExchange() if job.size == 1 else None
        return ModelLoaded(
            name=job.model,
            max_model_len=max_model_len,
            kv_blocks=job.kv_blocks,
            end_tokens=config.end_tokens,
            vocab_size=config.vocab_size,
        )

    def _join(self, job: JoinExchange, say: Say) -> None:
        if self._decoder is None or job.size != self._size:
            raise EngineError(f"an exchange of {job.size} ranks; the experts were loaded as a share of {self._size}")
        self._leave()
        self._mailbox.forget_before(job.epoch)
        if job.size == 1:
            self._exchange = LocalExchange()
            return
        self._exchange = join_exchange(
            self._mailbox,
            job,
            say,
            meeting_timeout_s=self._meeting_timeout_s,
            operation_timeout_s=self._operation_timeout_s,
        )

    def _step(self, job: RunStep) -> StepResult:
        begun_s = time.perf_counter()
        if self._decoder is None:
            raise EngineError("a step before a model was loaded")
        exchange = self._joined()
        exchange.announce(len(job.tokens), self._last_step_s)
        logits = self._decoder.forward(job, exchange)
        self._last_step_s = time.perf_counter() - begun_s
        return StepResult(draw(logits, job.sequences), time.perf_counter() - begun_s)

    def _agree(self, *, unfinished: bool) -> int:
        return self._joined().agree(unfinished)

    # --------------------------------------------------------- the group

    def _joined(self) -> Exchange:
        if self._exchange is None:
            raise ExchangeMissing(f"this rank holds a share of {self._size} and is in no group now")
        return self._exchange

    def _leave(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.close()


def _context(config: ModelConfig, job: LoadModel) -> int:
    """Longest prompt + answer, in tokens: what the checkpoint, the setting and the KV cache all allow."""
    if job.max_model_len > config.max_model_len:
        raise ModelRefused(f"max_model_len is {job.max_model_len}; the checkpoint goes to {config.max_model_len}")
    return min(job.max_model_len or config.max_model_len, job.kv_blocks * job.block_size)
