"""How far is the server's clock from ours?

Spent time goes by the platform's clock (S12), so a deadline of ours needs the difference. A `Date` header has whole
seconds: each answer puts the difference into an interval, and the intervals of several answers are cut together.
"""

from __future__ import annotations

from evalfleet.contract.retry import http_date


class ClockOffset:
    """Server time minus our time, in seconds, learned from `Date` headers. 0.0 before the first one."""

    def __init__(self) -> None:
        self._low: float | None = None
        self._high = 0.0
        self._text = ""
        self._date: float | None = None

    @property
    def seconds(self) -> float:
        return 0.0 if self._low is None else (self._low + self._high) / 2

    def learn(self, date: str | None, *, sent: float, received: float) -> None:
        """Take in a `Date` header of an answer to a request sent and received at these Unix times by our clock."""
        if date is None:
            return
        if date != self._text:  # many answers share a second: parse it once
            self._text, self._date = date, http_date(date)
        if self._date is None:
            return
        low, high = self._date - received, self._date + 1.0 - sent
        if self._low is not None:
            low, high = max(low, self._low), min(high, self._high)
        if low > high:  # a clock was set or drifted: forget what was known
            low, high = self._date - received, self._date + 1.0 - sent
        self._low, self._high = low, high
