"""What the routes of one edge share."""

from collections.abc import Callable

from attrs import define

from dpactors.http.metrics import Metrics
from dpactors.http.streams import Streams
from dpactors.http.text import ModelText
from dpactors.serving.jobs import Availability, ServeHttp


@define(eq=False)
class Edge:
    """One edge while it serves. Mutable."""

    job: ServeHttp
    version: str
    text: ModelText
    streams: Streams
    metrics: Metrics
    clock: Callable[[], float]
    """Monotonic, s."""
    created: int
    """Unix time at which the model became known here, s."""
    now: Availability
    stopping: bool = False

    @property
    def context(self) -> int:
        """Longest prompt + output, in tokens; 0 where nobody has said yet."""
        return self.now.max_model_len or self.text.context

    def missing_ranks(self) -> list[int]:
        """Ranks that are wired to this front end and not ready."""
        return sorted(set(self.now.all) - set(self.now.ready))

    def is_ready(self) -> bool:
        """Whether every rank can take requests."""
        return not self.stopping and bool(self.now.all) and not self.missing_ranks()
