"""Metrics of a service, for Prometheus."""

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from gidd.serving.worker import Worker

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)


class Metrics(Collector):
    """What the workers have done, read when it is asked for, and the latency of requests."""

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
        found = {name: self._of(worker) for name, worker in self._workers.items()}
        for metric, text, is_counter in _DESCRIPTIONS:
            kind = CounterMetricFamily if is_counter else GaugeMetricFamily
            family = kind(f"gidd_{metric}", text, labels=("model",))
            for name, values in found.items():
                family.add_metric((name,), values[metric])
            yield family

    def _of(self, worker: Worker) -> dict[str, float]:
        sessions = worker.pool.sessions
        totals = {
            name: float(sum(getattr(session.counters, name) for session in sessions))
            for name in ("steps", "seconds", "rows", "used_rows", "work", "finished", "failed")
        }
        return {
            "requests_open": worker.num_open,
            "requests_refused": worker.num_refused,
            "sequences_waiting": sum(session.waiting for session in sessions),
            "expected_wait_seconds": worker.expected_wait,
            "forward_passes": totals["steps"],
            "step_seconds": totals["seconds"],
            "rows": totals["rows"],
            "rows_used": totals["used_rows"],
            "tokens": totals["work"],
            "sequences_finished": totals["finished"],
            "sequences_failed": totals["failed"],
        }


_DESCRIPTIONS = (
    ("requests_open", "Requests that have begun and not ended.", False),
    ("requests_refused", "Requests that were refused because too many were open.", True),
    ("sequences_waiting", "Sequences that wait for their first step.", False),
    ("expected_wait_seconds", "Time until all open requests are done.", False),
    ("forward_passes", "Steps of the session, each at most one forward pass.", True),
    ("step_seconds", "Time in these steps.", True),
    ("rows", "Sequences in forward passes, copies included.", True),
    ("rows_used", "Sequences in forward passes that made a step.", True),
    ("tokens", "Tokens in forward passes, padding and copies included.", True),
    ("sequences_finished", "Sequences that were sampled.", True),
    ("sequences_failed", "Sequences that failed.", True),
)
