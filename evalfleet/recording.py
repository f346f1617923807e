"""What does an evaluation take of an attempt line?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from evalfleet.plan import Attempt, Plan

BATCH: Final = 500
"""Attempts of one `attempts:batch`."""


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
