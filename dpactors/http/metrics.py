"""What Prometheus scrapes: vLLM 0.32's names, labels and buckets, and series of our own.

Each observation costs a bisection and two additions; prometheus_client only writes them out.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from attrs import define, field
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString  # pyright: ignore[reportUnknownVariableType]

from dpactors.serving.jobs import Availability
from dpactors.serving.messages import FinishReason

if TYPE_CHECKING:
    from dpactors.http.streams import Choice

# All buckets as in vLLM 0.32 (v1/metrics/loggers.py).
TTFT_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
REQUEST_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
REASONS: tuple[FinishReason, ...] = ("stop", "length", "abort", "error")
_LABELS = ("model_name", "engine")


def token_buckets(limit: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50, ... up to `limit` tokens."""
    found: list[float] = []
    scale = 1
    while scale <= limit:
        found += [float(step * scale) for step in (1, 2, 5) if step * scale <= limit]
        scale *= 10
    return tuple(found) or (1.0,)


class Histogram:
    """Counts per bucket and a sum. Mutable."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts by upper bound, as Prometheus wants them."""
        total = 0
        found: list[tuple[str, float]] = []
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            total += count
            found.append((floatToGoString(bound), total))
        return found


@define
class RankTally:
    """What this edge saw of one rank since it started. Mutable."""

    prompt_tokens: int
    generation_tokens: int
    finished: dict[FinishReason, int]
    histograms: Mapping[str, Histogram]
    """By vLLM's name without the prefix."""
    first_token: Histogram = field(init=False)
    between_tokens: Histogram = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.first_token = self.histograms["time_to_first_token_seconds"]
        self.between_tokens = self.histograms["inter_token_latency_seconds"]

    @classmethod
    def empty(cls, context: int) -> "RankTally":
        """A tally of nothing, with token buckets up to `context`."""
        sizes = token_buckets(context)
        histograms = {
            "time_to_first_token_seconds": Histogram(TTFT_S),
            "inter_token_latency_seconds": Histogram(TOKEN_S),
            "e2e_request_latency_seconds": Histogram(REQUEST_S),
            "request_prompt_tokens": Histogram(sizes),
            "request_generation_tokens": Histogram(sizes),
        }
        return cls(0, 0, dict.fromkeys(REASONS, 0), histograms)


_MEANINGS = {
    "time_to_first_token_seconds": "From the request's arrival here to its first token.",
    "inter_token_latency_seconds": "Between two writes of one sequence.",
    "e2e_request_latency_seconds": "From the request's arrival here to its end.",
    "request_prompt_tokens": "Prompt tokens of a finished sequence.",
    "request_generation_tokens": "Generated tokens of a finished sequence.",
}


class Metrics(Collector):
    """Counts for /metrics. Mutable: one per edge."""

    def __init__(self, model_name: str, context: int) -> None:
        self._model = model_name
        self._context = context or 131_072
        self._tallies: dict[int, RankTally] = {}
        self._now = Availability((), (), 0)
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def learn(self, now: Availability) -> None:
        """Take the newest loads; a rank that is heard of has series from then on, at zero."""
        self._now = now
        for rank in (*now.ready, *[load.rank for load in now.loads]):
            self._tally(rank)

    def tokens_came(self, choice: "Choice", count: int, now_s: float) -> None:
        """`count` new tokens of a sequence arrived."""
        if choice.rank is None:
            return
        tally = self._tally(choice.rank)
        tally.generation_tokens += count
        if choice.received == count:
            tally.prompt_tokens += len(choice.generate.prompt)
            tally.first_token.observe(now_s - choice.began_s)
        else:
            tally.between_tokens.observe(now_s - choice.last_token_s)

    def ended(self, choice: "Choice", reason: FinishReason, now_s: float) -> None:
        """A sequence is over; one that never reached a rank belongs to no engine's count."""
        if choice.rank is None:
            return
        tally = self._tally(choice.rank)
        tally.finished[reason] += 1
        tally.histograms["e2e_request_latency_seconds"].observe(now_s - choice.began_s)
        tally.histograms["request_prompt_tokens"].observe(len(choice.generate.prompt))
        tally.histograms["request_generation_tokens"].observe(choice.received)

    def expose(self, accept: str) -> tuple[bytes, str]:
        """The exposition and its content type, in the form that `accept` asks for."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    def collect(self) -> Iterable[Metric]:
        """Every family with its samples; called by prometheus_client."""
        yield from self._gauges()
        yield self._counter("prompt_tokens", "Prompt tokens processed.", lambda tally: tally.prompt_tokens)
        yield self._counter("generation_tokens", "Tokens generated.", lambda tally: tally.generation_tokens)
        success = CounterMetricFamily(
            "vllm:request_success", "Sequences that ended, by reason.", labels=(*_LABELS, "finished_reason")
        )
        for rank, tally in sorted(self._tallies.items()):
            for reason, count in tally.finished.items():
                success.add_metric((self._model, str(rank), reason), count)
        yield success
        for name, meaning in _MEANINGS.items():
            family = HistogramMetricFamily(f"vllm:{name}", meaning, labels=_LABELS)
            for rank, tally in sorted(self._tallies.items()):
                histogram = tally.histograms[name]
                family.add_metric((self._model, str(rank)), histogram.buckets(), histogram.sum)
            yield family

    def _gauges(self) -> Iterable[Metric]:
        running = GaugeMetricFamily("vllm:num_requests_running", "Sequences in the rank's batch.", labels=_LABELS)
        waiting = GaugeMetricFamily("vllm:num_requests_waiting", "Sequences in the rank's queue.", labels=_LABELS)
        used = GaugeMetricFamily("vllm:kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", labels=_LABELS)
        for load in self._now.loads:
            labels = (self._model, str(load.rank))
            running.add_metric(labels, load.running)
            waiting.add_metric(labels, load.waiting)
            used.add_metric(labels, load.kv_used)
        yield from (running, waiting, used)
        own = (
            ("wave", "The wave the ranks are in, or will be next.", self._now.wave),
            ("wave_running", "1 while a wave runs, 0 while the group is paused.", int(self._now.running)),
            ("ranks_ready", "Ranks that can take requests.", len(self._now.ready)),
        )
        for name, meaning, value in own:
            family = GaugeMetricFamily(f"dpactors:{name}", meaning, labels=("model_name",))
            family.add_metric((self._model,), value)
            yield family

    def _counter(self, name: str, meaning: str, value: Callable[[RankTally], int]) -> CounterMetricFamily:
        family = CounterMetricFamily(f"vllm:{name}", meaning, labels=_LABELS)
        for rank, tally in sorted(self._tallies.items()):
            family.add_metric((self._model, str(rank)), value(tally))
        return family

    def _tally(self, rank: int) -> RankTally:
        tally = self._tallies.get(rank)
        if tally is None:
            tally = self._tallies[rank] = RankTally.empty(self._context)
        return tally
