"""How fast a rank has been of late, and what it has before it: what its load report foretells. Pure."""

from attrs import define, frozen

LATEST = 0.2
"""Weight of the newest step in the average: about five steps are remembered, enough to pass over a hiccup."""

FORGOTTEN_S = 10.0
"""Idle for so long, a rank's pace is unknown again. One slow step, such as a first one, could else keep requests away
from it for ever, and with them the chance to do better."""


@frozen
class Outlook:
    """What is in an engine's queue, in tokens but for `decoding`."""

    decoding: int = 0
    """Running requests that draw a token in every step."""
    waiting_tokens: int = 0
    """Of requests that hold no KV."""
    pending_tokens: int = 0
    """To be prefilled after the step that runs or comes next."""
    step_tokens: int = 0
    """Prefilled by that step."""
    kv_tokens: int = 0
    """For which the blocks in use have room."""


@define
class Pace:
    """Measured speed; mutable, as it learns of every step."""

    decode_step_s: float = 0.0
    """A step without prefill; 0 until one was taken."""
    _prefill_s: float = 0.0
    _prefill_tokens: float = 0.0
    _began_s: float | None = None
    """None between steps."""
    _ended_s: float = 0.0
    _prefills: int = 0
    """What the step under way prefills."""
    _dummy: bool = False

    @property
    def prefill_token_s(self) -> float:
        """What a prefilled token adds to a step; 0 until one was."""
        return self._prefill_s / self._prefill_tokens if self._prefill_tokens else 0.0

    def begin(self, prefills: int, now_s: float, *, dummy: bool) -> None:
        """A step begins."""
        self._prefills, self._began_s, self._dummy = prefills, now_s, dummy

    def fail(self) -> None:
        """It came to nothing."""
        self._began_s = None

    def end(self, now_s: float) -> None:
        """It is over, and its time is learned."""
        if self._began_s is not None:
            self.learn(self._prefills, now_s - self._began_s)
        self._began_s, self._ended_s = None, now_s

    def rest(self, now_s: float) -> None:
        """Time passes; without a step for FORGOTTEN_S all is forgotten."""
        if self._began_s is None and now_s - self._ended_s > FORGOTTEN_S:
            self.decode_step_s = self._prefill_s = self._prefill_tokens = 0.0

    def left_s(self, upcoming: int | None, now_s: float) -> float:
        """To the end of the step under way; `upcoming` is what the next real one prefills, None where none comes.

        Where no real step runs, the next one begins now or behind the dummy one. One that is overdue is held to need
        as long again as it is late.
        """
        left_s = 0.0
        if self._began_s is not None:
            left_s = abs(self._began_s + self.expect_s(self._prefills) - now_s)
        if upcoming is not None and (self._began_s is None or self._dummy):
            left_s += self.expect_s(upcoming)
        return left_s

    def learn(self, prefilled: int, seconds: float) -> None:
        """A step took `seconds` and prefilled so many tokens. Long prompts weigh more: they tell more of a token."""
        if prefilled:
            keep = 1 - LATEST
            self._prefill_s = keep * self._prefill_s + max(0.0, seconds - self.decode_step_s)
            self._prefill_tokens = keep * self._prefill_tokens + prefilled
        else:
            before = self.decode_step_s or seconds
            self.decode_step_s = before + LATEST * (seconds - before)

    def expect_s(self, prefilled: int) -> float:
        """How long a step with so many prefilled tokens takes."""
        return self.decode_step_s + prefilled * self.prefill_token_s
