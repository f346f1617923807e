"""Which scenarios are played and reported, and do not gate, and until when? (`[[quarantine]]` in evalfleet.toml)"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from evalfleet.checks.near import folded
from evalfleet.checks.place import Place

NOWHERE = Place("", 1, 1)


@dataclass(frozen=True, slots=True)
class Quarantine:
    """`scenario` is the key `<case>/<scenario id>`, `until` its last day (UTC). `place`: where it is written. `suite`:
    the file whose row it is, from the tree's root; None: a scenario of the tree's cases."""

    scenario: str
    reason: str
    until: date
    place: Place = field(default=NOWHERE, compare=False)
    suite: str | None = None

    def holds(self, today: date) -> bool:
        return today <= self.until

    def __str__(self) -> str:
        return f"quarantined until {self.until}: {self.reason}"

    def over(self) -> str:
        """What is said of one that holds no more."""
        return (
            f"the quarantine of {self.scenario} ended on {self.until}, so it gates again ({self.reason}); "
            "remove it, or give it another day"
        )

    def document(self) -> dict[str, Any]:
        """What a scenario carries in `--json`."""
        return {"reason": self.reason, "until": self.until.isoformat()}

    def to_json(self) -> dict[str, Any]:
        return {"scenario": self.scenario, **self.document()}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Quarantine:
        """ValueError, KeyError for what is none of ours."""
        return cls(str(document["scenario"]), str(document["reason"]), date.fromisoformat(document["until"]))


def in_force(entries: Iterable[Quarantine], today: date) -> tuple[Quarantine, ...]:
    """Those that hold on a day."""
    return tuple(entry for entry in entries if entry.holds(today))


def applying(entries: Iterable[Quarantine], suites: Mapping[str, str | None]) -> tuple[Quarantine, ...]:
    """Those of the scenarios at hand: `suites` has the folded key of each, and the suite's file where it is a row."""
    return tuple(e for e in entries if suites.get(folded(e.scenario), "") == e.suite)


def by_key(entries: Iterable[Quarantine]) -> dict[str, Quarantine]:
    """Folded key → entry: ids that only look different are the same (S3)."""
    return {folded(entry.scenario): entry for entry in entries}
