"""Which verdicts are judged otherwise than they were recorded, and why? (S32)

Attempt by attempt as the lines go by, kept for each scenario as counts and one example.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scheduler.summary import Summary


@dataclass(frozen=True, slots=True)
class ScenarioChange:
    """A scenario with attempts that are judged otherwise. `was`, `now`: its verdicts (S29), equal where attempts moved
    and the verdict did not. `attempts`: (outcome then, outcome now) → how many. `trial`: the first of them, and
    `sentence` why it does not pass now, or else why it did not then. `cause`: what changed since."""

    case: str
    scenario: str
    was: str
    now: str
    attempts: Mapping[tuple[str, str], int]
    trial: int
    sentence: str | None
    cause: str

    def document(self) -> dict[str, Any]:
        return {
            "case": self.case,
            "scenario": self.scenario,
            "was": self.was,
            "now": self.now,
            "attempts": [{"was": was, "now": now, "count": n} for (was, now), n in self.attempts.items()],
            "trial": self.trial,
            "why": self.sentence,
            "cause": self.cause,
        }


@dataclass(frozen=True, slots=True)
class Changes:
    """All of an artifact, in the plan's order. `stale`: (case, scenario, why it keeps what was recorded)."""

    scenarios: tuple[ScenarioChange, ...] = ()
    stale: tuple[tuple[str, str, str], ...] = ()

    def document(self) -> dict[str, Any]:
        """`changes` in `--json`."""
        return {
            "scenarios": [change.document() for change in self.scenarios],
            "stale": [{"case": case, "scenario": scenario, "why": why} for case, scenario, why in self.stale],
        }


@dataclass(slots=True)
class _Moves:
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    trial: int = -1
    sentence: str | None = None


class ChangeCounter:
    """Sees each attempt's line as it was and as it is now."""

    def __init__(self) -> None:
        self._moves: dict[tuple[str, str], _Moves] = {}

    def add(self, was: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        if was["outcome"] == now["outcome"] or was.get("context"):
            return
        moves = self._moves.setdefault((was["case"], was["scenario"]), _Moves())
        moves.counts[was["outcome"], now["outcome"]] += 1
        if moves.trial < 0 or was["trial"] < moves.trial:
            moves.trial = was["trial"]
            moves.sentence = now.get("reason") or was.get("reason")

    def changes(
        self,
        before: Summary,
        after: Summary,
        *,
        causes: Mapping[tuple[str, str], str],
        stale: Mapping[tuple[str, str], str],
    ) -> Changes:
        """`causes`: what changed since, for the scenarios that were judged anew."""
        found = []
        for old, new in zip(before.scenarios, after.scenarios, strict=True):
            key = (old.case, old.scenario)
            moves = self._moves.get(key)
            if moves is not None:
                counts = dict(sorted(moves.counts.items()))
                cause = causes.get(key, "")
                found.append(ScenarioChange(*key, old.verdict, new.verdict, counts, moves.trial, moves.sentence, cause))
        kept = tuple((s.case, s.scenario, why) for s in before.scenarios if (why := stale.get((s.case, s.scenario))))
        return Changes(tuple(found), kept)
