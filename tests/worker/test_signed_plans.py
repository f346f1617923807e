"""What can somebody make a worker do who reaches the broker, and nothing else? Against the real server and a real
Valkey: with EVALFLEET_PLAN_KEY set, nothing is launched and no grader is asked but for a plan of the fleet's."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from evalfleet.contract.client import Client
from evalfleet.graders.bundle import digest_of
from evalfleet.plan import Attempt, Plan, PlannedGraders
from evalfleet.seal import REFUSED, Seal
from tests.server.conftest import TOKEN
from tests.worker.test_crew import FIRST, GRADED, Stage, staged
from tests.worker.test_play import plan_of

KEY = "the-fleets-own-secret"
SEAL = Seal(KEY)


@pytest.fixture
async def stage(tmp_path: Path, valkey: str) -> AsyncIterator[Stage]:
    async with staged(tmp_path, valkey, plan_key=KEY) as made:
        made.ledger.forget(made.plan.id)
        yield made


def put(stage: Stage, plan: Plan | bytes, *, under: str | None = None) -> None:
    """What stands in the broker is replaced, and the books say that there is something new."""
    data = plan if isinstance(plan, bytes) else zlib.compress(plan.dumps())
    sub = under or stage.plan.id
    stage.ledger.redis.set(stage.ledger._key(sub, "plan"), data)
    stage.ledger.redis.hset(stage.ledger._key(sub, "meta"), "edition", "another")


async def runs(stage: Stage) -> int:
    async with Client(stage.api.url, TOKEN) as client:
        return len([run async for run in client.list_runs()])


async def test_a_plan_that_the_fleet_signed_is_played(stage: Stage) -> None:
    stage.plan = SEAL.signed(stage.plan)
    stage.ledger.add(stage.plan, {})
    await stage.run()
    assert await runs(stage) == 1


CHANGES: list[tuple[str, Callable[[Plan], Plan | bytes], str]] = [
    (
        "another target",
        lambda plan: replace(plan, target=replace(plan.target, base_url="http://127.0.0.1:1/api")),
        "its signature is wrong",
    ),
    ("no signature", lambda plan: replace(plan, signature=None), "it is not signed"),
    ("another fleet's", lambda plan: Seal("another-secret-of-ours").signed(plan), "its signature is wrong"),
    ("another submission's", lambda plan: SEAL.signed(replace(plan, id="sub_other")), "it is that of sub_other"),
    ("no plan", lambda _: zlib.compress(b"[1]"), "it cannot be read: not a plan of format 1"),
    ("no archive", lambda _: b"\x80\x04pickled", "it cannot be read"),
]


@pytest.mark.parametrize(
    ("change", "reason"), [(change, reason) for _, change, reason in CHANGES], ids=[name for name, *_ in CHANGES]
)
async def test_a_plan_that_was_changed_in_the_broker_is_dropped_and_its_submission_says_why(
    stage: Stage, change: Callable[[Plan], Plan | bytes], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    stage.plan = SEAL.signed(stage.plan)
    stage.ledger.add(stage.plan, {})
    await stage.run()
    put(stage, change(stage.plan))
    await stage.run(replace(FIRST, trial=1))
    assert await runs(stage) == 1, "the run of before"
    meta = stage.ledger.meta(stage.plan.id)
    assert meta is not None
    assert (meta.state, meta.code) == ("stopped", REFUSED)
    assert f"the plan of {stage.plan.id} is refused: {reason}" in meta.reason
    assert meta.reason in caplog.text
    assert KEY not in caplog.text


async def test_no_grader_is_asked_and_nothing_recorded_for_a_plan_that_nobody_signed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.books(GRADED)
    attempt = Attempt(0, 0, 0)
    stage.ledger.put_play(stage.plan.id, attempt, b"{}")
    stage.ledger.put_record(stage.plan.id, replace(attempt, trial=1), b"{}", "passed")
    monkeypatch.setattr(stage.crew.grading, "_call_grader", lambda *_: pytest.fail("a grader was asked"))
    await stage.grade(attempt)
    await asyncio.to_thread(stage.crew.aggregate, stage.plan.id)
    assert stage.ledger.records(stage.plan.id), "it waits"
    meta = stage.ledger.meta(stage.plan.id)
    assert meta is not None
    assert meta.code == REFUSED


@pytest.mark.parametrize("found", ["the graders of another", "no graders"])
async def test_graders_are_those_of_the_signed_plan_or_none(stage: Stage, found: str) -> None:
    """They come through the broker, where anybody who reaches it may put others."""
    bundle = b"the bytes of our graders" * 100_000
    stage.plan = plan_of(GRADED, stage.api.harness_id)
    graders = PlannedGraders(digest_of(bundle), None, (), network=False, memory_mb=64, judge=False)
    stage.plan = SEAL.signed(replace(stage.plan, graders=graders))
    stage.ledger.add(stage.plan, {})
    stage.ledger.put_graders(stage.plan.id, graders.digest, lambda: bundle)
    stage.ledger.put_graders(stage.plan.id, graders.digest, lambda: pytest.fail("they are there"))
    assert stage.ledger.graders(stage.plan.id) == bundle
    await stage.run()
    piece = zlib.compress(b"os.system('evil')") if found == "the graders of another" else b"no archive"
    stage.ledger.redis.hset(stage.ledger._key(stage.plan.id, "graders"), "0", piece)
    await stage.grade(Attempt(0, 0, 0))
    meta = stage.ledger.meta(stage.plan.id)
    assert meta is not None
    assert (meta.state, meta.code) == ("stopped", REFUSED)
    assert f"the graders of {stage.plan.id} are refused: they " in meta.reason


async def test_graders_that_the_broker_lost_are_waited_for(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.books(GRADED)
    stage.plan = SEAL.signed(stage.plan)
    stage.ledger.add(stage.plan, {})
    put(stage, stage.plan)
    await stage.run()
    await stage.grade(Attempt(0, 0, 0))
    meta = stage.ledger.meta(stage.plan.id)
    assert meta is not None
    assert meta.state == "running"
    assert "are not on the books; its scheduler puts them there" in caplog.text


async def test_a_message_that_names_no_plan_begins_nothing(stage: Stage) -> None:
    unknown = "sub_00000000000000000000000000"
    await asyncio.to_thread(stage.crew.run, unknown, [FIRST])
    await asyncio.to_thread(stage.crew.grade, unknown, Attempt(0, 0, 0))
    await asyncio.to_thread(stage.crew.aggregate, unknown)
    assert await runs(stage) == 0
    assert stage.ledger.meta(unknown) is None


async def test_a_worker_without_a_key_takes_plans_as_they_stand(stage: Stage) -> None:
    stage.crew.seal = Seal()
    stage.ledger.add(stage.plan, {})
    await stage.run()
    assert await runs(stage) == 1
