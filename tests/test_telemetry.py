"""Is every metric documented, moved by somebody, and bounded?"""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from prometheus_client.metrics import MetricWrapperBase

from evalfleet import telemetry
from evalfleet.errors import UnfitHost
from evalfleet.server.metrics import ServerMetrics

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
METRICS = {name: metric for name, metric in vars(telemetry).items() if isinstance(metric, MetricWrapperBase)}
KINDS = {"counter": "counter", "gauge": "gauge", "histogram": "histogram"}


def documented() -> Iterator[tuple[str, str, frozenset[str]]]:
    """(name as Prometheus sees it, type, labels) of each row of the page."""
    for name, kind in re.findall(r"^\| `(\w+)` \| ([^|]+) \|", PAGE, flags=re.MULTILINE):
        yield name, kind.split(",")[0].strip(), frozenset(re.findall(r"`(\w+)`", kind))


def shown(name: str, kind: str) -> str:
    return f"{name}_total" if kind == "counter" else name


def ours() -> Iterator[tuple[str, str, frozenset[str]]]:
    for metric in METRICS.values():
        described = next(iter(metric.describe()))
        yield shown(described.name, described.type), described.type, frozenset(metric._labelnames)


def servers() -> Iterator[tuple[str, str, frozenset[str]]]:
    counts = SimpleNamespace(active=0, waiting=0, finished={"failed": 1}, open=0, commits=0, writes=0)
    services = SimpleNamespace(runner=counts, store=counts, streams=counts)
    for family in ServerMetrics(services, {200: 1}).collect():  # type: ignore[arg-type]
        labels = {label for sample in family.samples for label in sample.labels}
        yield shown(family.name, family.type), family.type, frozenset(labels)


def test_the_page_documents_every_metric_with_type_and_labels_and_no_other() -> None:
    assert set(documented()) == set(ours()) | set(servers())


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_is_moved_by_code(name: str) -> None:
    rooms = [path for room in ("evalfleet", "scheduler", "worker") for path in (ROOT / room).rglob("*.py")]
    moving = re.compile(rf"\b{name}(\.labels\([^\n]*\))?\.(inc|set|observe|time|set_function)\(")
    assert any(moving.search(path.read_text(encoding="utf-8")) for path in rooms), f"nothing moves {name}"


def test_codes_that_agents_invent_make_no_endless_series(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "_codes", set())
    labels = {telemetry.code_label(f"code-{number}") for number in range(1000)}
    assert len(labels) == telemetry.MOST_CODES + 1
    assert "other" in labels
    assert telemetry.code_label("code-0") == "code-0", "the first ones keep their name"
    assert telemetry.code_label("") in {"none", "other"}
    assert len(telemetry.code_label("x" * 10_000)) <= 40


def test_every_code_label_is_bounded_where_it_is_set() -> None:
    for path in (ROOT / "worker").rglob("*.py"):
        for labels in re.findall(r"(?:RETRIES|GIVEN_UP)\.labels\((.*)\)\.inc", path.read_text(encoding="utf-8")):
            assert labels.startswith("code_label("), f"{path.name}: {labels}"


def test_a_submission_that_is_not_driven_any_more_has_no_series() -> None:
    telemetry.IN_FLIGHT.labels("sub_of_this_test").set(3)
    telemetry.forget_submission("sub_of_this_test")
    telemetry.forget_submission("sub_that_never_was")
    samples = [sample for family in telemetry.IN_FLIGHT.collect() for sample in family.samples]
    assert not [sample for sample in samples if sample.labels["submission"].startswith("sub_of_this_test")]


def test_metrics_are_served_as_prometheus_reads_them() -> None:
    port = telemetry.serve(0, "127.0.0.1")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    assert "# TYPE evalfleet_attempts_total counter" in text
    assert "evalfleet_worker_slots" in text
    with pytest.raises(UnfitHost, match=f"--metrics-port {port}: .*choose another port"):
        telemetry.serve(port, "127.0.0.1")
    assert telemetry.serve(None) is None
