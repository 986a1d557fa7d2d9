"""How long a rank waits for the others before it calls them lost: long enough that a busy machine fences nobody."""

import statistics
from collections import deque

FLOOR_S = 2.0
STEPS = 16
"""Recent steps whose median counts: one long wait does not make the next one longer."""
TIMES_A_STEP = 10
PREFILL_S_PER_TOKEN = 0.01
"""Ten times what a large model takes for a token of prefill on one core; 2,048 tokens have 20 s."""


class Patience:
    """The deadline of one operation."""

    def __init__(self, floor_s: float = FLOOR_S) -> None:
        """`floor_s`: no deadline is shorter."""
        self._floor_s = floor_s
        self._steps_s: deque[float] = deque(maxlen=STEPS)

    def learn(self, step_s: float) -> None:
        """A step took so long."""
        self._steps_s.append(step_s)

    def limit_s(self, tokens: int) -> float:
        """How long to wait where the largest step under way has `tokens`."""
        step_s = statistics.median(self._steps_s) if self._steps_s else 0.0
        return max(self._floor_s, TIMES_A_STEP * step_s, PREFILL_S_PER_TOKEN * tokens)
