"""HTTP requests in flight: which sequences each one has, and what of them is ready to be written."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any

import structlog
from attrs import define, field, frozen

from dpactors.actor.performer import Say
from dpactors.http.detokenizer import Detokenizer
from dpactors.http.errors import ApiError
from dpactors.http.metrics import Metrics
from dpactors.message.message import Tokens, tokens
from dpactors.serving.jobs import ClientGone, StreamWrite, Submitted
from dpactors.serving.messages import FinishReason, Generate

log = structlog.get_logger()

UNSENT_TOKENS_MAX = 256
"""What may wait per sequence while its reader takes nothing; one token more ends the request."""


ERROR_STATUSES = range(400, 600)


@define(eq=False)
class Choice:
    """One sequence of an HTTP request. Mutable: one per sequence."""

    stream: int
    index: int
    """Place among the choices of the answer."""
    generate: Generate
    text: Detokenizer
    began_s: float
    fresh: Tokens = field(factory=tokens)
    """Tokens that came and were not taken yet."""
    last: StreamWrite | None = None
    """The write that ended it."""
    rank: int | None = None
    attempts: int = 1
    cached_tokens: int = 0
    last_token_s: float = 0.0
    received: int = 0
    """Tokens that came from the engine."""
    token_count: int = 0
    """Tokens of the answer so far."""
    finish: FinishReason | None = None
    """Set when the last piece was taken."""
    stop_reason: int | str | None = None
    """The stop string or stop token id that ended it."""


@frozen
class Piece:
    """News of one choice, ready to be written."""

    choice: Choice
    text: str
    tokens: Tokens


class Exchange:
    """One HTTP request from its submission to its last byte. Mutable: one per request."""

    def __init__(self, streams: "Streams", request_id: str, *, whole: bool) -> None:
        self.request_id = request_id
        self.choices: list[Choice] = []
        self.gone = False
        """The client left, or was dropped: nothing more may be written."""
        self.error: ApiError | None = None
        self.blocked = False
        """A write waits for the reader."""
        self.abort: Callable[[], None] | None = None
        """Closes the connection at once, where the server offers that."""
        self._streams = streams
        self._whole = whole
        self._ready: dict[Choice, None] = {}
        self._wake = asyncio.Event()
        self._finished_count = 0

    @property
    def finished(self) -> bool:
        """Whether every choice was taken to its end."""
        return self._finished_count == len(self.choices)

    async def wait(self) -> None:
        """Return when there is something to take, an error, or the client has gone."""
        await self._wake.wait()
        self._wake.clear()

    def take(self) -> list[Piece]:
        """All that became ready since the last call, merged to one piece a choice."""
        ready, self._ready = self._ready, {}
        return [self._piece(choice) for choice in ready]

    def put(self, choice: Choice, write: StreamWrite) -> None:
        """News of one choice arrived."""
        choice.fresh.extend(write.tokens)
        if failed(write):
            status = write.status if write.status in ERROR_STATUSES else 500
            self.fail(ApiError(status, write.error or "the engine failed"))
            return
        if write.finish is not None:
            choice.last = write
        elif self._whole:
            return  # nobody reads before the end
        elif self.blocked and len(choice.fresh) > UNSENT_TOKENS_MAX:
            log.warning("http.slow_reader", request=self.request_id, unsent_tokens=len(choice.fresh))
            self.leave()
            if self.abort is not None:
                self.abort()
            return
        self._ready[choice] = None
        self._wake.set()

    def fail(self, error: ApiError) -> None:
        """End the request with an error; the other choices are no longer wanted."""
        if self.error is None:
            self.error = error
        self._streams.forget(self.choices)
        self._wake.set()

    def leave(self) -> None:
        """Nobody reads any more: every choice that still runs is given up."""
        self.gone = True
        self._streams.forget(self.choices)
        self._wake.set()

    def _piece(self, choice: Choice) -> Piece:
        fresh, choice.fresh = choice.fresh, tokens()
        last = choice.last
        visible = fresh
        stop_token = None if last is None else last.stop_token
        if stop_token is not None and fresh and fresh[-1] == stop_token:
            visible = fresh[:-1]  # as in vLLM: the token that stopped it counts, but is not shown
        text = choice.text.push(visible)
        if last is not None and choice.text.stopped is None:
            text += choice.text.finish()
        if choice.text.stopped is not None:
            choice.finish = "stop"
            choice.stop_reason = choice.text.stopped
            fresh = fresh[: max(choice.text.token_count - choice.token_count, 0)]
            self._streams.forget([choice], "stop")
        elif last is not None:
            choice.finish = last.finish
            if stop_token is not None and stop_token in choice.generate.sampling.stop_token_ids:
                choice.stop_reason = stop_token
        choice.token_count += len(fresh)
        self._finished_count += choice.finish is not None
        return Piece(choice, text, fresh)


class Streams:
    """Every sequence that runs for this edge, by stream number. Mutable: one per edge."""

    def __init__(
        self,
        say: Say,
        metrics: Metrics,
        clock: Callable[[], float],
        sequences_max: int = 2048,
        tokens_max: int = 8 << 20,
    ) -> None:
        self._sequences_max = sequences_max
        self._tokens_max = tokens_max
        self._tokens = 0
        self._say: Callable[[Any], None] = say
        self._metrics = metrics
        self._clock = clock
        self._running: dict[int, tuple[Exchange, Choice]] = {}
        self._ids: set[str] = set()
        self._exchanges: set[Exchange] = set()
        self._next = 1

    @property
    def request_count(self) -> int:
        """HTTP requests in flight."""
        return len(self._exchanges)

    @property
    def sequence_count(self) -> int:
        """Sequences that still run."""
        return len(self._running)

    def open(
        self, request_id: str, wanted: Sequence[tuple[Generate, Detokenizer]], *, whole: bool, began_s: float
    ) -> Exchange:
        """Submit the sequences of one request; raises ApiError 409 where one of their ids is in flight here, 429.

        `whole` says that nothing is read before the end.
        """
        ids = [generate.request_id for generate, _ in wanted]
        taken = next((id_ for id_ in ids if id_ in self._ids), None)
        if taken is not None:
            raise ApiError(409, f"a request with the id {taken} is in flight; X-Request-ID wants a new one each time")
        self._admit([len(generate.prompt) for generate, _ in wanted])
        # Stop strings need each token as it comes, so that the engine is told at once.
        exchange = Exchange(self, request_id, whole=whole and not any(text.may_stop for _, text in wanted))
        self._exchanges.add(exchange)
        self._ids.update(ids)
        for index, (generate, text) in enumerate(wanted):
            choice = Choice(self._next, index, generate, text, began_s)
            self._next += 1
            exchange.choices.append(choice)
            self._running[choice.stream] = exchange, choice
            self._tokens += len(generate.prompt)
            self._say(Submitted(choice.stream, generate))
        return exchange

    def _admit(self, prompts: Sequence[int]) -> None:
        """Refuse, before any hop, what would be too much at once; raises ApiError 429, or 400 for what always is."""
        for wanted, held, limit, what in (
            (len(prompts), len(self._running), self._sequences_max, "sequences"),
            (sum(prompts), self._tokens, self._tokens_max, "prompt tokens"),
        ):
            if wanted > limit:
                raise ApiError(400, f"this request has {wanted} {what}; this server takes {limit} at once", "prompt")
            if held + wanted > limit:
                raise ApiError(429, f"{held} {what} are in flight here, {limit} may be; try again later")

    def feed(self, write: StreamWrite) -> None:
        """News of one stream; one that was given up is ignored."""
        known = self._running.get(write.stream)
        if known is None:
            return
        exchange, choice = known
        choice.attempts = write.attempts
        choice.cached_tokens = max(choice.cached_tokens, write.cached_tokens)
        if write.rank is not None:
            choice.rank = write.rank
        if write.tokens:
            now_s = self._clock()
            choice.received += len(write.tokens)
            self._metrics.tokens_came(choice, len(write.tokens), now_s)
            choice.last_token_s = now_s
        if failed(write):
            self._end(choice, "error")
        elif write.finish is not None:
            self._end(choice, write.finish)
        exchange.put(choice, write)

    def forget(self, choices: Sequence[Choice], reason: FinishReason = "abort") -> None:
        """Give up those of `choices` that still run."""
        for choice in choices:
            if choice.stream in self._running:
                self._end(choice, reason)
                self._say(ClientGone(choice.stream))

    def abort(self, request_ids: Collection[str]) -> list[str]:
        """End the requests of these ids, or single answers of theirs, as aborted; returns those that were in flight."""
        wanted = set(request_ids)
        ended: dict[str, None] = {}
        for exchange, choice in list(self._running.values()):
            named = wanted & {exchange.request_id, choice.generate.request_id}
            if named and choice.stream in self._running:
                ended.update(dict.fromkeys(sorted(named)))
                self.feed(StreamWrite(choice.stream, tokens(), "abort", rank=choice.rank, attempts=choice.attempts))
                self._say(ClientGone(choice.stream))
        return list(ended)

    def close(self, exchange: Exchange) -> None:
        """The HTTP request is over, whatever the reason."""
        exchange.leave()
        self._exchanges.discard(exchange)

    def fail_all(self, error: ApiError) -> None:
        """End every request in flight with an error."""
        for exchange in list(self._exchanges):
            exchange.fail(error)

    def _end(self, choice: Choice, reason: FinishReason) -> None:
        del self._running[choice.stream]
        self._tokens -= len(choice.generate.prompt)
        self._ids.discard(choice.generate.request_id)
        self._metrics.ended(choice, reason, self._clock())


def failed(write: StreamWrite) -> bool:
    """Whether a stream ends here with an error."""
    return write.error is not None or write.finish == "error"
