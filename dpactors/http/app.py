"""All routes of one edge."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dpactors.http.body import Receive, Scope, Send, refuse
from dpactors.http.errors import RETRY_AFTER_S, ApiError, ClientLeft
from dpactors.http.generation import Generation
from dpactors.http.keys import Doorman
from dpactors.http.state import Edge
from dpactors.http.tokens import Tools


def build_app(edge: Edge, doorman: Doorman) -> "App":
    """The ASGI application of `edge`."""
    return App(edge, doorman)


class App:
    """Sends the two endpoints that generate past starlette, and all else through it."""

    def __init__(self, edge: Edge, doorman: Doorman) -> None:
        self._doorman = doorman
        generation = Generation(edge)
        self._hot = {
            ("POST", "/v1/completions"): generation.completions,
            ("POST", "/v1/chat/completions"): generation.chat,
        }
        self._cold = _cold_routes(Probes(edge), Tools(edge), sorted(path for _, path in self._hot))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection."""
        if scope["type"] != "http":
            return
        if (refusal := self._doorman.refusal(scope["path"], scope["headers"])) is not None:
            await refuse(receive, send, refusal)
            return
        hot = self._hot.get((scope["method"], scope["path"]))
        if hot is not None:
            await hot(scope, receive, send)
        else:
            await self._cold(scope, receive, send)


class Probes:
    """The endpoints that tell how things are."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    async def models(self, request: Request) -> Response:
        """GET /v1/models."""
        return _json({"object": "list", "data": [self._card()]})

    async def model(self, request: Request) -> Response:
        """GET /v1/models/NAME."""
        name = request.path_params["name"]
        if name != self._edge.job.served_name:
            raise ApiError(404, f"the model {name!r} does not exist", "model")
        return _json(self._card())

    async def health(self, request: Request) -> Response:
        """GET /health: this process lives and takes requests."""
        stopping = self._edge.stopping
        return _json({"status": "stopping" if stopping else "alive"}, 503 if stopping else 200)

    async def ready(self, request: Request) -> Response:
        """GET /ready: every rank can take requests."""
        edge = self._edge
        told = {"ready": list(edge.now.ready), "total": len(edge.now.all), "waits_for": edge.missing_ranks()}
        return _json(told, 200 if edge.is_ready() else 503)

    async def metrics(self, request: Request) -> Response:
        """GET /metrics."""
        body, kind = self._edge.metrics.expose(request.headers.get("accept", ""))
        return Response(body, headers={"content-type": kind})

    async def version(self, request: Request) -> Response:
        """GET /version."""
        return _json({"version": self._edge.version})

    async def load(self, request: Request) -> Response:
        """GET /load: HTTP requests in flight here, as vLLM tells it."""
        return _json({"server_load": self._edge.streams.request_count})

    def _card(self) -> dict[str, object]:
        edge = self._edge
        return {
            "id": edge.job.served_name,
            "object": "model",
            "created": edge.created,
            "owned_by": "dpactors",
            "root": edge.job.model,
            "parent": None,
            "max_model_len": edge.context or None,
            "permission": [],
        }


def _cold_routes(probes: Probes, tools: Tools, posts: list[str]) -> Starlette:
    routes = [
        Route("/v1/models", probes.models, methods=["GET"]),
        Route("/v1/models/{name:path}", probes.model, methods=["GET"]),
        Route("/health", probes.health, methods=["GET"]),
        Route("/ready", probes.ready, methods=["GET"]),
        Route("/metrics", probes.metrics, methods=["GET"]),
        Route("/version", probes.version, methods=["GET"]),
        Route("/load", probes.load, methods=["GET"]),
        Route("/ping", probes.health, methods=["GET", "POST"]),
        Route("/server_info", tools.server_info, methods=["GET"]),
        Route("/tokenize", tools.tokenize, methods=["POST"]),
        Route("/detokenize", tools.detokenize, methods=["POST"]),
        Route("/abort_requests", tools.abort, methods=["POST"]),
        *[Route(path, _post_only, methods=["GET"]) for path in posts],
    ]
    return Starlette(routes=routes, exception_handlers=_HANDLERS)


async def _post_only(_: Request) -> Response:
    raise HTTPException(405, headers={"Allow": "POST"})


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    known = {404: f"no such path: {request.url.path}", 405: f"{request.method} is not allowed on {request.url.path}"}
    found = ApiError(error.status_code, known.get(error.status_code, error.detail))
    return Response(found.body(), error.status_code, dict(error.headers or {}), "application/json")


async def _api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return Response(error.body(), error.status, media_type="application/json")


async def _left(_: Request, __: Exception) -> Response:
    """Nobody is there to read it."""
    return Response(status_code=400)


_HANDLERS: Mapping[Any, Any] = {HTTPException: _http_error, ApiError: _api_error, ClientLeft: _left}


def _json(content: object, status: int = 200) -> Response:
    headers = {"retry-after": str(RETRY_AFTER_S)} if status == HTTPStatus.SERVICE_UNAVAILABLE else None
    return Response(orjson.dumps(content), status, headers, "application/json")
