"""A worker that does not reach what it needs says so once, is unhealthy for whoever asks, and recovers by itself."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator

import pytest

from evalfleet.errors import TargetUnreachable
from evalfleet.ledger import Ledger
from evalfleet.telemetry import UNREACHABLE
from tests.test_ledger import make_plan
from worker.health import FRESH_S, Health

WELL = {"platform": 0, "results": 0}


class Scene:
    def __init__(self) -> None:
        self.now = 1000.0
        self.others_say_so = True
        self.broker_away = False
        self.health = Health(clock=lambda: self.now)

    def still(self) -> bool:
        if self.broker_away:
            raise TargetUnreachable("the broker does not answer")
        return self.others_say_so

    def fail(self, name: str = "t") -> None:
        self.health.away("platform", name, f"{name} does not\n answer", self.still)

    def metric(self) -> dict[str, float]:
        """What Prometheus would read."""
        samples = [sample for family in UNREACHABLE.collect() for sample in family.samples]
        return {s.labels["what"]: s.value for s in samples if s.labels["what"] in {"platform", "results"}}


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_it_is_said_once_when_it_begins_and_once_when_it_is_over(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "worker.health")
    assert (scene.health.look(), scene.metric()) == ("", WELL)
    for _ in range(5):
        scene.fail()
        scene.now += 2
    assert scene.health.look() == "platform: t does not answer", "a line, whatever the error's text was"
    assert scene.metric() == {**WELL, "platform": 1}
    for _ in range(3):
        scene.health.back("platform", "t")
    assert (scene.health.look(), scene.metric()) == ("", WELL)
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("WARNING", "not healthy: the platform: t does not answer"),
        ("INFO", "healthy again: the platform, after 10 s"),
    ]


def test_two_of_a_kind_are_one_word_of_it_and_it_is_over_with_the_last(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "worker.health")
    scene.fail("a")
    scene.fail("b")
    scene.health.away("results", "sub_1", "the disk is full", scene.still)
    assert dict(scene.health.unreachable()) == {"platform": "b does not answer", "results": "the disk is full"}
    assert scene.metric() == {"platform": 1, "results": 1}
    scene.health.back("platform", "a")
    scene.health.back("results", "sub_1")
    assert scene.metric() == {**WELL, "platform": 1}
    scene.health.back("platform", "b")
    assert scene.metric() == WELL
    assert [r.getMessage().split(":")[0] for r in caplog.records] == [
        "not healthy",
        "not healthy",
        "healthy again",
        "healthy again",
    ]


def test_a_worker_that_asks_nobody_any_more_recovers_when_nobody_says_so_any_more(scene: Scene) -> None:
    scene.fail()
    scene.now += FRESH_S + 1
    assert scene.health.look(), "the others do not reach it either"
    scene.others_say_so = False
    scene.broker_away = True
    assert scene.health.look(), "nobody can be asked"
    scene.broker_away = False
    assert scene.health.look() == ""
    assert scene.metric() == WELL


def test_a_worker_that_alone_does_not_reach_it_is_unhealthy_for_as_long_as_it_tries(scene: Scene) -> None:
    scene.others_say_so = False
    for _ in range(10):
        scene.fail()
        scene.now += FRESH_S - 1
        assert scene.health.look()


@pytest.fixture
def ledger(valkey: str) -> Iterator[Ledger]:
    made = Ledger(valkey, prefix=f"t{uuid.uuid4().hex[:8]}:")
    yield made
    made.redis.delete(*made.redis.keys(f"{made.prefix}*"))
    made.close()


def test_what_the_books_say_of_a_target_and_of_a_results_store(ledger: Ledger) -> None:
    assert not ledger.is_target_down("t")
    ledger.target_down("t", "silence")
    assert ledger.is_target_down("t")
    ledger.target_answered("t")
    assert not ledger.is_target_down("t")

    plan = make_plan()
    ledger.store_away(plan.id, "the disk is full")
    assert ledger.meta(plan.id) is None, "of one that is not on the books nothing is"
    ledger.add(plan, {})
    assert not ledger.is_store_away(plan.id)
    ledger.store_away(plan.id, "the disk is full")
    meta = ledger.meta(plan.id)
    assert meta is not None
    assert (meta.store_trouble, ledger.is_store_away(plan.id)) == ("the disk is full", True)
    ledger.redis.hincrby(f"{ledger.prefix}s:{plan.id}:meta", "store_since", -5000)
    ledger.store_away(plan.id, "no route")
    again = ledger.meta(plan.id)
    assert again is not None
    assert (again.store_trouble, again.store_since) == ("no route", meta.store_since - 5000), "it counts from the first"
    ledger.store_back(plan.id)
    assert not ledger.is_store_away(plan.id)
    ledger.store_away(plan.id, "no route")
    ledger.end(plan.id, "stopped", "it was cancelled")
    assert not ledger.is_store_away(plan.id), "nobody waits for it any more"
    ledger.add(plan, {})
    assert not ledger.is_store_away(plan.id), "a resume begins anew"
