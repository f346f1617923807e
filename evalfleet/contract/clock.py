"""How far is the server's clock from ours?

Spent time goes by the platform's clock (S12), so a deadline of ours needs the difference. A `Date` header has whole
seconds, and servers make it once a second (uvicorn does), so that it can be nearly two old: each answer puts the
difference into an interval, and the intervals of several answers are cut together. Clocks that may agree are taken to
agree, as synchronised ones do; else the middle of the interval is good to a second.
"""

from __future__ import annotations

from typing import Final

from evalfleet.contract.retry import http_date

DATE_AGE: Final = 2.0
"""Seconds that a `Date` may be behind the clock it was read from: one cut off, one kept."""


class ClockOffset:
    """Server time minus our time, in seconds, learned from `Date` headers. 0.0 before the first one."""

    def __init__(self) -> None:
        self._low: float | None = None
        self._high = 0.0
        self._text = ""
        self._date: float | None = None

    @property
    def seconds(self) -> float:
        if self._low is None or self._low <= 0.0 <= self._high:
            return 0.0
        return (self._low + self._high) / 2

    def learn(self, date: str | None, *, sent: float, received: float) -> None:
        """Take in a `Date` header of an answer to a request sent and received at these Unix times by our clock."""
        if date is None:
            return
        if date != self._text:  # many answers share a second: parse it once
            self._text, self._date = date, http_date(date)
        if self._date is None:
            return
        low, high = self._date - received, self._date + DATE_AGE - sent
        if self._low is not None and max(low, self._low) <= min(high, self._high):
            low, high = max(low, self._low), min(high, self._high)
        # else a clock was set or drifted: what was known is forgotten
        self._low, self._high = low, high
