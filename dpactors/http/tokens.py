"""Endpoints beside generation: text to tokens and back, what this server is, and the end of requests by name."""

from collections.abc import Mapping
from typing import Any, cast

import attrs
import orjson
from starlette.requests import Request
from starlette.responses import Response

from dpactors.http.body import read_json
from dpactors.http.errors import ApiError
from dpactors.http.fields import Fields, field_error
from dpactors.http.openai import chat_request
from dpactors.http.state import Edge

TOKENS_MAX = 1 << 20
"""Token ids of one /detokenize; what fits a body is about as many."""
ABORTED_MAX = 1024
"""Request ids of one /abort_requests."""


class Tools:
    """What needs no rank. Shapes are vLLM 0.32's, so that its clients work unchanged."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    async def tokenize(self, request: Request) -> Response:
        """POST /tokenize: a prompt or a conversation as token ids."""
        text = self._edge.text
        body = await _object(request)
        fields = Fields.of(body)
        self._check_model(fields)
        if fields.get("messages") is not None:
            ids = await text.encode_chat(chat_request(body, None, text.defaults))
        else:
            prompt = fields.text("prompt")
            if prompt is None:
                raise field_error("prompt", "is missing; give prompt or messages")
            ids = await text.encode(prompt, add_special_tokens=fields.boolean("add_special_tokens", default=True))
        strings = (
            [text.tokenizer.id_to_token(one) for one in ids]
            if fields.boolean("return_token_strs", default=False)
            else None
        )
        return _json(
            {"count": len(ids), "max_model_len": self._edge.context, "tokens": list(ids), "token_strs": strings}
        )

    async def detokenize(self, request: Request) -> Response:
        """POST /detokenize: token ids as text."""
        fields = Fields.of(await _object(request))
        self._check_model(fields)
        if fields.get("tokens") is None:
            raise field_error("tokens", "is missing")
        ids = fields.integers("tokens", TOKENS_MAX)
        vocabulary = self._edge.text.vocabulary
        if wrong := [one for one in ids if not 0 <= one < vocabulary]:
            raise field_error("tokens", f"has token id {wrong[0]}; this model's end at {vocabulary - 1}")
        return _json({"prompt": self._edge.text.decode(ids, skip_special_tokens=False)})

    async def server_info(self, request: Request) -> Response:
        """GET /server_info: model, ranks and what each has to do, as far as this front end knows."""
        edge = self._edge
        now = edge.now
        loads = {load.rank: attrs.asdict(load, filter=_plain) for load in now.loads}
        ranks = [{"rank": rank, "ready": rank in now.ready, **loads.get(rank, {})} for rank in sorted(now.all)]
        return _json(
            {
                "version": edge.version,
                "model": edge.job.served_name,
                "root": edge.job.model,
                "max_model_len": edge.context or None,
                "requests": edge.streams.request_count,
                "wave": now.wave,
                "wave_running": now.running,
                "stopping": edge.stopping,
                "ranks": ranks,
            }
        )

    async def abort(self, request: Request) -> Response:
        """POST /abort_requests: end requests by their ids; unknown ones are no error."""
        wanted = (await _object(request)).get("request_ids")
        if not isinstance(wanted, list) or len(cast("list[Any]", wanted)) > ABORTED_MAX:
            raise field_error("request_ids", f"wants a list of up to {ABORTED_MAX} request ids")
        ids = cast("list[Any]", wanted)
        if not all(isinstance(one, str) for one in ids):
            raise field_error("request_ids", "wants texts")
        return _json({"aborted": self._edge.streams.abort(ids)})

    def _check_model(self, fields: Fields) -> None:
        model = fields.text("model")
        if model is not None and model != self._edge.job.served_name:
            message = f"the model {model!r} does not exist; this server has {self._edge.job.served_name!r}"
            raise ApiError(404, message, "model")


def _plain(_: Any, value: Any) -> bool:
    return isinstance(value, int | float | str | bool)


async def _object(request: Request) -> Mapping[str, Any]:
    body = await read_json(request.scope, request.receive)
    if not isinstance(body, dict):
        raise ApiError(400, "the body wants to be a JSON object")
    return cast("dict[str, Any]", body)


def _json(content: object) -> Response:
    return Response(orjson.dumps(content), media_type="application/json")
