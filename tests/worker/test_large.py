"""What is too large for the broker waits there without its trial, and is read from the platform again: against the real
server and a real Valkey."""

from __future__ import annotations

import random
import string
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from evalfleet.bulk import LEFT_OUT, MOST_BYTES, is_large, made_whole, packed
from evalfleet.checks.outcome import GraderAnswer
from evalfleet.contract import jsontext
from evalfleet.contract.client import Client
from evalfleet.errors import ProblemAnswer
from evalfleet.plan import Attempt, Conversation
from evalfleet.server.driving import Ended, Sink, Turn
from tests.server.conftest import TOKEN
from tests.worker.test_crew import GRADED, Stage, staged

ATTEMPT = Attempt(0, 0, 0)
LONG = "".join(random.Random(7).choices(string.ascii_letters + string.digits, k=10_000_000))
"""Ten megabytes that hardly compress."""
ONE_LONG = """
scenarios:
  - {id: before, user: [a, b], expect: [no_error: true]}
  - {id: one, user: c, expect: [no_error: true]}
"""


async def long(turn: Turn, sink: Sink) -> Ended:
    await sink.answer(f"{turn.message}: {LONG}")
    return Ended()


@pytest.fixture
async def stage(tmp_path: Path, valkey: str) -> AsyncIterator[Stage]:
    async with staged(tmp_path, valkey) as made:
        made.api.driver.script = long
        yield made


def waiting(stage: Stage) -> int:
    """Bytes of all that is in the broker for the submission."""
    client: Any = stage.ledger.redis
    return sum(client.memory_usage(key) for key in client.scan_iter(f"*{stage.plan.id}*"))


async def test_a_large_play_waits_as_its_runs_and_its_grader_sees_all_of_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []

    async def grader(_plan: Any, _play: Any, name: str, _case: Any, run: dict[str, Any], _: Any) -> GraderAnswer:
        seen.append(run)
        return GraderAnswer(name, "answered", passed=True)

    monkeypatch.setattr(stage.crew.grading, "_call_grader", grader)
    stage.books(GRADED)
    await stage.run()
    assert waiting(stage) < MOST_BYTES
    await stage.grade(ATTEMPT)
    assert [run["final_answer"] for run in seen] == [f"a: {LONG}"]
    assert waiting(stage) < MOST_BYTES
    line = jsontext.loads(stage.ledger.records(stage.plan.id)[ATTEMPT])
    assert line["outcome"] == "passed"
    assert is_large(line)


async def test_what_is_read_again_is_what_was_played(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each scenario by its own turns, though they are in one chat (S11)."""
    monkeypatch.setattr("worker.tasks.packed", lambda document, _attempt: jsontext.dumps(document))
    stage.books(ONE_LONG)
    await stage.run(Conversation(0, 0))
    records = stage.ledger.records(stage.plan.id)
    assert set(records) == {ATTEMPT, Attempt(0, 1, 0)}
    async with Client(stage.api.url, TOKEN) as client:
        for attempt, blob in records.items():
            line = jsontext.loads(blob)
            slim = jsontext.loads(packed(line, attempt))
            assert is_large(slim)
            assert slim["trial_record"] is None
            assert await made_whole(slim, stage.plan, client) == line


async def test_runs_that_are_gone_are_given_up_by_name_after_some_tries(stage: Stage) -> None:
    stage.books(GRADED)
    left_out = {"attempt": "0:0:0", "runs": ["run_0"], "not_played": None}
    play = {"attempt": "0:0:0", "trial_record": None, LEFT_OUT: left_out}
    stage.ledger.put_play(stage.plan.id, ATTEMPT, jsontext.dumps(play))
    async with Client(stage.api.url, TOKEN) as client:
        with pytest.raises(ProblemAnswer):
            await made_whole(play, stage.plan, client)
    for _ in range(3):
        await stage.grade(ATTEMPT)
    assert stage.ledger.given_up(stage.plan.id)["0:0:0"]["code"] == "unreadable"


def test_what_is_small_or_compresses_well_waits_whole() -> None:
    turn = {"run_id": "run_1"}
    for text in ("short", "x" * 5_000_000):
        line = {"trial_record": {"turns": [turn], "not_played": None, "final_answer": text}}
        assert jsontext.loads(packed(line, ATTEMPT)) == line
    without = {"trial_record": None, "reason": LONG}
    assert jsontext.loads(packed(without, ATTEMPT)) == without
