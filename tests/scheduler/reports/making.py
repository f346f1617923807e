"""Results of every kind for the tests of reports: real artifacts in a folder, as small as they can be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from evalfleet.artifact import FolderResults, append_segment, open_artifact, write_plan
from evalfleet.checks.text import quoted
from scheduler.reports import Report, report_of
from scheduler.score import recorded
from scheduler.summary import exit_code
from tests.scheduler.samples import ARTIFACT, line, plan, scenario, trial_record


def made(
    folder: Path,
    cases: Mapping[str, Sequence[dict[str, Any]]],
    lines: Sequence[Mapping[str, Any]],
    *,
    ks: Sequence[int] = (1,),
    allow_flaky: bool = False,
    missing_allowed: bool = False,
    ended: str = "",
) -> Report:
    """The report of an artifact with these lines."""
    store = FolderResults(folder)
    write_plan(store, plan(cases, ks=ks))
    append_segment(store, ARTIFACT, lines)
    result = open_artifact(store, ARTIFACT)
    summary = replace(recorded(result), missing_allowed=missing_allowed)
    code = exit_code(summary, allow_flaky=allow_flaky)
    return report_of(result, summary, code, allow_flaky=allow_flaky, ended=ended)


def asked(id_: str, *, trials: int = 3, at: int = 3, **more: Any) -> dict[str, Any]:
    """A scenario with two assertions at lines of their own."""
    expect: list[dict[str, Any]] = [{"tool_called": {"name": "lookup"}}, {"final_answer_contains": "Paris"}]
    document = scenario(id_, trials=trials, expect=expect, **more)
    return document | {"place": ["evals/cases/tone.yaml", at, 5], "expect_places": [[at + 3, 9], [at + 4, 9]]}


def failed(id_: str, trial: int, *, answer: str | None = "Lyon.", **more: Any) -> dict[str, Any]:
    """A trial whose second assertion failed."""
    sentence = f'the final answer does not contain "Paris"; it is {quoted(str(answer))}'
    return line(
        id_,
        trial,
        "failed",
        reason=sentence,
        trial_record=trial_record(answer=answer),
        findings=[
            {"index": 0, "kind": "tool_called", "passed": True, "sentence": "it was"},
            {"index": 1, "kind": "final_answer_contains", "passed": False, "sentence": sentence},
        ],
    ) | dict(more)


def errored(id_: str, trial: int, reason: str = "timed out: 301 s spent, and the timeout is 300 s") -> dict[str, Any]:
    """A trial that timed out: no assertion is the reason."""
    meaning = {"meaning": "timeout", "reason": reason, "code": "timeout"}
    return line(id_, trial, "error", reason=reason, meaning=meaning)


def every_kind(folder: Path, **more: Any) -> Report:
    """pass, flaky, fail, error, incomplete, and what was recorded elsewhere."""
    ids = ("passes", "wavers", "fails", "breaks", "waits", "elsewhere")
    return made(
        folder,
        {"tone": [asked(id_, at=3 + 10 * number) for number, id_ in enumerate(ids)]},
        [
            *(line("passes", n) for n in range(3)),
            line("wavers", 0), failed("wavers", 1), line("wavers", 2),
            *(failed("fails", n) for n in range(3)),
            line("breaks", 0), errored("breaks", 1), failed("breaks", 2),
            line("waits", 0), line("waits", 1, "missing", reason="server_lost, 3 tries"),
            *(line("elsewhere", n, "missing", recorded="elsewhere") for n in range(3)),
        ],
        ks=(3,),
        **more,
    )  # fmt: skip
