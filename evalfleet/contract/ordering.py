"""Which events of a run's journal are there without a hole, in their order?

A value machine without a socket or a clock. A journal is numbered 1, 2, 3 … without gaps (wire.md, "Events"), and that
is how a reader knows that it has all of it. So events may come in any order and any number of times, by stream and by
page: each leaves once, by its number, and none leaves before all that come before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from evalfleet.contract.models import is_end_event

HELD_MOST: Final = 256
"""Events beyond a hole that are kept. Others are dropped, and read again from the last one handed out."""


def checked_event(value: object, run_id: str) -> dict[str, Any]:
    """The event of this run that `value` is. ValueError says what it is instead.

    Its number is what proves that nothing before it is lost, so an event without one is none. Of its other fields
    only `type` has to be there: types that do not exist yet pass through.
    """
    event = value if isinstance(value, dict) else {}
    number = event.get("sequence")
    if not isinstance(event.get("type"), str):
        wrong = f"no event: {str(value)[:80]!r}"
    elif isinstance(number, bool) or not isinstance(number, int) or number < 1:
        wrong = f"no event: its sequence is {str(number)[:40]!r}, not a whole number from 1"
    elif event.get("run_id", run_id) != run_id:
        wrong = f"an event of another run, {str(event['run_id'])[:80]!r}"
    else:
        return event
    raise ValueError(wrong)


class JournalOrder:
    """`last`: the number of the last event handed out (0: none). `cursor`: where to resume, strictly after it. `ended`:
    the terminal `run.status_changed` has been handed out."""

    def __init__(self) -> None:
        self.last = 0
        self.cursor: str | None = None
        self.ended = False
        self.contradiction = ""
        """In words: two different events came under one number, so neither can be trusted."""
        self._given: list[Mapping[str, Any]] = []
        self._ids: set[str] = set()
        self._held: dict[int, tuple[dict[str, Any], str | None]] = {}

    @property
    def hole(self) -> int | None:
        """The number that is missing, if a later one has come."""
        return self.last + 1 if self._held else None

    @property
    def fault(self) -> str:
        """In words, why what was handed out is not all of it; "" if nothing says so."""
        if self.contradiction or self.hole is None:
            return self.contradiction
        return f"event {self.hole} is missing"

    def take(self, event: dict[str, Any], cursor: str | None) -> list[dict[str, Any]]:
        """The events that can leave now that this one, at this cursor, is here: none, or it and those that waited."""
        number: int = event["sequence"]
        if number <= self.last:
            self._compare(number, event, self._given[number - 1])
        elif number in self._held:
            self._compare(number, event, self._held[number][0])
        elif number == self.last + 1 or len(self._held) < HELD_MOST:
            identity = event.get("id")
            if isinstance(identity, str):
                if identity in self._ids:
                    return []  # delivered again under another number: the number it now takes stays missing
                self._ids.add(identity)
            self._held[number] = (event, cursor)
        return self._leaving()

    def _compare(self, number: int, event: Mapping[str, Any], former: Mapping[str, Any]) -> None:
        """Delivery is at least once: the same event again is dropped, whatever id it has got."""
        if any(event.get(key) != former.get(key) for key in ("type", "data")):
            self.contradiction = (
                f"two different events have the number {number}: {former['type'][:80]} and {event['type'][:80]}"
            )

    def _leaving(self) -> list[dict[str, Any]]:
        leaving = []
        while (following := self._held.pop(self.last + 1, None)) is not None:
            event, cursor = following
            self.last += 1
            self.cursor = cursor or self.cursor
            self.ended = self.ended or is_end_event(event)
            self._given.append(event)
            leaving.append(event)
        return leaving
