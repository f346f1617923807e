"""Recorded conversations, played by the real player on the real server: a row of the table for each rule (S8–S17).

A row says what the agent does, turn by turn ("well", or the code that it fails with; the last stays), and what has come
of it: what was said in how many chats, and how each scenario ended.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from evalfleet.checks.outcome import judge
from evalfleet.plan import Limits, Plan
from tests.worker.test_play import Stage, failed, plan_of, script, stage, well
from worker.evidence import Play, missing_line

__all__ = ["stage"]  # the fixture

pytestmark = pytest.mark.timeout(60)

ROWS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "data" / "conversations.json").read_text())


def behaviour(word: str) -> Any:
    code, _, retryable = word.partition(" ")
    return well if code == "well" else failed(code, retryable=bool(retryable))


@pytest.mark.parametrize("row", ROWS, ids=[row["id"] for row in ROWS])
async def test_a_conversation_comes_to_what_the_rule_says(row: dict[str, Any], stage: Stage) -> None:
    text = "scenarios:\n" + "".join(f"  {line}\n" for line in row["case"])
    plan = plan_of(text, stage.api.harness_id, limits=Limits(tries=row.get("tries_allowed", 3)))
    stage.api.driver.script = script(*map(behaviour, row["agent"]))
    gave_up = await stage.play(plan, trial=row.get("trial", 0))

    assert [message for message, _ in stage.said] == row["said"]
    assert len({turn.chat_id for turn in stage.api.driver.turns}) == row["chats"]
    scored = {name_of(plan, played.attempt.scenario): played for played in stage.played if not played.context}
    outcomes = {}
    for name, played in scored.items():
        play = Play.of(played)
        outcomes[name] = judge(plan.scenario(played.attempt), play.trial, play.meaning, ()).outcome
        assert play.run_id == played.turns[-1].run["id"], "the attempt's run is the scenario's last"
    assert outcomes == row["outcomes"]
    context = Counter(name_of(plan, played.attempt.scenario) for played in stage.played if played.context)
    assert sorted(context) == row.get("context", [])
    missing = {}
    if gave_up is not None:
        for attempt in gave_up.attempts:
            missing[name_of(plan, attempt.scenario)] = missing_line(plan, attempt, gave_up)["reason"]
    assert missing == row.get("missing", {})
    for name, tries in row.get("tries", {}).items():
        assert len(scored[name].tries) == tries
    for name, tries in row.get("paid_tries", {}).items():
        assert sum(t["usage"] is not None for t in scored[name].tries) == tries
    if "usage" in row:
        assert [name for name, played in scored.items() if played.usage is not None] == row["usage"]
    if "evaluations" in row:
        keys = {evaluation.suite.key: plan.keys_of(index) for index, evaluation in enumerate(plan.evaluations)}
        assert keys == row["evaluations"]
    for name, message in row.get("last_turn", {}).items():
        assert scored[name].turns[-1].user == message


def name_of(plan: Plan, scenario: int) -> str:
    return plan.cases[0].scenarios[scenario].scenario.id
