"""How many attempts may be missing at the end, and how does an evaluation end without them? (`--allow-missing`, S18)"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from scheduler.enough import STOPPED_BY

if TYPE_CHECKING:  # the command line reads the flag with this module, and waits for nothing else
    from evalfleet.contract.client import Client
    from evalfleet.ledger import Progress
    from scheduler.dispatch import Ended
    from scheduler.summary import Summary

_SPELLING = re.compile(r"([0-9]{1,9})|([0-9]{1,3}(?:\.[0-9]{1,6})?)%", re.ASCII)
_SOMEBODY_STOPPED = frozenset({"interrupted", "leave_running", STOPPED_BY})
"""Ends that somebody asked for: what is missing there was not given up, it waits for the resume."""
_UNKNOWN = frozenset({"broker_away"})
"""Ends after which nobody knows what workers still record."""


@dataclass(frozen=True, slots=True)
class AllowedMissing:
    """`attempts` at most, or `percent` of all attempts at most; one of them is None."""

    attempts: int | None = None
    percent: Decimal | None = None

    @classmethod
    def parse(cls, text: str) -> AllowedMissing:
        """`3` or `2.5%`. ValueError, with the reason, for every other spelling."""
        found = _SPELLING.fullmatch(text.strip())
        if found is None:
            raise ValueError("write a number of attempts such as 3, or a share of them such as 2.5%")
        if found[1]:
            return cls(attempts=int(found[1]))
        if Decimal(found[2]) > 100:
            raise ValueError("a share is 0% to 100%")
        return cls(percent=Decimal(found[2]))

    def covers(self, summary: Summary) -> bool:
        """Whether so many may be missing; what the server refuses to record counts as that. Never all of them: of
        nothing there is no verdict. Never while other evidence is not recorded yet: an ended evaluation would not take
        it any more."""
        missing, every = summary.missing + summary.refused, summary.attempts
        if not missing or missing == every or summary.unrecorded > summary.refused:
            return False
        return missing <= self.attempts if self.attempts is not None else missing * 100 <= (self.percent or 0) * every


def ended_by_itself(ended: Ended, progress: Progress) -> bool:
    """Is this the end of a run: nobody stopped it, no limit did, it is no fault of ours, and nothing is under way?"""
    if ended.state not in {"incomplete", "stopped"} or ended.code in _SOMEBODY_STOPPED | _UNKNOWN:
        return False
    if ended.is_our_fault or ended.is_by_limit:
        return False
    return progress.running == 0 and progress.waiting == 0


async def end_evaluations(client: Client, documents: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """Cancel those that are still running, which keeps what is recorded; all documents as they stand then."""
    return tuple([await client.cancel_evaluation(str(d["id"])) if d["status"] == "running" else d for d in documents])


def are_over(documents: Sequence[Mapping[str, Any]]) -> bool:
    """Whether none of an evaluation's documents takes attempts any more; False where none could be read."""
    return bool(documents) and all(document["status"] != "running" for document in documents)
