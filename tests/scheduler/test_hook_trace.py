"""Hooks of an artifact: of a run, a scenario, a trial, or all of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evalfleet.artifact import FolderResults, Result, append_segment, open_artifact, write_plan
from evalfleet.errors import UsageError
from scheduler.hook_trace import Trace, trace_artifact
from tests.scheduler.samples import ARTIFACT, line, plan, scenario, trial_record


def hooked(trial: int, *decisions: str, **more: Any) -> dict[str, Any]:
    shared = {"run_id": f"run_{trial}", "hook": "tools.before", "source": "hooks/stay.py", "duration_ms": 3.0}
    hooks: list[dict[str, Any]] = [
        {**shared, "decision": said, "fallback": False, "error": "KeyError: 'price'" if said == "failed" else None}
        for said in decisions
    ]
    record = trial_record(hooks=hooks)
    record["turns"][0]["run_id"] = f"run_{trial}"
    return line("a", trial, trial_record=record, **more)


@pytest.fixture
def result(tmp_path: Path) -> Result:
    store = FolderResults(tmp_path)
    write_plan(store, plan({"tone": [scenario("a", trials=3)]}, ks=(3,)))
    broken = line("a", 2, trial_record={"turns": [{"run_id": "run_2"}]})
    append_segment(store, ARTIFACT, [hooked(0, "answered", "failed"), hooked(1, "deny"), broken])
    return open_artifact(store, ARTIFACT)


def reached(trace: Trace) -> list[tuple[str, int, int]]:
    return [(point.name, point.reached, point.failures) for point in trace.points]


@pytest.mark.parametrize(
    ("wanted", "trial", "found"),
    [
        (None, None, [("tools.before", 3, 1)]),
        ("run_1", None, [("tools.before", 1, 0)]),
        ("tone/a", None, [("tools.before", 3, 1)]),
        ("tone/a", 0, [("tools.before", 2, 1)]),
        ("run_2", None, []),
    ],
    ids=["all", "a run", "a scenario", "a trial", "a run whose record cannot be read"],
)
def test_what_is_asked_for_is_folded(
    result: Result, wanted: str | None, trial: int | None, found: list[tuple[str, int, int]]
) -> None:
    assert reached(trace_artifact(result, wanted, trial)) == found


@pytest.mark.parametrize(
    ("wanted", "trial", "message"),
    [
        ("run_9", None, "holds no run run_9"),
        ("tone/b", None, r"holds no trial of tone/b; did you mean tone/a\?"),
        ("tone/a", 7, "tone/a has no trial 8 in .*, only trials 1–3"),
        (None, 1, "name it too, as CASE/SCENARIO"),
    ],
)
def test_what_is_not_there_is_refused(result: Result, wanted: str | None, trial: int | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        trace_artifact(result, wanted, trial)


def lines(trace: Trace, width: int | None = None) -> list[str]:
    return [text.plain for text in trace.lines(width)]


def test_one_line_for_each_hook_point_and_what_was_never_reached(result: Result) -> None:
    first, second = lines(trace_artifact(result, "tone/a", 0))
    assert first == (
        "tools.before  reached 2 times, 1 by default (1 failure), median 3ms (hooks/stay.py); "
        "last failure: KeyError: 'price'"
    )
    assert second.startswith("never reached: context.build, ")
    assert lines(trace_artifact(result, "run_2", None)) == ["no hook was reached"]


def test_a_terminal_is_not_left_to_break_it(result: Result) -> None:
    shown = lines(trace_artifact(result, "tone/a", 0), 40)
    assert max(map(len, shown)) <= 40
    assert [line for line in shown if not line.startswith("    ")] == [
        "tools.before  reached 2 times, 1 by",
        "never reached: context.build,",
    ]
