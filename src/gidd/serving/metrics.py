"""Metrics of a service, for Prometheus."""

from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from gidd.serving.worker import Worker

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)


class Metrics(Collector):
    """Counters of the workers and latency of requests, for Prometheus."""

    def __init__(self, workers: Mapping[str, Worker]) -> None:
        self._workers = workers
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self.latency = Histogram(
            "gidd_request_seconds",
            "Time from the request to the start of its answer.",
            ("path", "status"),
            buckets=_SECONDS,
            registry=self._registry,
        )

    def text(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Yield the state of each model."""
        for kind, metric, value, text in _METRICS:
            family = kind(f"gidd_{metric}", text, labels=("model",))
            for name, worker in self._workers.items():
                family.add_metric((name,), value(worker))
            yield family


def _of(attribute: str) -> Callable[[Worker], float]:
    """Return a number of the session of a worker."""
    return attrgetter(f"session.{attribute}")


_COUNT, _GAUGE = CounterMetricFamily, GaugeMetricFamily
_METRICS = (
    (_GAUGE, "requests_open", attrgetter("num_open"), "Requests that have begun and not ended."),
    (_COUNT, "requests_refused", attrgetter("num_refused"), "Requests beyond those allowed open."),
    (_GAUGE, "sequences_waiting", _of("waiting"), "Sequences that wait for their first step."),
    (_GAUGE, "expected_wait_seconds", _of("expected_wait"), "Time until all requests are done."),
    (_COUNT, "forward_passes", _of("counters.steps"), "Steps, each at most one forward pass."),
    (_COUNT, "step_seconds", _of("counters.seconds"), "Time in these steps."),
    (_COUNT, "rows", _of("counters.rows"), "Sequences in forward passes, copies included."),
    (_COUNT, "rows_used", _of("counters.used_rows"), "Sequences of these that made a step."),
    (_COUNT, "tokens", _of("counters.work"), "Tokens in these rows, padding and copies included."),
    (_COUNT, "sequences_finished", _of("counters.finished"), "Sequences that were sampled."),
    (_COUNT, "sequences_failed", _of("counters.failed"), "Sequences that failed."),
)
