"""The DP coordinator: loads from ranks to clients, waves and epochs of the lockstep group.

It holds nothing that ranks do not announce again, so killing it loses nothing: a new one learns the epoch and the
wave from the first words of the ranks (see protocol/wave.py and protocol/membership.py).
"""

from dpactors.actor.actor import Actor, Effects
from dpactors.actor.address import Address, Setup
from dpactors.actor.effects import Effect, SetTimer, note
from dpactors.actor.port import inlet, outlet
from dpactors.serving.messages import (
    FirstRequest,
    FormGroup,
    GroupJoin,
    GroupKey,
    HeardLoad,
    LoadReport,
    LoadSnapshot,
    RankLoad,
    StartWave,
    WaveComplete,
    WaveJoined,
    WaveWanted,
)
from dpactors.serving.protocol.membership import Membership
from dpactors.serving.protocol.wave import CoordinatorWave
from dpactors.serving.settings import CoordinatorSettings

IDLE_SNAPSHOT_EVERY = 10
"""Intervals without change after which the snapshot is published all the same, to repair a lost one."""


class Coordinator(Actor):
    """Gathers loads, publishes snapshots, starts waves, forms epochs."""

    Settings = CoordinatorSettings

    loads = inlet(LoadReport, need="never")
    waves = inlet(FirstRequest, WaveWanted, WaveJoined, WaveComplete, need="never")
    membership = inlet(GroupJoin, GroupKey, need="never")
    starts = outlet(StartWave, fan="each", need="never")
    epochs = outlet(FormGroup, GroupKey, fan="each", need="never")
    snapshots = outlet(LoadSnapshot, fan="each", delivery="latest", need="never")

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.settings: CoordinatorSettings = setup.settings
        size = len(setup.group.members) if setup.group else 0
        self.wave = CoordinatorWave(size)
        self.group = Membership(size)
        self.rank_loads: dict[int, tuple[RankLoad, float]] = {}
        """Newest load of each rank, and when it was heard."""
        self.born = 0
        self.sequence = 0
        self._changed = False
        self._quiet = 0
        self._retrying = False

    def on_start(self, now_s: float) -> Effects:
        self.born = int(now_s * 1000)
        yield SetTimer("publish", self.settings.snapshot_interval_s)

    def on_timer(self, timer: str, now_s: float) -> Effects:
        if timer == "publish":
            yield SetTimer("publish", self.settings.snapshot_interval_s)
            self._quiet += 1
            if self._changed or self._quiet >= IDLE_SNAPSHOT_EVERY:
                yield self._snapshot(now_s)
        else:
            yield from self._retry_start()

    def on_loads(self, message: LoadReport, sender: Address, now_s: float) -> Effects:
        known = self.rank_loads.get(message.load.rank)
        if known is None or known[0].report < message.load.report:
            self.rank_loads[message.load.rank] = message.load, now_s
            self._changed = True
        return ()

    def on_waves(
        self, message: FirstRequest | WaveWanted | WaveJoined | WaveComplete, sender: Address, now_s: float
    ) -> Effects:
        if not isinstance(message, FirstRequest) and not self._in_epoch(sender):
            return  # of an epoch that is over, or said before its GroupJoin: what still holds is said again
        before = self.wave
        self.wave, start = self.wave.step(message)
        if start is not None:
            yield note("wave.start", wave=start.wave, cause=type(message).__name__, rank=message.rank)
            yield self.starts.each(start)
            yield from self._arm()
        if (before.wave, before.running) != (self.wave.wave, self.wave.running):
            if not self.wave.running:
                yield note("wave.complete", wave=before.wave)
            yield self._snapshot(now_s)

    def on_membership(self, message: GroupJoin | GroupKey, sender: Address, now_s: float) -> Effects:
        if isinstance(message, GroupKey):
            if message.epoch == self.group.epoch:
                yield self.epochs.each(message)
            return
        before = self.group
        self.group, form, only = before.on_join(message)
        if form is not None and only is not None:
            yield self.epochs.to(sender, form)
        elif form is not None:
            self.wave = self.wave.reset(form.wave)
            yield note("group.form", epoch=form.epoch, size=form.size, wave=form.wave)
            yield self.epochs.each(form)
            yield self._snapshot(now_s)
        elif self.group.complete and message.running:
            # A coordinator that was restarted while a wave runs hears of it here.
            yield from self.on_waves(WaveJoined(message.rank, message.wave), sender, now_s)
        elif self.group.complete and message.wave > self.wave.wave:
            self.wave = self.wave.reset(message.wave)
            yield self._snapshot(now_s)
        elif self.group.complete and not before.complete:
            yield note("group.complete", epoch=self.group.epoch, size=self.group.size)

    def on_peer_lost(self, peer: Address, reason: str, now_s: float) -> Effects:
        if self.setup.group is not None and peer in self.setup.group.members:
            self.group = self.group.on_lost(self.setup.group.members.index(peer))
        if peer in self.setup.sources.get("loads", ()):
            self.rank_loads.pop(peer.index, None)
            self._changed = True
        return ()

    def status(self) -> dict[str, object]:
        return {"wave": self.wave.wave, "wave_running": self.wave.running, "epoch": self.group.epoch}

    def _in_epoch(self, rank: Address) -> bool:
        members = self.setup.group.members if self.setup.group else ()
        return rank in members and self.group.has(members.index(rank))

    def _snapshot(self, now_s: float) -> Effect:
        self._changed = False
        self._quiet = 0
        self.sequence += 1
        loads = tuple(HeardLoad(load, now_s - heard_s) for _, (load, heard_s) in sorted(self.rank_loads.items()))
        return self.snapshots.each(LoadSnapshot(self.born, self.sequence, loads, self.wave.wave, self.wave.running))

    def _arm(self) -> Effects:
        if not self._retrying:
            self._retrying = True
            yield SetTimer("start", self.settings.start_retry_s)

    def _retry_start(self) -> Effects:
        self._retrying = False
        start = self.wave.retry()
        if start is not None:
            missing = sorted(set(range(self.wave.size)) - self.wave.joined)
            yield note("wave.start_again", "warning", wave=start.wave, missing=missing)
            yield self.starts.each(start)
            yield from self._arm()
