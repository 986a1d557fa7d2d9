"""How often a child may be restarted: strategy-free arithmetic with ``now_s`` handed in."""

from attrs import define, field, frozen


@frozen
class BudgetSettings:
    """Restart limits, as in OTP's intensity and period."""

    restarts_max: int = 3
    """Restarts within `period_s` before giving up."""
    period_s: float = 30.0
    backoff_s: float = 0.1
    """Wait before the first restart; doubles with each restart in the period."""
    backoff_max_s: float = 5.0


@define
class RestartBudget:
    """One child's budget; mutable, one per child."""

    settings: BudgetSettings = field(factory=BudgetSettings)
    _at_s: list[float] = field(factory=list[float])

    def spend(self, now_s: float) -> float | None:
        """Seconds to wait before this restart, or None where the budget is spent."""
        self._at_s = [at for at in self._at_s if now_s - at < self.settings.period_s]
        if len(self._at_s) >= self.settings.restarts_max:
            return None
        wait_s = self.settings.backoff_s * 2 ** len(self._at_s)
        self._at_s.append(now_s)
        return min(wait_s, self.settings.backoff_max_s)

    @property
    def spent(self) -> int:
        """Restarts counted in the last period seen."""
        return len(self._at_s)
