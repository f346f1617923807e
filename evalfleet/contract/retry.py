"""Is it safe and sensible to send this request again, and after how long?

A decision as a value: no clock, no randomness, no socket. The rules are wire.md's, "Safe to retry":

| what came back | again? |
| --- | --- |
| no answer (network), 429, 5xx | if repeating is safe: GET; a request with an `Idempotency-Key` (the same one); one that is idempotent by itself (cancel) |
| 409 `idempotency_key_in_flight` | with the same key, after a short back-off |
| 429 `usage_window_exceeded` | never: the quota is used up |
| any other 3xx, 4xx | never |
"""  # noqa: E501

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final

BACKOFF_FIRST: Final = 0.25
"""Seconds before the first repetition, at most; doubled each time."""

BACKOFF_MOST: Final = 10.0
IN_FLIGHT_MOST: Final = 2.0
"""A key in flight clears as soon as the first request ends: ask again soon."""

_SECONDS: Final = re.compile(r"\s*([0-9]{1,9}(?:\.[0-9]{1,6})?)\s*")


@dataclass(frozen=True, slots=True)
class Retry:
    after_seconds: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    reason: str


Decision = Retry | GiveUp


@dataclass(frozen=True, slots=True)
class Seen:
    """What a try came to. `status` None: no answer, or one that broke off. `retry_after` in seconds, if told."""

    status: int | None
    code: str = ""
    quota: bool = False
    retry_after: float | None = None


def decide(
    seen: Seen,
    *,
    method: str,
    has_key: bool = False,
    repeatable: bool = False,
    attempt: int,
    remaining: float,
    jitter: float,
) -> Decision:
    """Whether to send the request again.

    `has_key`: it carries an Idempotency-Key; `repeatable`: doing it twice is the same as doing it once. `attempt`
    counts the tries so far from 0; `remaining` is the time left in seconds; `jitter` a random number in [0, 1).
    """
    safe = method in {"GET", "HEAD"} or has_key or repeatable
    wait = backoff(attempt, jitter)
    match seen.status:
        case None:
            verdict = None if safe else "it may have been carried out, and has no idempotency key"
        case 429 if seen.quota:
            verdict = "the usage window is used up"
        case 429:
            verdict = None if safe else "it has no idempotency key"
        case 409 if seen.code == "idempotency_key_in_flight" and has_key:
            verdict, wait = None, min(wait, IN_FLIGHT_MOST)
        case status if status >= 500:
            verdict = None if safe else "it may have been carried out, and has no idempotency key"
        case _:
            verdict = "the answer is final"
    if verdict is not None:
        return GiveUp(verdict)
    if seen.retry_after is not None:
        # A little over what was told, so that all who were told the same don't come back in one instant.
        wait = max(wait, seen.retry_after + jitter * min(0.1 * seen.retry_after, BACKOFF_MOST))
    if wait >= remaining:
        told = f"told to wait {seen.retry_after:.0f} s, " if seen.retry_after else ""
        return GiveUp(f"{told}{max(remaining, 0.0):.1f} s are left")
    return Retry(wait)


def backoff(attempt: int, jitter: float, *, first: float = BACKOFF_FIRST, most: float = BACKOFF_MOST) -> float:
    """Seconds to wait after try number `attempt` (from 0): doubling up to `most`, the upper half of it random."""
    ceiling = min(most, first * 2.0 ** min(attempt, 32))
    return ceiling * (0.5 + 0.5 * jitter)


def retry_after_seconds(value: str | None, *, now: float) -> float | None:
    """Read a `Retry-After` header: seconds, or an HTTP date against `now` (Unix time by the *server's* clock).

    A date in the past is 0. None for no header and for what is neither form ("soon"): back off as if nothing was told.
    """
    if value is None:
        return None
    if match := _SECONDS.fullmatch(value):
        return float(match[1])
    at = http_date(value)
    return None if at is None else max(0.0, at - now)


def http_date(value: str | None) -> float | None:
    """Unix time of an HTTP date, None for what is none."""
    if not value:
        return None
    try:
        moment = parsedate_to_datetime(value)
        if moment.tzinfo is None:  # "-0000": a time in UTC whose zone is not told
            moment = moment.replace(tzinfo=UTC)
        seconds = moment.timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
    return seconds if math.isfinite(seconds) else None
