"""The engine core: one data-parallel rank that owns a queue and KV blocks.

Its loop is three verbs, one job in flight at a time: **schedule** (`_go`), **run** (a job on the step thread),
**postprocess** (`_stepped`). In a group it steps only inside a wave, with dummy steps where it has no work, and joins
the finish agreement at step 1 and every `sync_interval` steps.
"""

from dpactors.actor.actor import Actor, Effects
from dpactors.actor.address import Address, Setup
from dpactors.actor.effects import CancelJob, FeedJob, Phase, RunJob, SetTimer, note
from dpactors.actor.port import inlet, outlet
from dpactors.serving.jobs import (
    Agreed,
    AgreeIdle,
    JoinExchange,
    KeyKnown,
    KeySet,
    LoadModel,
    ModelLoaded,
    Progress,
    RunStep,
    StepResult,
)
from dpactors.serving.messages import (
    Abort,
    ClientMark,
    Dispatch,
    EngineReady,
    FormGroup,
    GroupJoin,
    GroupKey,
    LoadReport,
    RankLoad,
    RequestOutput,
    StartWave,
    StepOutputs,
    WaveComplete,
    WaveJoined,
    WaveWanted,
)
from dpactors.serving.protocol.wave import EngineWave, RankNews
from dpactors.serving.scheduling.pace import Outlook, Pace
from dpactors.serving.scheduling.scheduler import Scheduler, dummy
from dpactors.serving.settings import EngineSettings

LOAD, JOIN, STEP, AGREE = "load", "join", "step", "agree"
JOIN_RETRY_S = 1.0
"""How often a rank repeats that it wants into the group."""
LOST = "ExchangeLost"
"""Class name of the error by which a collective tells that a member is gone."""


class Engine(Actor):
    """Schedules, steps, reports its load and takes part in waves and epochs."""

    Settings = EngineSettings

    requests = inlet(Dispatch, Abort)
    starts = inlet(StartWave, need="group")
    epochs = inlet(FormGroup, GroupKey, need="group")
    outputs = outlet(StepOutputs, EngineReady)
    loads = outlet(LoadReport, fan="each", delivery="latest", need="never")
    waves = outlet(WaveWanted, WaveJoined, WaveComplete, fan="each", need="group")
    membership = outlet(GroupJoin, GroupKey, fan="each", need="group")

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.settings: EngineSettings = setup.settings
        self.rank = setup.address.index
        self.size = len(setup.group.members) if setup.group else 1
        self.grouped = setup.group is not None
        self.place = setup.group.members.index(setup.address) if setup.group else 0
        """Its place in the group, from 0; the global rank where the group is all engines."""
        self.wave = EngineWave(self.rank, self.settings.sync_interval)
        self.scheduler: Scheduler | None = None
        self.model: ModelLoaded | None = None
        self.job: str | None = LOAD
        """The job on the step thread; one at a time."""
        self.epoch = 0
        self.seen = 0
        """Highest epoch ever told of."""
        self.forming: FormGroup | None = None
        self.keys: list[KeyKnown] = []
        self.accepted: dict[int, int] = {}
        self.real_steps = 0
        self.dummy_steps = 0
        self.last_step_s = 0.0
        self.pace = Pace()
        self.ready = False
        self._broken = False
        self._planned_real = False
        self._report = self._reports_from = 0
        self._reported: tuple[int, int, float] | None = None
        self._waking = False
        self._woken = False

    # ------------------------------------------------------------- life

    def on_start(self, now_s: float) -> Effects:
        s = self.settings
        self._report = self._reports_from = int(now_s * 1000)  # what an earlier life reported is lower, and counts less
        self.last_step_s = now_s
        yield Phase("starting", "loading weights", progress=0.0)
        yield RunJob(
            LOAD,
            LoadModel(
                s.model,
                s.dtype,
                s.threads,
                s.kv_blocks,
                s.block_size,
                s.max_model_len,
                self.place,
                self.size,
            ),
        )

    def on_timer(self, timer: str, now_s: float) -> Effects:
        if timer == "report":
            yield SetTimer("report", self.settings.report_interval_s)
            self.pace.rest(now_s)
            yield from self._report_load(now_s, always=True)
        elif timer == "wake":
            self._waking = False
            yield from self._go(now_s)
        elif timer == JOIN and self.epoch == 0 and self.job is None and self.forming is None:
            yield from self._ask_to_join()

    def on_peer_joined(self, peer: Address, incarnation: int, now_s: float) -> Effects:
        if self.ready and self.model is not None and peer in self.setup.peers["outputs"]:
            yield self.outputs.to(peer, self._engine_ready())
        elif peer in self.setup.peers.get("membership", ()) and self.scheduler is not None:
            yield self.membership.to(peer, self._join())

    def on_peer_lost(self, peer: Address, reason: str, now_s: float) -> Effects:
        """A client is gone, and with it everyone who could read its requests' outputs."""
        if self.scheduler is None or peer not in self.setup.peers["outputs"]:
            return
        self.accepted.pop(peer.index, None)
        ids = self.scheduler.owned_by(peer)
        if ids:
            yield note("requests.orphaned", "warning", client=str(peer), count=len(ids))
            self.scheduler.abort(ids)
            yield from self._report_load(now_s)

    # ------------------------------------------------------------- messages

    def on_requests(self, message: Dispatch | Abort, sender: Address, now_s: float) -> Effects:
        assert self.scheduler is not None, "clients dispatch only after EngineReady"
        if isinstance(message, Abort):
            self.scheduler.abort(message.request_ids)  # the client has let go of them: no output goes back
        else:
            self.accepted[sender.index] = max(message.sequence, self.accepted.get(sender.index, 0))
            self._woken = message.woke and message.wave == self.wave.wave
            refused = self.scheduler.add(message.generate, sender, message.resume)
            if refused is not None:
                yield self.outputs.to(sender, StepOutputs(self._load(now_s), (refused,)))
        yield from self._report_load(now_s)
        yield from self._go(now_s)

    def on_starts(self, message: StartWave, sender: Address, now_s: float) -> Effects:
        if self.epoch == 0:
            return  # this rank is in no group now; joining one begins paused
        self.wave, news = self.wave.on_start(message)
        if news is not None:
            yield from self._tell(news)
        yield from self._go(now_s)

    def on_epochs(self, message: FormGroup | GroupKey, sender: Address, now_s: float) -> Effects:
        if isinstance(message, GroupKey):
            if self.forming is not None and message.epoch == self.forming.epoch:
                self.keys.append(KeyKnown(message.key, message.value))
            elif message.epoch == self.epoch and self.job == JOIN:
                yield FeedJob(JOIN, KeyKnown(message.key, message.value))
            return
        if message.epoch <= self.seen:
            return
        self.forming, self.keys, self.seen = message, [], message.epoch
        if self.job == JOIN:
            yield CancelJob(JOIN)
        yield from self._go(now_s)

    # ------------------------------------------------------------- jobs

    def on_job_said(self, key: str, item: Progress | KeySet, now_s: float) -> Effects:
        if isinstance(item, Progress):
            yield Phase("starting", item.doing, progress=item.fraction)
        else:
            yield self.membership.each(GroupKey(self.epoch, item.key, item.value))

    def on_job_done(self, key: str, result: ModelLoaded | StepResult | Agreed | None, now_s: float) -> Effects:
        self.job = None
        match result:
            case ModelLoaded():
                yield from self._loaded(result, now_s)
            case StepResult():
                yield from self._stepped(result, now_s)
            case Agreed():
                self.wave, news = self.wave.on_agreed(result.unfinished)
                for one in news:
                    yield from self._tell(one)
            case None:
                yield from self._joined(now_s)
        yield from self._go(now_s)

    def on_job_failed(self, key: str, kind: str, error: str, now_s: float) -> Effects:
        self.job = None
        if key == LOAD or (kind != LOST and key != JOIN):
            raise RuntimeError(f"{key}: {kind}: {error}")
        yield note("group.left", "warning", epoch=self.epoch, job=key, error=error)
        self._broken |= key == STEP and self._planned_real
        self.epoch = 0
        self.pace.fail()
        self.wave = self.wave.reset(self.wave.wave)
        if self.forming is None:
            yield from self._ask_to_join()
        yield from self._go(now_s)

    # ------------------------------------------------------------- schedule, run, postprocess

    def _go(self, now_s: float) -> Effects:
        """Start the next job, if there is one to start."""
        if self.job is not None or self.scheduler is None:
            return
        if self.forming is not None:
            yield from self._begin_join(self.forming)
            return
        if self.grouped and not self.wave.running:
            yield from self._want_wave()
            return
        if self._broken:
            self._broken = False
            plan: RunStep | None = self.scheduler.repeat()
        else:
            plan = self.scheduler.plan()
        self._planned_real = plan is not None
        if plan is None and self.grouped:
            plan = dummy()
        if plan is not None:
            self.job = STEP
            prefills = self.scheduler.outlook().step_tokens if self._planned_real else 0
            self.pace.begin(prefills, now_s, dummy=not self._planned_real)
            yield RunJob(STEP, plan)

    def _stepped(self, result: StepResult, now_s: float) -> Effects:
        assert self.scheduler is not None
        self.last_step_s = now_s
        self.pace.end(now_s)
        if self._planned_real:
            self.real_steps += 1
            by_owner: dict[Address, list[RequestOutput]] = {}
            for owner, output in self.scheduler.postprocess(result):
                by_owner.setdefault(owner, []).append(output)
            load = self._load(now_s)
            for owner, outputs in by_owner.items():
                yield self.outputs.to(owner, StepOutputs(load, tuple(outputs)))
        else:
            self.dummy_steps += 1
        if self.grouped:
            self.wave, agreement_due = self.wave.on_step()
            if agreement_due:
                self.job = AGREE
                yield RunJob(AGREE, AgreeIdle(self.scheduler.unfinished))
        yield from self._report_load(now_s)

    # ------------------------------------------------------------- waves and epochs

    def _want_wave(self) -> Effects:
        """Level-triggered: as long as there is work and no START, say so again."""
        assert self.scheduler is not None
        if self.epoch == 0 or not self.scheduler.unfinished or self._waking:
            return
        wanted = self.wave.wants()
        if wanted is not None:
            self._waking = True
            if not self._woken:  # else FIRST_REQ is on its way: ask only if no START comes of it
                yield self.waves.each(wanted)
            self._woken = False
            yield SetTimer("wake", self.settings.wake_retry_s)

    def _tell(self, news: RankNews) -> Effects:
        yield note("wave." + type(news).__name__.removeprefix("Wave").lower(), wave=news.wave, rank=self.rank)
        yield self.waves.each(news)

    def _loaded(self, model: ModelLoaded, now_s: float) -> Effects:
        self.model = model
        self.scheduler = Scheduler(
            self.settings, model.end_tokens, model.max_model_len, model.kv_blocks, model.vocab_size
        )
        if self.grouped:
            yield from self._ask_to_join()
        else:
            yield from self._become_ready()

    def _ask_to_join(self) -> Effects:
        yield Phase("starting", "joining its group", "the other ranks")
        yield self.membership.each(self._join())
        yield SetTimer(JOIN, JOIN_RETRY_S)

    def _begin_join(self, form: FormGroup) -> Effects:
        self.forming = None
        self.epoch = form.epoch
        self.wave = self.wave.reset(form.wave)
        self.job = JOIN
        yield Phase("starting", f"meeting {form.size} ranks", "the other ranks")
        yield RunJob(
            JOIN, JoinExchange(form.epoch, self.place, form.size, self.setup.host_address, self.settings.exchange)
        )
        for key in self.keys:
            yield FeedJob(JOIN, key)
        self.keys = []

    def _joined(self, now_s: float) -> Effects:
        yield note("group.joined", epoch=self.epoch, rank=self.rank)
        yield self.membership.each(self._join())
        yield from self._become_ready()

    def _become_ready(self) -> Effects:
        yield Phase("ready")
        if not self.ready:
            self.ready = True
            yield SetTimer("report", self.settings.report_interval_s)
            for client in self.setup.peers["outputs"]:
                yield self.outputs.to(client, self._engine_ready())

    # ------------------------------------------------------------- what others are told

    def _join(self) -> GroupJoin:
        epoch = 0 if self.job == JOIN else self.epoch
        return GroupJoin(self.place, epoch, self.seen, self.wave.wave, self.wave.running)

    def _engine_ready(self) -> EngineReady:
        assert self.model is not None
        model = self.model
        return EngineReady(
            rank=self.rank,
            model=model.name,
            max_model_len=model.max_model_len,
            kv_blocks=model.kv_blocks,
            block_size=self.settings.block_size,
            max_step_tokens=self.settings.max_step_tokens,
            reports_from=self._reports_from,
        )

    def _load(self, now_s: float) -> RankLoad:
        self._report += 1
        waiting, running, _ = self._queue()
        seen = self.scheduler.outlook() if self.scheduler is not None else Outlook()
        return RankLoad(
            rank=self.rank,
            report=self._report,
            wave=self.wave.wave,
            step=self.real_steps + self.dummy_steps,
            waiting=waiting,
            running=running,
            decoding=seen.decoding,
            waiting_tokens=seen.waiting_tokens,
            pending_tokens=seen.pending_tokens,
            step_tokens=seen.step_tokens,
            step_left_s=self.pace.left_s(seen.step_tokens if waiting or running else None, now_s),
            decode_step_s=self.pace.decode_step_s,
            prefill_token_s=self.pace.prefill_token_s,
            kv_tokens=seen.kv_tokens,
            kv_capacity=self.model.kv_blocks * self.settings.block_size if self.model is not None else 0,
            accepted=tuple(ClientMark(client, sequence) for client, sequence in sorted(self.accepted.items())),
        )

    def _queue(self) -> tuple[int, int, float]:
        if self.scheduler is None:
            return 0, 0, 0.0
        return self.scheduler.waiting, self.scheduler.running, self.scheduler.kv_used

    def _report_load(self, now_s: float, *, always: bool = False) -> Effects:
        now = self._queue()
        if (always or now != self._reported) and self.setup.peers.get("loads"):
            self._reported = now
            yield self.loads.each(LoadReport(self._load(now_s)))

    def status(self) -> dict[str, object]:
        waiting, running, kv_used = self._queue()
        return {
            "rank": self.rank,
            "wave": self.wave.wave,
            "wave_running": self.wave.running,
            "waiting": waiting,
            "running": running,
            "kv_used": round(kv_used, 4),
            "real_steps": self.real_steps,
            "dummy_steps": self.dummy_steps,
            "last_step_s": self.last_step_s,
            "epoch": self.epoch,
        }

    def check(self) -> None:
        if self.scheduler is not None:
            self.scheduler.check()
