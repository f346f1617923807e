"""What does an evaluation take of an attempt line, and which attempts does it refuse?"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from evalfleet.checks.text import one_line
from evalfleet.errors import ProblemAnswer
from evalfleet.plan import Attempt, Plan

_A = TypeVar("_A")
"""What somebody calls an attempt."""

BATCH: Final = 500
"""Attempts of one `attempts:batch`."""
OF_SOME: Final = frozenset({400, 413, 422})
"""What refuses a batch for some of its attempts, or for its size."""
MOST_OF_A_REASON: Final = 300
_ATTEMPT_AT: Final = re.compile(r"/attempts/(\d+)(?:/|$)")


def wire_attempt(plan: Plan, attempt: Attempt, line: Mapping[str, Any]) -> dict[str, Any]:
    """The attempt as `attempts:batch` takes it; an error is verdict `failed` with its reason as feedback (S16)."""
    body: dict[str, Any] = {
        "case_key": plan.key_of(attempt),
        "attempt_index": attempt.trial,
        "run_id": line["run_id"],
        "verdict": "passed" if line["outcome"] == "passed" else "failed",
        "scorer_id": plan.scorer.id,
        "scorer_version": plan.scorer.version,
    }
    if line.get("judge_score") is not None:
        body["judge_score"] = line["judge_score"]
    feedback = line.get("judge_feedback") or (line.get("reason") if line["outcome"] == "error" else None)
    if feedback:
        body["judge_feedback"] = feedback
    return body


def named_attempts(problem: ProblemAnswer, sent: Sequence[_A]) -> dict[_A, str]:
    """The attempts of a batch that an answer points at, each with its first reason."""
    named: dict[_A, str] = {}
    for error in problem.errors:
        at = _ATTEMPT_AT.match(str(error.get("name")))
        if at is not None and int(at[1]) < len(sent):
            where = str(error["name"])[at.end() :]
            reason = one_line(str(error.get("reason") or problem.detail), MOST_OF_A_REASON)
            named.setdefault(sent[int(at[1])], f"{where} {reason}".strip())
    return named


def refused_attempts(problem: ProblemAnswer, sent: Sequence[_A]) -> dict[_A, str]:
    """Which attempts the server refuses, and why, as far as its answer tells: those that it names, or the only one."""
    alone = {sent[0]: one_line(problem.detail, MOST_OF_A_REASON)} if len(sent) == 1 else {}
    named = named_attempts(problem, sent) or alone
    return {attempt: f"the server refuses to record it: {why}" for attempt, why in named.items()}
