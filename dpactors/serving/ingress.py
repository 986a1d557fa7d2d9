"""The ingress: between the HTTP edge of its process and the client beside it."""

from dpactors.actor.actor import Actor, Effects
from dpactors.actor.address import Address, Setup
from dpactors.actor.effects import FeedJob, Phase, RunJob, note
from dpactors.actor.port import inlet, outlet
from dpactors.serving.jobs import Availability, ClientGone, Listening, ServeHttp, StreamWrite, Submitted
from dpactors.serving.messages import Abort, Generate, RanksReady, Reply
from dpactors.serving.settings import IngressSettings

HTTP = "http"


class Ingress(Actor):
    """Owns which stream belongs to which request; a client that leaves aborts its request."""

    Settings = IngressSettings

    requests = outlet(Generate, Abort)
    replies = inlet(Reply, RanksReady)

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.settings: IngressSettings = setup.settings
        (self.client,) = setup.peers["requests"]
        self.streams: dict[str, int] = {}
        self.requests_of: dict[int, str] = {}
        self.urls: tuple[str, ...] = ()
        self.ranks = RanksReady((), (), 0, (), 0, running=False)
        self._was_ready = False

    def on_start(self, now_s: float) -> Effects:
        name = self.settings.served_name or self.settings.model.rstrip("/").rpartition("/")[2]
        yield Phase("starting", "opening HTTP")
        one = self.settings
        yield RunJob(HTTP, ServeHttp(one.model, name, one.listen, one.sequences_max, one.tokens_max, one.api_keys))

    def on_job_said(self, key: str, item: Listening | Submitted | ClientGone, now_s: float) -> Effects:
        match item:
            case Listening():
                self.urls = item.urls
                yield note("http.listening", urls=list(item.urls))
                yield from self._phase()
            case Submitted():
                request_id = item.generate.request_id
                self.streams[request_id] = item.stream
                self.requests_of[item.stream] = request_id
                yield self.requests.to(self.client, item.generate)
            case ClientGone():
                request_id = self.requests_of.get(item.stream)
                if request_id is not None:
                    self._forget(request_id)
                    yield note("request.client_gone", request=request_id)
                    yield self.requests.to(self.client, Abort((request_id,)))

    def on_replies(self, message: Reply | RanksReady, sender: Address, now_s: float) -> Effects:
        if isinstance(message, RanksReady):
            self.ranks = message
            yield FeedJob(HTTP, self._availability())
            yield from self._phase()
            return
        output = message.output
        stream = self.streams.get(output.request_id)
        if stream is None:
            return
        if output.finish is not None:
            self._forget(output.request_id)
        yield FeedJob(
            HTTP,
            StreamWrite(
                stream,
                output.tokens,
                output.finish,
                output.stop_token,
                output.error,
                output.status,
                message.rank,
                message.attempts,
                output.cached_tokens,
            ),
        )

    def status(self) -> dict[str, object]:
        return {"running": len(self.streams), "urls": list(self.urls)}

    def check(self) -> None:
        assert {v: k for k, v in self.streams.items()} == self.requests_of, "streams and requests disagree"

    def _forget(self, request_id: str) -> None:
        self.requests_of.pop(self.streams.pop(request_id))

    def _availability(self) -> Availability:
        ranks = self.ranks
        return Availability(ranks.ready, ranks.all, ranks.max_model_len, ranks.loads, ranks.wave, ranks.running)

    def _phase(self) -> Effects:
        """Ready needs an open port and every rank; later losses show in /ready, not in the start table."""
        missing = sorted(set(self.ranks.all) - set(self.ranks.ready))
        if not self.urls or self._was_ready:
            return
        if missing or not self.ranks.all:
            yield Phase("starting", "waiting for ranks", f"ranks {missing}" if missing else "its client")
            return
        self._was_ready = True
        yield Phase("ready")
