"""A server's counters, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


class Meters:
    """The counters of one server."""

    def __init__(self, rows_waiting: Callable[[], float]) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "sparkdl_requests", "Requests for predictions.", ["status"], registry=self._registry
        )
        self._seconds = Histogram(
            "sparkdl_request_seconds",
            "Seconds from a request's first line to its answer.",
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._rows = Counter("sparkdl_rows", "Rows that have got a prediction.", registry=self._registry)
        self._pass_rows = Histogram(
            "sparkdl_pass_rows", "Rows of a forward pass.", buckets=_ROWS, registry=self._registry
        )
        self._pass_seconds = Histogram(
            "sparkdl_pass_seconds", "Seconds of a forward pass.", buckets=_SECONDS, registry=self._registry
        )
        self._reloads = Counter(
            "sparkdl_reloads", "Looks for a new version that found one.", ["result"], registry=self._registry
        )
        self._version = Gauge(
            "sparkdl_model_info", "The version that is served.", ["version"], registry=self._registry
        )
        waiting = Gauge("sparkdl_rows_waiting", "Rows in the queue.", registry=self._registry)
        waiting.set_function(rows_waiting)

    def request(self, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(str(status)).inc()
        self._seconds.observe(seconds)

    def forward(self, rows: int, seconds: float) -> None:
        """Count a forward pass."""
        self._rows.inc(rows)
        self._pass_rows.observe(rows)
        self._pass_seconds.observe(seconds)

    def reload(self, result: str, version: str) -> None:
        """Count a reload, ``done`` or ``failed``, and note which version is served since."""
        self._reloads.labels(result).inc()
        self.serves(version)

    def serves(self, version: str) -> None:
        """Note which version is served."""
        self._version.clear()
        self._version.labels(version).set(1)

    def text(self) -> bytes:
        """Return all of it in Prometheus's text format."""
        return generate_latest(self._registry)
