"""POST /v1/completions and /v1/chat/completions: bare ASGI, because every token passes here."""

import asyncio
import contextlib
import secrets
import time
import traceback
from collections.abc import Sequence
from typing import Any

import attrs
import structlog
from attrs import frozen

from dpactors.http.body import Receive, Scope, Send, header, read_json, refuse, send_json
from dpactors.http.detokenizer import Detokenizer
from dpactors.http.errors import ApiError, ClientLeft
from dpactors.http.openai import (
    DEFAULT_MAX_TOKENS,
    Options,
    Prompt,
    chat_request,
    completion_request,
    request_id_of,
)
from dpactors.http.shapes import Events, Kind, Reply, error_event, whole
from dpactors.http.state import Edge
from dpactors.http.streams import Exchange, Piece
from dpactors.message.message import Tokens
from dpactors.serving.messages import Generate

log = structlog.get_logger()

SEED_MASK = (1 << 63) - 1
ABORT_EXTENSION = "dpactors.abort"
"""Key in the ASGI scope's extensions: closes the connection at once."""


@frozen
class Asked:
    """A checked request, ready to be submitted."""

    kind: Kind
    request_id: str
    options: Options
    prompts: tuple[Tokens, ...]
    echoes: tuple[str, ...]
    """Text of each prompt where an echo was asked for, else empty."""


class Generation:
    """The two endpoints that generate."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    async def completions(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST /v1/completions."""
        await self._serve("completion", scope, receive, send)

    async def chat(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST /v1/chat/completions."""
        await self._serve("chat", scope, receive, send)

    async def _serve(self, kind: Kind, scope: Scope, receive: Receive, send: Send) -> None:
        began_s = self._edge.clock()
        request_id = secrets.token_hex(16)
        try:
            request_id = request_id_of(header(scope, b"x-request-id")) or request_id
            body = await read_json(scope, receive)
            asked = await self._read(kind, scope, body, request_id)
            await self._answer(asked, began_s, scope, receive, send)
        except ApiError as error:
            await refuse(receive, send, error, _named(request_id))
        except ClientLeft:
            return
        except Exception as error:  # noqa: BLE001  # one request's fault ends that request, never the edge
            # Names and places only: messages of exceptions may quote a prompt.
            log.error("http.request_failed", request=request_id, error=type(error).__name__, at=where(error))  # noqa: TRY400
            failure = ApiError(500, "the server failed on this request; its log says where")
            with contextlib.suppress(
                RuntimeError
            ):  # a response that began is cut short, which no client takes for success
                await send_json(send, 500, failure.body(), _named(request_id))

    async def _read(self, kind: Kind, scope: Scope, body: object, request_id: str) -> Asked:
        edge, text = self._edge, self._edge.text
        rank_header = header(scope, b"x-data-parallel-rank")
        if kind == "chat":
            chat = chat_request(body, rank_header, text.defaults)
            self._check(chat.options)
            return Asked(kind, request_id, chat.options, (self._fits(await text.encode_chat(chat), chat.options),), ())
        completion = completion_request(body, rank_header, text.defaults)
        options = completion.options
        self._check(options)
        prompts = tuple([await self._encode(prompt, options) for prompt in completion.prompts])
        echoes: tuple[str, ...] = ()
        if completion.echo:
            echoes = tuple(
                prompt if isinstance(prompt, str) else edge.text.decode(prompt, skip_special_tokens=False)
                for prompt in completion.prompts
            )
        return Asked(kind, request_id, options, prompts, echoes)

    def _check(self, options: Options) -> None:
        """What only the edge knows: the model's name and the ranks."""
        edge = self._edge
        if options.model is not None and options.model != edge.job.served_name:
            message = f"the model {options.model!r} does not exist; this server has {edge.job.served_name!r}"
            raise ApiError(404, message, "model")
        if options.rank is None:
            return
        ranks = edge.now.all
        if ranks and options.rank not in ranks:
            raise ApiError(
                400, f"rank {options.rank} does not exist here; ranks: {sorted(ranks)}", "data_parallel_rank"
            )

    async def _encode(self, prompt: Prompt, options: Options) -> Tokens:
        if isinstance(prompt, str):
            return self._fits(
                await self._edge.text.encode(prompt, add_special_tokens=options.add_special_tokens), options
            )
        vocabulary = self._edge.text.vocabulary
        if max(prompt) >= vocabulary:
            raise ApiError(400, f"prompt has token id {max(prompt)}; this model's end at {vocabulary - 1}", "prompt")
        return self._fits(prompt, options)

    def _fits(self, prompt: Tokens, options: Options) -> Tokens:
        context = self._edge.context
        if not prompt:
            raise ApiError(400, "the prompt is empty: it has no token", "prompt")
        if context and len(prompt) >= context:
            message = f"this model's context is {context} tokens; the prompt has {len(prompt)} and leaves no room"
            raise ApiError(400, message, "prompt")
        if context and options.max_tokens is not None and len(prompt) + options.max_tokens > context:
            message = (
                f"this model's context is {context} tokens; the prompt has {len(prompt)} and max_tokens "
                f"{options.max_tokens} more: at most {context - len(prompt)} fit"
            )
            raise ApiError(400, message, "max_tokens")
        return prompt

    def _wanted(self, asked: Asked) -> list[tuple[Generate, Detokenizer]]:
        edge, options = self._edge, asked.options
        wanted: list[tuple[Generate, Detokenizer]] = []
        for prompt in asked.prompts:
            max_tokens = options.max_tokens
            if max_tokens is None:
                rest = max(edge.context - len(prompt), 1)
                max_tokens = rest if asked.kind == "chat" else min(DEFAULT_MAX_TOKENS, rest)
            for copy in range(options.n):
                # As in vLLM: the n answers of one seed differ, and each can be had again.
                seed = secrets.randbits(63) if options.seed is None else (options.seed + copy) & SEED_MASK
                name = asked.request_id if not wanted else f"{asked.request_id}-{len(wanted)}"
                sampling = attrs.evolve(options.sampling, seed=seed)
                generate = Generate(name, prompt, max_tokens, sampling, options.rank)
                detokenizer = Detokenizer(
                    edge.text.tokenizer,
                    options.stop,
                    special=edge.text.special if options.skip_special_tokens else frozenset(),
                    include_stop=options.include_stop,
                    min_tokens=options.sampling.min_tokens,
                )
                wanted.append((generate, detokenizer))
        return wanted

    async def _answer(self, asked: Asked, began_s: float, scope: Scope, receive: Receive, send: Send) -> None:
        edge, options = self._edge, asked.options
        if edge.stopping:
            raise ApiError(503, "this server is shutting down")
        exchange = edge.streams.open(asked.request_id, self._wanted(asked), whole=not options.stream, began_s=began_s)
        extensions: dict[str, Any] = scope.get("extensions") or {}
        exchange.abort = extensions.get(ABORT_EXTENSION)
        watcher = asyncio.create_task(_watch(receive, exchange))
        reply = Reply(
            asked.kind,
            asked.request_id,
            edge.job.served_name,
            int(time.time()),
            tuple(echo for echo in asked.echoes for _ in range(options.n)),
            options.return_token_ids,
            options.include_usage,
            options.continuous_usage,
        )
        try:
            if options.stream:
                await _stream(exchange, Events(reply, exchange.choices, options.n), send)
            else:
                await _once(exchange, reply, options.n, send)
        finally:
            watcher.cancel()
            edge.streams.close(exchange)


async def _watch(receive: Receive, exchange: Exchange) -> None:
    """See the client leave, whatever phase its request is in."""
    while (await receive())["type"] != "http.disconnect":
        pass
    exchange.leave()


async def _once(exchange: Exchange, reply: Reply, per_prompt: int, send: Send) -> None:
    """Gather every choice, then answer in one write."""
    parts: dict[int, list[Piece]] = {choice.index: [] for choice in exchange.choices}
    while not exchange.finished:
        await exchange.wait()
        if exchange.gone:
            return
        if exchange.error is not None:
            raise exchange.error
        for piece in exchange.take():
            parts[piece.choice.index].append(piece)
    body = whole(reply, [_joined(pieces) for pieces in parts.values()], per_prompt)
    await send_json(send, 200, body, _named(exchange.request_id) + _served_by(exchange))


def _joined(pieces: Sequence[Piece]) -> Piece:
    if len(pieces) == 1:
        return pieces[0]
    tokens = pieces[0].tokens[:]
    for piece in pieces[1:]:
        tokens.extend(piece.tokens)
    return Piece(pieces[0].choice, "".join([piece.text for piece in pieces]), tokens)


async def _stream(exchange: Exchange, events: Events, send: Send) -> None:
    """Write what is ready as it becomes ready; headers wait for the first news, which says whether it is an error."""
    started = False
    while not exchange.finished:
        await exchange.wait()
        if exchange.gone:
            return
        body = b"".join([events.of(piece) for piece in exchange.take()])
        error = exchange.error
        if error is not None and not started:
            raise error
        if not started:
            started = exchange.blocked = True
            await send({"type": "http.response.start", "status": 200, "headers": _event_headers(exchange)})
        if error is not None:
            # Neither [DONE] nor the last HTTP chunk follows: no client can take this for success.
            await send({"type": "http.response.body", "body": body + error_event(error), "more_body": True})
            return
        more = not exchange.finished
        if not more:
            body += events.end()
        if body:
            exchange.blocked = True
            await send({"type": "http.response.body", "body": body, "more_body": more})
            exchange.blocked = False


def _event_headers(exchange: Exchange) -> list[tuple[bytes, bytes]]:
    return [
        (b"content-type", b"text/event-stream; charset=utf-8"),
        (b"cache-control", b"no-cache"),
        (b"x-accel-buffering", b"no"),  # nginx would hold events back
        *_named(exchange.request_id),
        *_served_by(exchange),
    ]


def _named(request_id: str) -> list[tuple[bytes, bytes]]:
    return [(b"x-request-id", request_id.encode())]


def _served_by(exchange: Exchange) -> list[tuple[bytes, bytes]]:
    """Ranks known by now in order of choices, each once, and the most attempts that one of them took."""
    ranks = dict.fromkeys(str(choice.rank) for choice in exchange.choices if choice.rank is not None)
    attempts = max(choice.attempts for choice in exchange.choices)
    found = [(b"x-dpactors-attempts", b"%d" % attempts)]
    return [(b"x-dpactors-rank", ",".join(ranks).encode()), *found] if ranks else found


def where(error: BaseException) -> str:
    """The innermost place an exception was raised at, without its message."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno} {frames[-1].name}" if frames else ""
