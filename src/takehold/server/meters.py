"""What is counted, for Prometheus: requests, and where the catalog's operations met."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily

if TYPE_CHECKING:
    from takehold.iceberg.contention import Contention

__all__ = ["Meters"]

SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)

EVENTS: Final = (
    ("grants", "Locks granted."),
    ("waits", "Locks that were not granted at once."),
    ("wait_seconds", "Time spent waiting for locks."),
    ("timeouts", "Waits that ended with a timeout."),
    ("losses", "Compare-and-sets that somebody else won."),
    ("retries", "Attempts made after such a loss."),
    ("conflicts", "OperationConflicts: somebody else was at work."),
)


class Meters:
    """The registry of one server."""

    def __init__(self, contention: Contention) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "takehold_http_requests", "Requests answered.", ("operation", "status"), registry=self._registry
        )
        self._seconds = Histogram(
            "takehold_http_request_seconds",
            "From the first byte of a request's head to its answer.",
            ("operation",),
            buckets=SECONDS,
            registry=self._registry,
        )
        self.running = Gauge("takehold_http_running", "Requests under way.", registry=self._registry)
        self.replayed = Counter(
            "takehold_http_replayed",
            "Requests answered from the record of an idempotency key.",
            registry=self._registry,
        )
        # Finding the child of a label takes as long as counting.
        self._counters: dict[tuple[str, int], Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        self._registry.register(_Contention(contention))

    def answered(self, operation: str, status: int, seconds: float) -> None:
        """Count one request."""
        counter = self._counters.get((operation, status))
        if counter is None:
            counter = self._counters[operation, status] = self._requests.labels(operation, str(status))
        counter.inc()
        histogram = self._histograms.get(operation)
        if histogram is None:
            histogram = self._histograms[operation] = self._seconds.labels(operation)
        histogram.observe(seconds)

    def page(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self._registry)


class _Contention:
    """The catalog's own counts, read when somebody asks."""

    def __init__(self, contention: Contention) -> None:
        self._contention = contention

    def collect(self) -> Iterator[CounterMetricFamily]:
        """One family for each kind of event, with the class of resource as its label."""
        for name, text in EVENTS:
            family = CounterMetricFamily(f"takehold_iceberg_{name}", text, labels=("resource",))
            for resource, counts in self._contention:
                family.add_metric((resource,), getattr(counts, name))
            yield family
