"""How fast a rank has been of late, and what it has before it: what its load report foretells. Pure."""

from attrs import define, frozen

LATEST = 0.2
"""Weight of the newest step in the average: about five steps are remembered, enough to pass over a hiccup."""


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

    @property
    def prefill_token_s(self) -> float:
        """What a prefilled token adds to a step; 0 until one was."""
        return self._prefill_s / self._prefill_tokens if self._prefill_tokens else 0.0

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
