"""What does a plain YAML scalar mean where a number, a bool or free JSON is wanted? (S1: the YAML 1.2 core schema)"""

from __future__ import annotations

import re

NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_OCTAL = re.compile(r"0o[0-7]+")
_HEX = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")


def core_value(text: str) -> str | int | float | bool | None:
    """The value of a plain scalar by YAML 1.2 core. `on`, `yes`, dates and `1:30` are text.

    ValueError, with the reason, for what has no single meaning in JSON: a number with leading zeros, infinity, NaN,
    a whole number beyond 64 bits.
    """
    if text in NULLS:
        return None
    if text in _BOOLS:
        return _BOOLS[text]
    if text[0] not in "+-.0123456789":
        return text
    if _INT.fullmatch(text):
        return _whole(text, 10)
    if _OCTAL.fullmatch(text):
        return _whole(text[2:], 8)
    if _HEX.fullmatch(text):
        return _whole(text[2:], 16)
    if _LEADING_ZERO.fullmatch(text):
        raise ValueError("a number with leading zeros has two readings")
    if _NOT_FINITE.fullmatch(text):
        raise ValueError("JSON has no such number")
    if _FLOAT.fullmatch(text):
        number = float(text)
        if number - number != 0:
            raise ValueError("a number this large has no JSON spelling")
        return number
    return text


def _whole(digits: str, base: int) -> int:
    if len(digits) > 80:
        raise ValueError("a whole number beyond 64 bits is not the same number everywhere")
    number = int(digits, base)
    if not -(2**63) <= number < 2**64:
        raise ValueError("a whole number beyond 64 bits is not the same number everywhere")
    return number
