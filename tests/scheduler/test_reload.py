"""What a scheduler puts back on the books of a broker that has forgotten everything, against the real server and a real
Valkey (I1)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from evalfleet.artifact import finish
from evalfleet.errors import (
    CredentialError,
    EvalfleetError,
    PlatformError,
    ProblemAnswer,
    TargetUnreachable,
    UnreadableAnswer,
)
from evalfleet.ledger import Ledger
from evalfleet.plan import Plan
from evalfleet.seal import Seal
from scheduler.reload import reload_unfinished
from tests.scheduler.test_submit import Tree, tree

__all__ = ["tree"]


@pytest.fixture
def ledger(valkey: str) -> Iterator[Ledger]:
    made = Ledger(valkey, prefix=f"t{uuid.uuid4().hex[:8]}:")
    made.open_epoch(mine=True)
    yield made
    made.redis.delete(*made.redis.keys(f"{made.prefix}*"))
    made.close()


async def reload(tree: Tree, ledger: Ledger, seal: Seal | None = None) -> bool:
    async def read(plan: Plan) -> Sequence[Mapping[str, Any]]:
        return [await tree.client.get_evaluation(str(e.id)) for e in plan.evaluations]

    loop = asyncio.get_running_loop()

    def documents(plan: Plan) -> Sequence[Mapping[str, Any]]:
        return asyncio.run_coroutine_threadsafe(read(plan), loop).result(20)

    return await asyncio.to_thread(reload_unfinished, ledger, tree.store, documents, seal or tree.seal)


async def test_i1_what_has_begun_and_not_ended_goes_back_on_the_books(tree: Tree, ledger: Ledger) -> None:
    opened = await tree.open()
    assert await reload(tree, ledger)
    assert ledger.submissions() == [opened.plan.id]
    assert ledger.plan(opened.plan.id) == opened.plan
    assert ledger.asked_replay(opened.plan.id), "evidence that no evaluation holds is sent"


async def test_what_has_ended_or_is_under_way_stays_as_it_is(tree: Tree, ledger: Ledger) -> None:
    ended = await tree.open()
    finish(tree.store, ended.plan.artifact, {"verdict": "incomplete"})
    cancelled = await tree.open(fresh=True)
    for evaluation in cancelled.plan.evaluations:
        await tree.client.cancel_evaluation(str(evaluation.id))
    running = await tree.open(fresh=True)
    ledger.add(running.plan, {})
    edition = ledger.edition(running.plan.id)
    assert await reload(tree, ledger)
    assert ledger.submissions() == [running.plan.id]
    assert ledger.edition(running.plan.id) == edition


@pytest.mark.parametrize(
    "trouble",
    [
        TargetUnreachable("nobody is there"),
        ProblemAnswer(503, "", "its server is not there"),
        UnreadableAnswer("a page of a proxy"),
    ],
    ids=["silence", "503", "a proxy"],
)
async def test_a_target_that_does_not_answer_is_asked_again(tree: Tree, ledger: Ledger, trouble: PlatformError) -> None:
    opened = await tree.open()

    def away(_plan: Plan) -> Sequence[Mapping[str, Any]]:
        raise trouble

    assert not await asyncio.to_thread(reload_unfinished, ledger, tree.store, away, tree.seal)
    assert ledger.submissions() == []
    assert await reload(tree, ledger)
    assert ledger.submissions() == [opened.plan.id]


@pytest.mark.parametrize(
    "trouble",
    [ProblemAnswer(404, "not_found", "no such evaluation"), CredentialError("SPLOX_API_KEY is not set")],
    ids=["unknown", "no key"],
)
async def test_another_servers_submission_in_the_same_folder_is_passed_over(
    tree: Tree, ledger: Ledger, trouble: EvalfleetError
) -> None:
    await tree.open()
    (tree.store.root / "20260101T000000Z-abcdefgh").mkdir()
    (tree.store.root / "20260101T000000Z-abcdefgh/suite.json").write_text("{")

    def unknown(_plan: Plan) -> Sequence[Mapping[str, Any]]:
        raise trouble

    assert await asyncio.to_thread(reload_unfinished, ledger, tree.store, unknown, tree.seal)
    assert ledger.submissions() == []


async def test_what_goes_back_on_the_books_bears_its_signature_from_the_results_store(
    tree: Tree, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    """After a flush the plan is signed as it was; one that another key signed, or none, stays off the books."""
    unsigned = await tree.open()
    tree.seal = Seal("the-fleets-own-secret")
    opened = await tree.open(fresh=True)
    assert await reload(tree, ledger)
    assert ledger.submissions() == [opened.plan.id]
    plan = ledger.plan(opened.plan.id)
    assert plan is not None
    assert tree.seal.check(opened.plan.id, plan) == opened.plan
    assert f"the plan of {unsigned.plan.id} is refused: it is not signed" in caplog.text

    ledger.forget(opened.plan.id)
    assert await reload(tree, ledger, Seal("the-secret-of-another-fleet"))
    assert ledger.submissions() == []
    assert "its signature is wrong" in caplog.text
