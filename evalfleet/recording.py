"""What does an evaluation take of an attempt line, and which attempts does it refuse?"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from evalfleet.errors import ProblemAnswer
from evalfleet.plan import Attempt, Plan

BATCH: Final = 500
"""Attempts of one `attempts:batch`."""
OF_SOME: Final = frozenset({400, 413, 422})
"""What refuses a batch for some of its attempts, or for its size."""
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


def named_attempts(problem: ProblemAnswer, sent: Sequence[Attempt]) -> dict[Attempt, str]:
    """The attempts of a batch that an answer points at, each with its first reason."""
    named: dict[Attempt, str] = {}
    for error in problem.errors:
        at = _ATTEMPT_AT.match(str(error.get("name")))
        if at is not None and int(at[1]) < len(sent):
            where = str(error["name"])[at.end() :]
            named.setdefault(sent[int(at[1])], f"{where} {error.get('reason') or problem.detail}".strip())
    return named


def refused_attempts(problem: ProblemAnswer, sent: Sequence[Attempt]) -> dict[Attempt, str]:
    """Which attempts the server refuses, and why, as far as its answer tells: those that it names, or the only one."""
    named = named_attempts(problem, sent) or ({sent[0]: problem.detail} if len(sent) == 1 else {})
    return {attempt: f"the server refuses to record it: {why}" for attempt, why in named.items()}
