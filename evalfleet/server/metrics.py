"""What does the server tell Prometheus? Numbers it has anyway, read when it is asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from evalfleet.server.services import Services


class ServerMetrics(Collector):
    """Reads the server's own counters at each scrape."""

    def __init__(self, services: Services, answers: Mapping[int, int]) -> None:
        self._services = services
        self._answers = answers

    def collect(self) -> Iterator[Metric]:
        runner, store, streams = self._services.runner, self._services.store, self._services.streams
        yield GaugeMetricFamily("evalfleet_server_runs_active", "Runs that an agent plays now", runner.active)
        yield GaugeMetricFamily(
            "evalfleet_server_runs_waiting", "Runs that wait for a free agent or for their chat", runner.waiting
        )
        yield GaugeMetricFamily("evalfleet_server_streams_open", "Event streams that clients hold open", streams.open)
        ended = CounterMetricFamily("evalfleet_server_runs_ended", "Runs that ended, by status", labels=["status"])
        for status, count in runner.finished.items():
            ended.add_metric([status], count)
        yield ended
        yield CounterMetricFamily("evalfleet_server_store_commits", "Transactions made durable", store.commits)
        yield CounterMetricFamily("evalfleet_server_store_writes", "Writes in those transactions", store.writes)
        answers = CounterMetricFamily("evalfleet_server_answers", "HTTP answers, by status", labels=["status"])
        # Prometheus sees no increase in a series that begins with its first count: those that alerts ask for are there.
        for code, count in sorted({500: 0, 503: 0, **self._answers}.items()):
            answers.add_metric([str(code)], count)
        yield answers


def registry_of(services: Services, answers: Mapping[int, int]) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(ServerMetrics(services, answers))
    return registry


def exposition(services: Services, answers: Mapping[int, int]) -> tuple[bytes, str]:
    """The text and its media type."""
    return generate_latest(registry_of(services, answers)), CONTENT_TYPE_LATEST
