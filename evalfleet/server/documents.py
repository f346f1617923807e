"""How is a value written into the store and into an answer? As compact JSON in ASCII, which is then never parsed again.

The standard library's encoder is taken and not orjson: it escapes everything outside ASCII, so lone surrogates and NUL
survive the store (E07), U+2028 cannot split a line of a sloppy reader (C01), and integers have no size limit.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

MOST: Final = 2**53 - 1
"""Counts stand still here: it is the largest whole number that every reader of JSON takes exactly."""

_encode: Final = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"), allow_nan=False).encode
_encode_sorted: Final = json.JSONEncoder(
    ensure_ascii=True, separators=(",", ":"), allow_nan=False, sort_keys=True
).encode


def text_of(value: Any) -> str:
    """`value` as one line of ASCII JSON. NaN and infinities, which JSON cannot say, become null."""
    try:
        return _encode(value)
    except ValueError:
        return _encode(_without_nan(value))


def canonical(value: Any) -> str:
    """The same text for equal JSON values: keys sorted, `1.0` written as `1`."""
    return _encode_sorted(_folded(value))


def _without_nan(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return value


def _folded(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _folded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_folded(item) for item in value]
    return value


def now() -> str:
    """The time as the wire shows it: RFC 3339, UTC, microseconds."""
    return time_text(datetime.now(UTC))


def time_text(at: datetime) -> str:
    """`at`, which is in UTC, as the wire shows it."""
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def page_of(documents: Iterable[str], *, next_cursor: str | None, has_more: bool) -> bytes:
    """A page of ready documents. `next_cursor` is ours and needs no escaping."""
    cursor = f'"{next_cursor}"' if next_cursor is not None else "null"
    more = "true" if has_more else "false"
    return f'{{"data":[{",".join(documents)}],"page":{{"has_more":{more},"next_cursor":{cursor}}}}}'.encode("ascii")


def money_text(amount: Decimal) -> str:
    """A plain decimal without an exponent and without trailing zeros: "0.05413", "2", "0"."""
    text = format(amount, "f")
    return (text.rstrip("0").rstrip(".") if "." in text else text) or "0"


def counted(*counts: int) -> int:
    """What the counts add up to, MOST at the most: a sum that no column and no reader takes is no reason to fail."""
    return min(sum(counts), MOST)


def milliseconds_between(start: str, end: str) -> int:
    """Whole milliseconds from one time of ours to another."""
    return max(0, round((datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds() * 1000))
