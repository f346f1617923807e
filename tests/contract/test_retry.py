"""When a request is sent again, as a table (wire.md, "Safe to retry"; E10)."""

from __future__ import annotations

from typing import Any

import pytest

from evalfleet.contract.retry import (
    BACKOFF_MOST,
    IN_FLIGHT_MOST,
    GiveUp,
    Retry,
    Seen,
    backoff,
    decide,
    retry_after_seconds,
)

GET: dict[str, Any] = {"method": "GET"}
KEYED: dict[str, Any] = {"method": "POST", "has_key": True}
CANCEL: dict[str, Any] = {"method": "POST", "repeatable": True}
BARE: dict[str, Any] = {"method": "POST"}

AGAIN = [
    # what came back, of which request, the wait in seconds at jitter 0
    (Seen(None), GET, 0.125),
    (Seen(None), KEYED, 0.125),
    (Seen(None), CANCEL, 0.125),
    (Seen(500, "internal_error"), GET, 0.125),
    (Seen(502, "upstream_unavailable"), KEYED, 0.125),
    (Seen(503), CANCEL, 0.125),
    (Seen(429, "rate_limited"), GET, 0.125),
    (Seen(429, "rate_limited", retry_after=2.0), KEYED, 2.0),
    (Seen(429, "rate_limited", retry_after=0.0), GET, 0.125),  # a date in the past: our own back-off, no hot loop
    (Seen(503, "", retry_after=7.0), GET, 7.0),
    (Seen(409, "idempotency_key_in_flight"), KEYED, 0.125),
]


@pytest.mark.parametrize(("seen", "request_kind", "wait"), AGAIN, ids=repr)
def test_sent_again(seen: Seen, request_kind: dict[str, Any], wait: float) -> None:
    assert decide(seen, **request_kind, attempt=0, remaining=60.0, jitter=0.0) == Retry(wait)


NEVER = [
    # what came back, of which request, a word of the reason
    (Seen(None), BARE, "idempotency key"),
    (Seen(502), BARE, "idempotency key"),
    (Seen(429), BARE, "idempotency key"),
    (Seen(429, "usage_window_exceeded", quota=True, retry_after=1.0), GET, "usage window"),
    (Seen(409, "idempotency_key_in_flight"), BARE, "final"),
    (Seen(409, "idempotency_key_in_flight"), CANCEL, "final"),
    (Seen(409, "idempotency_key_conflict"), KEYED, "final"),
    (Seen(409, "attempt_conflict"), KEYED, "final"),
    *((Seen(status), GET, "final") for status in (301, 400, 401, 402, 403, 404, 406, 408, 410, 413, 422)),
]


@pytest.mark.parametrize(("seen", "request_kind", "word"), NEVER, ids=repr)
def test_never_sent_again(seen: Seen, request_kind: dict[str, Any], word: str) -> None:
    decision = decide(seen, **request_kind, attempt=0, remaining=60.0, jitter=0.5)
    assert isinstance(decision, GiveUp)
    assert word in decision.reason


def test_the_wait_never_passes_the_time_that_is_left() -> None:
    assert isinstance(decide(Seen(None), method="GET", attempt=3, remaining=0.5, jitter=0.0), GiveUp)
    assert isinstance(decide(Seen(None), method="GET", attempt=0, remaining=-1.0, jitter=0.0), GiveUp)
    told = decide(Seen(429, retry_after=3600.0), method="GET", attempt=0, remaining=60.0, jitter=0.0)
    assert told == GiveUp("told to wait 3600 s, 60.0 s are left")


def test_back_off_doubles_up_to_its_most_and_half_of_it_is_random() -> None:
    assert [backoff(attempt, 0.0) for attempt in range(4)] == [0.125, 0.25, 0.5, 1.0]
    assert backoff(0, 0.999) < 0.25
    assert backoff(10_000, 0.0) == BACKOFF_MOST / 2
    in_flight = decide(Seen(409, "idempotency_key_in_flight"), **KEYED, attempt=20, remaining=60.0, jitter=0.9)
    assert in_flight == Retry(IN_FLIGHT_MOST)


NOW = 1_788_333_708.0  # Wed, 02 Sep 2026 07:21:48 GMT

RETRY_AFTER = [
    ("2", 2.0),
    (" 2 ", 2.0),
    ("0", 0.0),
    ("1.5", 1.5),
    ("17604", 17604.0),
    ("Wed, 02 Sep 2026 07:21:58 GMT", 10.0),
    ("Wed, 02 Sep 2026 09:21:58 +0200", 10.0),
    ("Wednesday, 02-Sep-26 07:21:58 GMT", 10.0),  # the obsolete form that RFC 9110 wants read
    ("Wed, 02 Sep 2026 07:21:00 GMT", 0.0),  # past
    ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
    (None, None),
    ("", None),
    ("soon", None),
    ("-1", None),
    ("NaN", None),
    ("inf", None),
    ("9" * 5000, None),
    ("Wed, 99 Sep 2026 07:21:58 GMT", None),
    ("٣", None),
]


@pytest.mark.parametrize(("value", "seconds"), RETRY_AFTER, ids=lambda value: str(value)[:40])
def test_e10_retry_after_in_both_forms(value: str | None, seconds: float | None) -> None:
    assert retry_after_seconds(value, now=NOW) == seconds
