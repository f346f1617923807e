"""How is JSON read and written so that nothing an agent says can break it (B11, E10)?

orjson is fast and strict. Agents are not: an answer may hold half an emoji (`"\\ud83d"`, a lone surrogate), and some
servers write `NaN`. Both are read by the standard library instead, and a lone surrogate is written as the JSON escape
that it came as. So every text survives a round trip, and what is written is always valid UTF-8 and valid JSON.
"""

from __future__ import annotations

import json
import math
from typing import Any

import orjson


def loads(text: bytes | str) -> Any:
    """The JSON value in `text` (bytes are UTF-8; invalid bytes read as U+FFFD). ValueError says what is wrong with it.

    Lone surrogate escapes stay in the string as they are. `NaN` and `Infinity`, which JSON does not have, read as null;
    so does a number that no float can hold.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return _loads_leniently(text)


def _loads_leniently(text: bytes | str) -> Any:
    if isinstance(text, bytes):
        text = text.decode("utf-8", errors="replace")
    try:
        return json.loads(text, parse_constant=_constant_as_null, parse_float=_finite)
    except RecursionError as problem:
        raise ValueError("the JSON is nested too deeply") from problem


def _constant_as_null(_name: str) -> None:
    return None


def _finite(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else None


def dumps(value: Any) -> bytes:
    """Compact UTF-8 JSON. Lone surrogates become `\\udXXX` escapes; NaN and infinities are null, as orjson has it.

    TypeError for a value that JSON cannot hold.
    """
    try:
        return orjson.dumps(value)
    except TypeError:
        # orjson refuses lone surrogates and integers over 64 bits; the escaped form is valid for both.
        return json.dumps(_without_nan(value), separators=(",", ":"), allow_nan=False).encode("ascii")


def _without_nan(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return value
