"""Which generation a command continues, and what it puts on the books, against the real server and a real Valkey
(S34)."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from evalfleet.artifact import read_plan
from evalfleet.contract.client import Client
from evalfleet.errors import PlanRefused
from evalfleet.ledger import Ledger
from evalfleet.plan import Attempt, Plan
from evalfleet.results import FolderResults
from evalfleet.seal import Seal
from scheduler.pins import Pin
from scheduler.submissions import Submissions
from scheduler.submit import Opened, open_submission, put_on_books
from tests.server.conftest import TOKEN, ScriptedDriver, serving
from tests.worker.test_play import plan_of

TWO_GROUPS = """
scenarios:
  - {id: once, user: a, expect: [no_error: true]}
  - {id: often, user: b, trials: 3, expect: [no_error: true]}
"""


class Tree:
    def __init__(self, folder: Path, client: Client, plan: Plan) -> None:
        self.client, self.plan = client, plan
        self.store = FolderResults(folder / "results")
        self.submissions = Submissions(folder / "state")
        self.seal = Seal()

    async def open(self, *, fresh: bool = False) -> Opened:
        return await open_submission(
            self.client,
            self.plan,
            Pin(self.plan.pin, {}),
            store=self.store,
            submissions=self.submissions,
            words=(),
            files={},
            fresh=fresh,
            own_server=False,
            seal=self.seal,
        )


@pytest.fixture
async def tree(tmp_path: Path) -> AsyncIterator[Tree]:
    async with serving(tmp_path, ScriptedDriver()) as api, Client(api.url, TOKEN) as client:
        yield Tree(tmp_path, client, plan_of(TWO_GROUPS, api.harness_id))


async def test_s34_the_same_command_continues_what_is_unfinished(tree: Tree) -> None:
    first, second = await tree.open(), await tree.open()
    assert (first.resumed, second.resumed) == (False, True)
    assert (second.plan.id, second.plan.artifact) == (first.plan.id, first.plan.artifact)
    assert (await tree.open(fresh=True)).plan.generation == 1


async def test_s34_a_submission_one_of_whose_evaluations_was_cancelled_is_not_continued(tree: Tree) -> None:
    """It takes no more attempts, so the same command would be refused the same way for ever."""
    first = await tree.open()
    await tree.client.cancel_evaluation(str(first.plan.evaluations[1].id))
    again = await tree.open()
    assert (again.resumed, again.plan.generation) == (False, 1)


async def test_what_is_submitted_twice_is_put_on_the_books_once(tree: Tree, valkey: str) -> None:
    ledger = Ledger(valkey, prefix=f"t{uuid.uuid4().hex[:8]}:")
    ledger.open_epoch(mine=True)
    try:
        opened = await tree.open()
        put_on_books(ledger, opened, tree.store)
        ledger.put_record(opened.plan.id, Attempt(0, 0, 0), b"{}", "passed")
        ledger.confirm(opened.plan.id, {Attempt(0, 0, 0): "passed"})
        put_on_books(ledger, await tree.open(), tree.store)
        assert ledger.done(opened.plan.id) == {"0:0:0": "passed"}
        assert ledger.progress(opened.plan.id).counts == {"passed": 1}
    finally:
        ledger.forget(opened.plan.id)
        ledger.close()


async def test_a_plan_is_signed_before_it_is_written_and_again_when_it_is_gone_on_with(tree: Tree) -> None:
    """A resume may bring other limits: what goes on the books then bears a signature of its own."""
    tree.seal = Seal("sixteen-letters-")
    first = await tree.open()
    assert tree.seal.check(first.plan.id, read_plan(tree.store, first.plan.artifact)) == first.plan
    tree.plan = replace(tree.plan, concurrency=first.plan.concurrency + 1)
    second = await tree.open()
    assert (second.plan.id, second.plan.concurrency) == (first.plan.id, first.plan.concurrency + 1)
    assert second.plan.signature != first.plan.signature
    assert tree.seal.check(first.plan.id, second.plan)


async def test_what_was_begun_under_another_key_is_not_signed_anew(tree: Tree) -> None:
    """Else whoever can write to the results folder would get it signed by the next submit."""
    await tree.open()
    tree.seal = Seal("another-secret-of-the-fleet")
    with pytest.raises(PlanRefused, match="it is not signed"):
        await tree.open()
    assert (await tree.open(fresh=True)).plan.generation == 1
