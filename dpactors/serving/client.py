"""The DPLB client: owns a request from dispatch to its terminal message and chooses its rank.

vLLM calls it DPLBAsyncMPClient. It keeps request -> rank and the exact number in flight, so that a stale snapshot
can never erase an assignment, and it takes each output position once. When a rank is lost it hands prompt and tokens
so far to another: no token is lost or repeated. vLLM ends all requests of all ranks there.
"""

from attrs import define, field

from dpactors.actor.actor import Actor, Effects
from dpactors.actor.address import Address, Setup
from dpactors.actor.effects import Effect, SetTimer, Undelivered, note
from dpactors.actor.port import inlet, outlet
from dpactors.message.message import Tokens, tokens
from dpactors.serving.messages import (
    Abort,
    Dispatch,
    EngineReady,
    FirstRequest,
    Generate,
    LoadSnapshot,
    RanksReady,
    Reply,
    RequestOutput,
    StepOutputs,
)
from dpactors.serving.policy.choice import Choice, asked
from dpactors.serving.policy.registry import policy_of
from dpactors.serving.protocol.load import LoadView
from dpactors.serving.settings import ClientSettings

TELL_RANKS_S = 0.25
"""How often the ingress hears of changed loads."""


@define
class InFlight:
    """A request between intake and its terminal output. Mutable: one per request."""

    generate: Generate
    rank: int | None
    """None while it waits for a rank to be ready, after its own was lost."""
    attempts: int = 0
    accepted: Tokens = field(factory=tokens)
    """Output tokens handed on; the next one taken is at position len(accepted), all else is a repeat or a gap."""
    held_until_s: float = 0.0


class Client(Actor):
    """Chooses a rank for each request, wakes the group, hands outputs back."""

    Settings = ClientSettings

    intake = inlet(Generate, Abort)
    outputs = inlet(StepOutputs, EngineReady)
    snapshots = inlet(LoadSnapshot, need="group")
    requests = outlet(Dispatch, Abort)
    replies = outlet(Reply, RanksReady, fan="each")
    waves = outlet(FirstRequest, need="group")

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.settings: ClientSettings = setup.settings
        self.choose = policy_of(self.settings)
        self.engines = {peer.index: peer for peer in setup.peers["requests"]}
        self.ready: dict[int, EngineReady] = {}
        clients = setup.sharers.get("requests", 1)
        own = setup.address.index % clients
        start = len(self.engines) * own // clients  # vLLM 0.32: clients begin their scan apart
        self.load = LoadView(setup.address.index, clients, tuple(sorted(self.engines)), start)
        self.in_flight: dict[str, InFlight] = {}
        self.wave = 0
        self.running = False
        self.newest = (0, 0)
        self._ranks_changed = False

    def on_start(self, now_s: float) -> Effects:
        yield SetTimer("ranks", TELL_RANKS_S)
        yield self._ranks()

    def on_timer(self, timer: str, now_s: float) -> Effects:
        yield SetTimer("ranks", TELL_RANKS_S)
        for flight in [f for f in self.in_flight.values() if f.rank is None and now_s >= f.held_until_s]:
            yield self._fail(flight, f"no rank became ready within {self.settings.hold_s:g} s")
        if self._ranks_changed:
            yield self._ranks()

    def on_intake(self, message: Generate | Abort, sender: Address, now_s: float) -> Effects:
        if isinstance(message, Abort):
            yield from self._abort(message)
        elif message.request_id in self.in_flight:
            yield self._refuse(message.request_id, f"request id {message.request_id} is already in flight", 400)
        elif not self.ready:
            yield self._refuse(message.request_id, "no rank is ready")
        elif message.rank is not None and message.rank not in self.ready:
            yield self._refuse(message.request_id, f"rank {message.rank} is not ready; ready: {sorted(self.ready)}")
        else:
            flight = self.in_flight[message.request_id] = InFlight(message, None)
            yield from self._dispatch(flight, now_s)

    def on_outputs(self, message: StepOutputs | EngineReady, sender: Address, now_s: float) -> Effects:
        if isinstance(message, EngineReady):
            self.ready[message.rank] = message
            self.load.add(message.rank, message.max_step_tokens, message.reports_from)
            yield note("rank.ready", rank=message.rank, kv_blocks=message.kv_blocks)
            for flight in list(self.in_flight.values()):
                if flight.rank is None and self._can_place(flight.generate):
                    yield from self._dispatch(flight, now_s)
            yield self._ranks()
            return
        self._ranks_changed |= self.load.learn(message.load, now_s)
        for output in message.outputs:
            yield from self._take(output, message.load.rank)

    def on_snapshots(self, message: LoadSnapshot, sender: Address, now_s: float) -> Effects:
        if (message.epoch, message.sequence) <= self.newest:
            return
        self.newest = (message.epoch, message.sequence)
        if (self.wave, self.running) != (message.wave, message.running):
            self._ranks_changed = True
        self.wave, self.running = message.wave, message.running
        for heard in message.loads:
            self._ranks_changed |= self.load.learn(heard.load, now_s - heard.age_s)
        yield from ()

    def on_peer_lost(self, peer: Address, reason: str, now_s: float) -> Effects:
        if self.engines.get(peer.index) == peer:
            yield from self._lose(peer.index, reason, now_s)
        # else the coordinator: serving goes on with what this client knows itself

    def on_undelivered(self, lost: Undelivered, now_s: float) -> Effects:
        if isinstance(lost.message, Dispatch) and lost.peer.index in self.ready:
            yield from self._lose(lost.peer.index, "it took no message", now_s)

    def status(self) -> dict[str, object]:
        return {"running": len(self.in_flight), "ranks_ready": len(self.ready), "wave": self.wave}

    def check(self) -> None:
        self.load.check()
        for rank, view in self.load.ranks.items():
            assert view.in_flight == sum(f.rank == rank for f in self.in_flight.values()), f"in_flight of {rank}"

    def _lose(self, rank: int, reason: str, now_s: float) -> Effects:
        """A rank is gone: what it was serving goes on elsewhere, as prompt + tokens so far."""
        self.ready.pop(rank, None)
        self.load.remove(rank)
        orphans = [flight for flight in self.in_flight.values() if flight.rank == rank]
        yield note("rank.lost", "warning", rank=rank, reason=reason, requests=len(orphans))
        for flight in orphans:
            flight.rank = None
            flight.held_until_s = now_s + self.settings.hold_s
            if flight.attempts >= self.settings.attempts_max:
                yield self._fail(flight, f"rank {rank} was lost ({reason}), the last of {flight.attempts} attempts")
            elif self._can_place(flight.generate):
                yield from self._dispatch(flight, now_s)
        yield self._ranks()

    def _can_place(self, generate: Generate) -> bool:
        return bool(self.ready) if generate.rank is None else generate.rank in self.ready

    def _dispatch(self, flight: InFlight, now_s: float) -> Effects:
        generate = flight.generate
        if generate.rank is None:
            choice = self.choose(self.load, asked(generate, len(flight.accepted), now_s))
            rank, self.load.turn = choice.rank, choice.turn
            yield self._chose(generate.request_id, choice, now_s)
        else:
            rank = generate.rank
        flight.rank = rank
        flight.attempts += 1
        # The belief that the group runs comes from the coordinator alone; a doubtful FIRST_REQ costs one small message.
        wakes = not self.running and bool(self.setup.peers.get("waves"))
        dispatch = Dispatch(generate, self.wave, self._book(flight, rank), wakes, flight.accepted[:])
        yield note(
            "request.dispatch",
            "debug" if flight.attempts == 1 else "info",
            request=generate.request_id,
            rank=rank,
            wave=self.wave,
            attempt=flight.attempts,
        )
        yield self.requests.to(self.engines[rank], dispatch)
        if wakes:
            for coordinator in self.setup.peers["waves"]:
                yield self.waves.to(coordinator, FirstRequest(rank, dispatch.wave))

    def _book(self, flight: InFlight, rank: int) -> int:
        return self.load.book(rank, len(flight.generate.prompt) + len(flight.accepted))

    def _chose(self, request_id: str, choice: Choice, now_s: float) -> Effect:
        """Why this rank, for the request's story: what was believed then is gone a moment later."""
        view = self.load.ranks[choice.rank]
        return note(
            "client.chose",
            "debug",
            request=request_id,
            policy=self.settings.policy,
            rank=choice.rank,
            score=round(choice.score, 6),
            reason=choice.reason,
            candidates=choice,  # spelled out when somebody writes it down: that costs more than the choice itself
            of=len(self.load.order),
            unseen=view.unseen,
            age_s=round(now_s - view.heard_s, 3) if view.report is not None else None,
        )

    def _take(self, output: RequestOutput, rank: int) -> Effects:
        flight = self.in_flight.get(output.request_id)
        if flight is None or flight.rank != rank:
            return  # aborted meanwhile, or moved
        if output.tokens and output.position != len(flight.accepted):
            yield note("output.repeated", "warning", request=output.request_id, position=output.position)
            return
        flight.accepted.extend(output.tokens)
        if output.finish is not None:
            self._release(output.request_id)
        yield self.replies.each(Reply(rank, flight.attempts, output))

    def _abort(self, abort: Abort) -> Effects:
        by_rank: dict[int, list[str]] = {}
        for request_id in abort.request_ids:
            flight = self.in_flight.get(request_id)
            if flight is not None:
                if flight.rank is not None:
                    by_rank.setdefault(flight.rank, []).append(request_id)
                self._release(request_id)
        for rank, ids in by_rank.items():
            yield self.requests.to(self.engines[rank], Abort(tuple(ids)))

    def _release(self, request_id: str) -> None:
        flight = self.in_flight.pop(request_id)
        if flight.rank is not None:
            self.load.release(flight.rank)

    def _fail(self, flight: InFlight, error: str) -> Effect:
        self._release(flight.generate.request_id)
        return self._error(flight.generate.request_id, len(flight.accepted), flight.attempts, error, 503)

    def _refuse(self, request_id: str, error: str, status: int = 503) -> Effect:
        return self._error(request_id, 0, 1, error, status)

    def _error(self, request_id: str, position: int, attempts: int, error: str, status: int) -> Effect:
        output = RequestOutput(request_id, position, tokens(), "error", None, error, status, 0)
        return self.replies.each(Reply(None, attempts, output))

    def _ranks(self) -> Effect:
        self._ranks_changed = False
        limit = min((ready.max_model_len for ready in self.ready.values()), default=0)
        loads = tuple(view.report for view in self.load.ranks.values() if view.report is not None)
        return self.replies.each(
            RanksReady(tuple(sorted(self.ready)), tuple(sorted(self.engines)), limit, loads, self.wave, self.running)
        )
