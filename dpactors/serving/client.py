"""The DPLB client: owns a request from dispatch to its terminal message and chooses its rank.

vLLM calls it DPLBAsyncMPClient. It keeps request -> rank and the exact number in flight, so that a stale snapshot
can never erase an assignment, and it takes each output position once.
"""

from array import array

from attrs import define

from dpactors.actor.actor import Actor, Effects
from dpactors.actor.address import Address, Setup
from dpactors.actor.effects import Effect, SetTimer, Undelivered, note
from dpactors.actor.port import inlet, outlet
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
from dpactors.serving.policy.choose import POLICIES
from dpactors.serving.protocol.load import LoadView
from dpactors.serving.settings import ClientSettings

TELL_RANKS_S = 0.25
"""How often the ingress hears of changed loads."""


@define
class InFlight:
    """A request between dispatch and its terminal output. Mutable: one per request."""

    rank: int
    next_position: int = 0
    """Output tokens already handed on; anything else is a repeat or a gap."""


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
        self.choose = POLICIES[self.settings.policy]
        self.engines = {peer.index: peer for peer in setup.peers["requests"]}
        self.ready: dict[int, EngineReady] = {}
        clients = setup.sharers.get("requests", 1)
        own = setup.address.index % clients
        start = len(self.engines) * own // clients  # vLLM 0.32: clients begin their scan apart
        self.load = LoadView(setup.address.index, clients, {}, start)
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
            yield from self._dispatch(message)

    def on_outputs(self, message: StepOutputs | EngineReady, sender: Address, now_s: float) -> Effects:
        if isinstance(message, EngineReady):
            self.ready[message.rank] = message
            self.load.add(message.rank)
            yield note("rank.ready", rank=message.rank, kv_blocks=message.kv_blocks)
            yield self._ranks()
            return
        self._ranks_changed |= self.load.learn(message.load)
        for output in message.outputs:
            yield from self._take(output, message.load.rank)

    def on_snapshots(self, message: LoadSnapshot, sender: Address, now_s: float) -> Effects:
        if (message.epoch, message.sequence) <= self.newest:
            return
        self.newest = (message.epoch, message.sequence)
        if (self.wave, self.running) != (message.wave, message.running):
            self._ranks_changed = True
        self.wave, self.running = message.wave, message.running
        for load in message.loads:
            self._ranks_changed |= self.load.learn(load)
        yield from ()

    def on_peer_lost(self, peer: Address, reason: str, now_s: float) -> Effects:
        if self.engines.get(peer.index) != peer:
            return  # the coordinator: serving goes on with what this client knows itself
        self.ready.pop(peer.index, None)
        self.load.remove(peer.index)
        yield note("rank.lost", "warning", rank=peer.index, reason=reason)
        for request_id in [r for r, flight in self.in_flight.items() if flight.rank == peer.index]:
            yield self._fail(request_id, f"rank {peer.index} was lost ({reason})")
        yield self._ranks()

    def on_undelivered(self, lost: Undelivered, now_s: float) -> Effects:
        if isinstance(lost.message, Dispatch) and lost.message.generate.request_id in self.in_flight:
            yield self._fail(lost.message.generate.request_id, f"{lost.peer} was lost before it took the request")

    def status(self) -> dict[str, object]:
        return {"running": len(self.in_flight), "ranks_ready": len(self.ready), "wave": self.wave}

    def check(self) -> None:
        for rank, view in self.load.ranks.items():
            assert view.in_flight == sum(f.rank == rank for f in self.in_flight.values()), f"in_flight of {rank}"

    def _dispatch(self, generate: Generate) -> Effects:
        if generate.rank is None:
            choice = self.choose(self.load)
            rank, score = choice.rank, choice.score
            self.load.start += choice.rotate
        else:
            rank, score = generate.rank, -1.0
        self.in_flight[generate.request_id] = InFlight(rank)
        dispatch = Dispatch(generate, self.wave, self.load.book(rank))
        yield note("request.dispatch", "debug", request=generate.request_id, rank=rank, score=score, wave=self.wave)
        yield self.requests.to(self.engines[rank], dispatch)
        # The belief that the group runs comes from the coordinator alone; a doubtful FIRST_REQ costs one small message.
        if not self.running:
            for coordinator in self.setup.peers.get("waves", ()):
                yield self.waves.to(coordinator, FirstRequest(rank, dispatch.wave))

    def _take(self, output: RequestOutput, rank: int) -> Effects:
        flight = self.in_flight.get(output.request_id)
        if flight is None or flight.rank != rank:
            return  # aborted meanwhile, or moved
        if output.tokens and output.position != flight.next_position:
            yield note("output.repeated", "warning", request=output.request_id, position=output.position)
            return
        flight.next_position += len(output.tokens)
        if output.finish is not None:
            self._release(output.request_id)
        yield self.replies.each(Reply(rank, 1, output))

    def _abort(self, abort: Abort) -> Effects:
        by_rank: dict[int, list[str]] = {}
        for request_id in abort.request_ids:
            if request_id in self.in_flight:
                by_rank.setdefault(self.in_flight[request_id].rank, []).append(request_id)
                self._release(request_id)
        for rank, ids in by_rank.items():
            if rank in self.ready:
                yield self.requests.to(self.engines[rank], Abort(tuple(ids)))

    def _release(self, request_id: str) -> None:
        self.load.release(self.in_flight.pop(request_id).rank)

    def _fail(self, request_id: str, error: str) -> Effect:
        rank = self.in_flight[request_id].rank
        position = self.in_flight[request_id].next_position
        self._release(request_id)
        return self._error(request_id, rank, position, error)

    def _refuse(self, request_id: str, error: str, status: int = 503) -> Effect:
        return self._error(request_id, None, 0, error, status)

    def _error(self, request_id: str, rank: int | None, position: int, error: str, status: int = 503) -> Effect:
        output = RequestOutput(request_id, position, array("i"), "error", None, error, status, 0)
        return self.replies.each(Reply(rank, 1, output))

    def _ranks(self) -> Effect:
        self._ranks_changed = False
        limit = min((ready.max_model_len for ready in self.ready.values()), default=0)
        loads = tuple(view.report for view in self.load.ranks.values() if view.report is not None)
        return self.replies.each(
            RanksReady(tuple(sorted(self.ready)), tuple(sorted(self.engines)), limit, loads, self.wave, self.running)
        )
