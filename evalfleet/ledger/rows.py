"""How do the outcomes of a large submission stay small in Redis?

A hash with a field for each scenario of each case: one letter for each trial, in order, and `.` where there is none.
The field `#` counts the letters. `lua/_rows.lua` does the same for the scripts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from evalfleet.plan import Attempt

WORDS = ("passed", "failed", "error", "missing", "recorded")
"""`recorded`: the evaluation alone knows how it went."""
_WORD_OF = {word[0]: word for word in WORDS}
_NONE = "."
COUNT = "#"


def pack(outcomes: Mapping[Attempt, str]) -> dict[str, str | int]:
    """The fields of the hash."""
    rows: dict[str, list[str]] = {}
    for attempt, word in outcomes.items():
        row = rows.setdefault(_row(attempt), [])
        row.extend(_NONE * (attempt.trial + 1 - len(row)))
        row[attempt.trial] = word[0]
    return {COUNT: len(outcomes), **{name: "".join(letters) for name, letters in rows.items()}}


def _row(attempt: Attempt) -> str:
    return f"{attempt.case}:{attempt.scenario}"


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What such a hash says."""

    rows: Mapping[str, str]

    @classmethod
    def read(cls, raw: Mapping[bytes, bytes]) -> Outcomes:
        return cls({key.decode(): letters.decode() for key, letters in raw.items() if key != COUNT.encode()})

    def __contains__(self, attempt: Attempt) -> bool:
        letters = self.rows.get(_row(attempt), "")
        return attempt.trial < len(letters) and letters[attempt.trial] != _NONE

    def items(self) -> Iterator[tuple[Attempt, str]]:
        for name, letters in self.rows.items():
            case, scenario = name.split(":")
            for trial, letter in enumerate(letters):
                if letter != _NONE:
                    yield Attempt(int(case), int(scenario), trial), _WORD_OF[letter]

    def by_name(self) -> dict[str, str]:
        """Attempt (as text) → outcome."""
        return {str(attempt): word for attempt, word in self.items()}

    @staticmethod
    def fields_of(attempts: Sequence[Attempt]) -> list[str]:
        """The fields that speak of these attempts."""
        return [_row(attempt) for attempt in attempts]
