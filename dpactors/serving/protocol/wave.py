"""The wave protocol: how ranks in lockstep fall asleep and wake together. Pure; both roles in one file.

Rule 1: whatever decides a wave transition lives here.
Rule 2: every transition that changes the number of forwards or collectives is a function of START messages
        and all-reduced state alone, never of one rank's queue.

Source of the vocabulary: vLLM 0.32 (FIRST_REQ, START_DP_WAVE, wave_complete, start_wave). Where we differ, and why:
  * START goes to every rank, without an excluded one. An excluded rank whose request was aborted before its first
    step never joins, and the others hang in a collective.
  * A rank enters a wave by START only. It has nothing to win by stepping before its peers can.
  * Waking is level-triggered: a paused rank with work repeats WaveWanted until a START answers, so that no single
    lost or late message can strand a request; FIRST_REQ is only the fast path.
  * Ranks acknowledge (WaveJoined); START is repeated until all did. A rank answers a stale START with the wave it
    has completed, so that a coordinator that lost a message or was restarted catches up.
"""

from typing import TypeAlias

from attrs import evolve, frozen

from dpactors.serving.messages import FirstRequest, StartWave, WaveComplete, WaveJoined, WaveWanted

CoordinatorInput: TypeAlias = FirstRequest | WaveWanted | WaveJoined | WaveComplete
RankNews: TypeAlias = WaveWanted | WaveJoined | WaveComplete


@frozen
class CoordinatorWave:
    """What the coordinator knows of the group's wave; frozen so that every interleaving can be explored."""

    size: int
    """Ranks in the group."""
    wave: int = 0
    running: bool = False
    """START for `wave` was sent and no rank has reported its end."""
    joined: frozenset[int] = frozenset()
    """Ranks that acknowledged `wave`."""

    def step(self, event: CoordinatorInput) -> "tuple[CoordinatorWave, StartWave | None]":
        """Take one message; the StartWave, if any, goes to every rank."""
        match event:
            case FirstRequest(wave=wave):
                if self.running:
                    return self, None  # if the group has just paused, the rank's own WaveWanted will come
                return self._start(max(wave, self.wave))
            case WaveWanted(wave=wave):
                if wave < self.wave:
                    return self, None  # sent before that rank took the end of its wave; it repeats
                if wave == self.wave and self.running:
                    return self, StartWave(wave)  # its START is late or lost
                return self._start(wave)
            case WaveJoined(rank=rank, wave=wave):
                if wave < self.wave:
                    return self, None
                if wave == self.wave and self.running:
                    return evolve(self, joined=self.joined | {rank}), None
                # Only a coordinator that was restarted learns of a wave from those who run it.
                return CoordinatorWave(self.size, wave, running=True, joined=frozenset({rank})), StartWave(wave)
            case WaveComplete(wave=wave):
                if wave < self.wave:
                    return self, None
                return CoordinatorWave(self.size, wave + 1), None

    def retry(self) -> StartWave | None:
        """The START to repeat, while some rank has not joined."""
        return StartWave(self.wave) if self.running and len(self.joined) < self.size else None

    def reset(self, wave: int) -> "CoordinatorWave":
        """A new epoch of the group begins paused at `wave`."""
        return CoordinatorWave(self.size, wave)

    def _start(self, wave: int) -> "tuple[CoordinatorWave, StartWave | None]":
        return CoordinatorWave(self.size, wave, running=True), StartWave(wave)


@frozen
class EngineWave:
    """One rank's place in the wave; frozen for the same reason."""

    rank: int
    sync_interval: int = 16
    """Steps between finish agreements; must be equal on all ranks."""
    wave: int = 0
    running: bool = False
    step: int = 0
    """Steps taken in this wave, real and dummy."""
    next_start: int = -1
    """The highest START seen for a wave that this rank has not reached yet."""

    def on_start(self, start: StartWave) -> "tuple[EngineWave, RankNews | None]":
        """Take a START; idempotent."""
        if start.wave < self.wave:
            return self, WaveComplete(self.rank, self.wave - 1)
        if self.running:
            if start.wave == self.wave:
                return self, WaveJoined(self.rank, self.wave)
            return evolve(self, next_start=max(self.next_start, start.wave)), None
        entered = evolve(self, wave=start.wave, running=True, step=0, next_start=-1)
        return entered, WaveJoined(self.rank, start.wave)

    def on_step(self) -> "tuple[EngineWave, bool]":
        """One forward was taken, real or dummy; True where the finish agreement is due now."""
        assert self.running, "a rank steps only inside a wave"
        step = self.step + 1
        return evolve(self, step=step), step == 1 or step % self.sync_interval == 0

    def on_agreed(self, unfinished: int) -> "tuple[EngineWave, tuple[RankNews, ...]]":
        """The finish agreement's result, the same on every rank: how many ranks have work."""
        assert self.running, "an agreement belongs to a running wave"
        if unfinished:
            return self, ()
        done = WaveComplete(self.rank, self.wave)
        paused = evolve(self, wave=self.wave + 1, running=False, step=0)
        if self.next_start >= paused.wave:
            again, joined = paused.on_start(StartWave(self.next_start))
            return again, (done, joined) if joined is not None else (done,)
        return evolve(paused, next_start=-1), (done,)

    def wants(self) -> WaveWanted | None:
        """What a rank with work says while its group is paused."""
        return None if self.running else WaveWanted(self.rank, self.wave)

    def reset(self, wave: int) -> "EngineWave":
        """A new epoch of the group begins paused at `wave`."""
        return EngineWave(self.rank, self.sync_interval, wave)
