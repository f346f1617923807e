"""How is text that somebody else wrote shown in a sentence, and how is it made safe to store?"""

from __future__ import annotations

import json
import unicodedata
from decimal import Decimal
from typing import Any

SHOWN = 160
"""Characters of a value that a sentence shows before it is shortened in the middle."""

DEEPEST = 200
"""Levels of nesting that a value from a run may have; deeper ones are cut (JSON writers give up at 254 or 1000)."""

TOO_DEEP = "[nested deeper than 200 levels: not kept]"
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def visible(text: str) -> str:
    """The text with nothing hidden in it: control, format and other unseen characters as escapes (S23, A15)."""
    if text.isascii() and text.isprintable() and "\\" not in text and '"' not in text:
        return text
    return "".join(map(_shown, text))


def quoted(text: str, limit: int = SHOWN) -> str:
    """The text in double quotes, shortened in the middle, with everything in it to be seen."""
    return f'"{shortened(text, limit)}"'


def shortened(text: str, limit: int = SHOWN) -> str:
    """`visible` of the start and the end, with the number of characters between them."""
    if len(text) <= limit:
        return visible(text)
    head, tail = limit * 2 // 3, limit // 3
    return f"{visible(text[:head])} … [{len(text) - head - tail} characters] … {visible(text[-tail:])}"


def one_line(text: str, limit: int) -> str:
    """Somebody's sentence as one line of a report: control characters shown, quotes left alone, cut at `limit`."""
    shown = text[: limit + 1]
    if not shown.isprintable():  # what is hidden is never printable; most text has nothing hidden in it
        shown = "".join(_shown(char) if unicodedata.category(char) in _HIDDEN else char for char in shown)
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def trial_number(index: int) -> int:
    """The number by which people read a trial: from 1, like turns. What programs read (JSON, the artifact, the wire)
    has the index, from 0."""
    return index + 1


def compact_json(value: Any) -> str:
    """JSON without white space, letters as they are, keys in the order they came: how not-text becomes text (S11)."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def as_text(value: Any) -> str:
    """Text stays as it is; anything else is compact JSON (S11, S20)."""
    return value if isinstance(value, str) else compact_json(value)


def shown_value(value: Any, limit: int = SHOWN) -> str:
    """Any JSON value in a sentence."""
    text = compact_json(value)
    if len(text) <= limit:
        return "".join(_shown(char) if unicodedata.category(char) in _HIDDEN else char for char in text)
    return shortened(text, limit).replace('\\"', '"')


def plain_number(number: float) -> str:
    """A number without exponent and without idle zeros: 0.7, 85, 0.0000001."""
    text = format(Decimal(repr(number)), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def writable(text: str) -> str:
    """The text as UTF-8 can hold it: lone surrogates become U+FFFD (B11)."""
    if text.isascii():
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return "".join(REPLACEMENT if "\ud800" <= char <= "\udfff" else char for char in text)
    return text


def json_safe(value: Any) -> Any:
    """A fresh copy of a JSON value that every JSON writer accepts.

    Lone surrogates become U+FFFD, numbers that JSON has not (NaN, infinity) become null, whole numbers beyond 64 bits
    become floating point, as every 64-bit reader takes them.
    """
    if isinstance(value, str):
        return writable(value)
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**64 else _as_float(value)
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, dict):
        return {writable(str(key)): json_safe(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_safe(item) for item in value]
    return writable(str(value))


def bounded(value: Any) -> Any:
    """The value itself, or TOO_DEEP in place of one that is nested so deep that nothing could write it down again."""
    if not isinstance(value, (dict, list)):
        return value
    level: list[Any] = [value]
    for _ in range(DEEPEST):
        deeper: list[Any] = []
        for item in level:
            deeper.extend(
                child
                for child in (item.values() if isinstance(item, dict) else item)
                if isinstance(child, (dict, list))
            )
        if not deeper:
            return value
        level = deeper
    return TOO_DEEP


def parsed_once(value: Any) -> Any:
    """Arguments that arrive as JSON text, parsed once; text that is no JSON, and JSON nested too deep, stays (S11)."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value, parse_int=_whole, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return value


def _whole(digits: str) -> int | float:
    number = int(digits)
    if -(2**63) <= number < 2**64:
        return number
    floating = _as_float(number)
    if floating is None:
        raise ValueError(f"{digits[:20]}… is beyond every number format")
    return floating


def _as_float(number: int) -> float | None:
    try:
        return float(number)
    except OverflowError:
        return None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _shown(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    category = unicodedata.category(char)
    if category in _HIDDEN or (category == "Zs" and char != " "):
        code = ord(char)
        return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    return char
