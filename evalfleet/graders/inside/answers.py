"""What did a grader answer? (S24)

`True`/`False`, or a mapping whose `pass` is a bool; `score` a finite number, absent or None; `why` anything that can be
made text; further keys ignored. All else is malformed, and the sentence says what was seen. Runs in the grader's own
process, because reading a foreign mapping, number or text runs the grader's code.
"""

from __future__ import annotations

import decimal
import math
import numbers
from collections.abc import Mapping
from typing import Any

WHY_CHARS = 16 * 1024
SEEN_CHARS = 200


class Malformed(Exception):
    """No answer by S24."""


def clean(text: str) -> str:
    """Text that any JSON reader takes: a lone surrogate is written out as `\\udXXX`."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return clean(text)
    return clean(text[:limit]) + f" … (cut: {len(text)} characters)"


def describe(value: Any) -> str:
    """A short name for what was seen, that never fails and never grows."""
    kind = type(value).__name__
    if value is None:
        return "None"
    if isinstance(value, (bytes, str)):
        return f"{kind} {cut(repr(value[:SEEN_CHARS]), SEEN_CHARS)}"
    if type(value) in (bool, float):
        return repr(value)
    if type(value) is int:
        return repr(value) if value.bit_length() < 256 else "a whole number of over 256 bits"
    if type(value) in (list, tuple, dict, set):
        return f"{kind} of {len(value)}"
    return f"an object of type {cut(kind, SEEN_CHARS)}"


def read_answer(value: Any) -> dict[str, Any]:
    """`{"pass": bool, "score": float | None, "why": str | None}`; Malformed otherwise. A score of another kind of
    number (Decimal, Fraction, numpy's) becomes the nearest float; a `why` that is no text becomes its `str`."""
    if type(value) is bool:
        return {"pass": value, "score": None, "why": None}
    if not isinstance(value, Mapping):
        raise Malformed(f'answered {describe(value)}; wanted True, False or {{"pass": bool, "score": …, "why": …}}')
    if "pass" not in value:
        raise Malformed(f'answered {describe(value)} without "pass"; wanted {{"pass": True or False, …}}')
    passed = value["pass"]
    if type(passed) is not bool:
        raise Malformed(f'answered "pass": {describe(passed)}; wanted True or False')
    return {"pass": passed, "score": _score(value.get("score")), "why": _why(value.get("why"))}


def _score(score: Any) -> float | None:
    if score is None:
        return None
    if isinstance(score, bool) or not isinstance(score, (numbers.Real, decimal.Decimal)):
        raise Malformed(f'answered "score": {describe(score)}; wanted a number, or none at all')
    try:
        number = float(score)
    except (OverflowError, ValueError):  # 10**400; a Decimal that is a signalling NaN
        number = math.inf
    if not math.isfinite(number):
        raise Malformed(f'answered "score": {describe(score)}; wanted a finite number')
    return number


def _why(why: Any) -> str | None:
    if why is None:
        return None
    # A text of a class of its own, as t.llm's answer is one, is the text that it holds: no method of its is asked.
    return cut(str.__str__(why) if isinstance(why, str) else str(why), WHY_CHARS)
