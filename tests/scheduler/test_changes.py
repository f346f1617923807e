"""The diff of verdicts: was → is, and why (S32)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evalfleet.artifact import FolderResults, append_segment, open_artifact, write_plan
from evalfleet.checks.case import load_cases
from evalfleet.plan import Scorer
from scheduler.changes import Changes
from scheduler.differences import change_lines
from scheduler.plan import SCORER
from scheduler.score import Today, rescored
from tests.scheduler.samples import ARTIFACT, line, plan, scenario, trial_record

QUESTION = "What is the capital of France?"


def changes(
    tmp_path: Path,
    rows: Sequence[Mapping[str, Any]],
    case: str | None,
    *,
    trials: int = 3,
    scorer: str = SCORER.version,
) -> Changes:
    """Of an artifact with the scenarios a and b, judged by `case`, or by the recorded cases."""
    store = FolderResults(tmp_path / "evals/results")
    asked = plan({"tone": [scenario("a", trials=trials), scenario("b", trials=trials)]}, ks=[trials])
    write_plan(store, replace(asked, scorer=Scorer("evalfleet-checks", scorer)))
    append_segment(store, ARTIFACT, rows)
    if case is not None:
        (tmp_path / "evals/cases").mkdir()
        (tmp_path / "evals/cases/tone.yaml").write_text(f"scenarios:\n{case}")
    result = open_artifact(store, ARTIFACT)
    return rescored(result, Today(result.plan, None if case is None else load_cases(tmp_path))).changes


def row(id_: str, expect: str, user: str = QUESTION, more: str = "") -> str:
    return f"- {{id: {id_}, user: {user}, expect: [{expect}]{more}}}\n"


SAME = row("b", "final_answer_contains: Paris")


@pytest.mark.parametrize("order", [(2, 0, 1), (0, 1, 2)])
def test_the_first_trial_stands_for_all_in_whatever_order_lines_come(tmp_path: Path, order: tuple[int, ...]) -> None:
    rows = [line("a", n, "failed", reason=f"no {n}", trial_record=trial_record(answer="paris")) for n in order]
    found = changes(tmp_path, rows, row("a", "final_answer_contains: paris") + SAME)
    [change] = found.scenarios
    assert (change.trial, change.sentence, dict(change.attempts)) == (0, "no 0", {("failed", "passed"): 3})
    assert [text.plain for text in change_lines(found, None)] == [
        "tone/a  FAIL → PASS  3 trials failed → passed",
        "    its expectations changed",
        "    trial 1: no 0",
    ]


def test_attempts_that_move_under_an_equal_verdict_are_told_too(tmp_path: Path) -> None:
    said = {0: "Paris", 1: "Rome", 2: "Rome, no: Lyon"}
    outcomes = {0: "passed", 1: "failed", 2: "failed"}
    rows = [line("a", n, outcomes[n], trial_record=trial_record(answer=said[n])) for n in said]
    [change] = changes(tmp_path, rows, row("a", "final_answer_contains: Rome") + SAME).scenarios
    assert (change.was, change.now) == ("flaky", "flaky")
    assert dict(change.attempts) == {("failed", "passed"): 2, ("passed", "failed"): 1}


@pytest.mark.parametrize(
    ("case", "scorer", "cause"),
    [
        pytest.param(row("a", "no_error: true") + SAME, SCORER.version, "its expectations changed", id="expectations"),
        pytest.param(
            row("a", "no_error: true", more=", timeout: 500s") + SAME,
            SCORER.version,
            "its expectations changed; its timeout changed",
            id="both",
        ),
        pytest.param(None, "0", f"the rules changed, from 0 to {SCORER.version}", id="rules"),
    ],
)
def test_the_cause_is_what_is_different_now(tmp_path: Path, case: str | None, scorer: str, cause: str) -> None:
    [change] = changes(tmp_path, [line("a", 0, "failed", reason="x")], case, trials=1, scorer=scorer).scenarios
    assert (change.now, change.cause) == ("pass", cause)


def test_stale_scenarios_are_listed_with_their_reasons(tmp_path: Path) -> None:
    found = changes(tmp_path, [line("a", 0), line("b", 0)], row("a", "no_error: true", user="Other?") + SAME)
    assert found.scenarios == ()
    assert [text.plain for text in change_lines(found, None)] == [
        "no verdict differs from what was recorded",
        "2 scenarios are stale, and kept as recorded:",
        "    tone/a: its turns changed since",
        "    tone/b: the turns before it changed since",
    ]
    assert found.document()["stale"][0] == {"case": "tone", "scenario": "a", "why": "its turns changed since"}


def test_somebody_elses_text_gives_no_orders_and_hides_nothing(tmp_path: Path) -> None:
    """B12"""
    reason = "\x1b[31mred\x00 ::error::x\nsecond line"
    rows = [line("a", 0, "failed", reason=reason)]
    found = changes(tmp_path, rows, row("a", "no_error: true") + SAME, trials=1)
    assert [text.plain for text in change_lines(found, None)][-1] == (
        "    trial 1: \\u001b[31mred\\u0000 ::error::x\\nsecond line"
    )
