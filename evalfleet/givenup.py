"""Why is an attempt missing, when what was given up is its whole conversation?

A conversation is given up in one scenario. The reason is that scenario's; those after it were not played because of it,
and those before it have been played, so that it is no reason of theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from evalfleet.plan import Attempt, Plan

RECORD_REFUSED: Final = "record_refused"
"""The code of an attempt that has its evidence and that the server refuses to record."""


def entry(reason: str, code: str = "", *, scenario: int | None = None) -> dict[str, Any]:
    """What the ledger keeps of it. `scenario`: the index at which a conversation was given up; None: all of it was."""
    return {"reason": reason, "code": code} | ({} if scenario is None else {"scenario": scenario})


def reason_of(plan: Plan, attempt: Attempt, given_up: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Why this attempt was given up, in words; None where it was not. `given_up`: conversation or attempt as text → its
    entry."""
    own = given_up.get(str(attempt))
    if own is not None:
        return str(own["reason"])
    whole = given_up.get(str(attempt.conversation))
    if whole is None:
        return None
    reason, at = str(whole["reason"]), whole.get("scenario")
    if at is None or attempt.scenario == at:
        return reason
    if attempt.scenario < at:
        return None
    before = plan.cases[attempt.case].scenarios[at].scenario.id
    return f"not played: {before} before it gave no result: {reason}"
