"""What may an agent say? The objects of the protocol (docs/agents.md), each as a value, read from JSON.

What is not understood is a value too: `Broken`. Nothing here touches a process or a socket.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from evalfleet.server.driving import Call

DEPTH_LIMIT = 200  # what every JSON library on the way (journal, queue, artifact) can still write
_TOO_DEEP = f"nested deeper than {DEPTH_LIMIT} levels"
_SHOWN = 120


@dataclass(frozen=True, slots=True)
class ToolCallsLine:
    """Calls that were made at once: one for a `tool_call`, one or more for a `tool_calls`."""

    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class ToolResultLine:
    id: str
    output: Any


@dataclass(frozen=True, slots=True)
class HookLine:
    hook: str
    decision: str
    source: str | None = None
    duration_ms: float | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class UsageLine:
    """What was used since the last such line: they add up. `amount` is money, exact."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    amount: Decimal | None = None
    currency: str | None = None


@dataclass(frozen=True, slots=True)
class AnswerLine:
    """`value` is text, or JSON where an HTTP agent answers so. A later answer takes the place of an earlier one."""

    value: Any


@dataclass(frozen=True, slots=True)
class ErrorLine:
    """The agent says itself that the turn failed. `retry_after`: for how many seconds it is limited, if it knows."""

    message: str
    code: str
    retryable: bool
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class Broken:
    """The output cannot be read. `code` is `agent_protocol` or `agent_output_too_large`."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class NoteLine:
    """What a person has to know about how the output was read: the reader says it, and no agent. One sentence."""

    message: str


AgentLine = ToolCallsLine | ToolResultLine | HookLine | UsageLine | AnswerLine | ErrorLine | Broken | NoteLine

KINDS = ("tool_call", "tool_calls", "tool_result", "hook", "usage", "answer", "error")


@dataclass(frozen=True, slots=True)
class Unreadable:
    reason: str


def read_line(text: str, where: str, *, whole: bool = True) -> AgentLine:
    """One object of the protocol as text. `where` ("line 3", "event 2") names it in the message of a `Broken`."""
    document = loads(text)
    if isinstance(document, Unreadable):
        what = "is not JSON" if whole else "ends in the middle of a JSON object (or is no JSON at all)"
        return _broken(where, f"{what}: {document.reason}", text)
    if not isinstance(document, dict):
        return _broken(where, "is not a JSON object", text)
    return from_document(document, where)


def from_document(document: Mapping[str, Any], where: str) -> AgentLine:
    """One object of the protocol. Keys that the protocol does not know are passed over."""
    kind = document.get("type")
    try:
        match kind:
            case "tool_call":
                return ToolCallsLine((_call(document),))
            case "tool_calls":
                return ToolCallsLine(_calls(document))
            case "tool_result":
                return ToolResultLine(_id(document), document.get("output"))
            case "hook":
                return HookLine(
                    _text(document, "hook"),
                    _text(document, "decision"),
                    _text(document, "source", required=False) or None,
                    _number(document, "duration_ms", "milliseconds"),
                    _text(document, "error", required=False) or None,
                )
            case "usage":
                return UsageLine(
                    _count(document, "input_tokens"),
                    _count(document, "output_tokens"),
                    _count(document, "cache_read_tokens"),
                    _count(document, "cache_write_tokens"),
                    _amount(document),
                    _currency(document),
                )
            case "answer":
                return AnswerLine(_text(document, "text", blank=True))
            case "error":
                retryable = document.get("retryable", False)
                if not isinstance(retryable, bool):
                    raise _wrong("retryable", "true or false", retryable)
                code = _text(document, "code", required=False) or "agent_error"
                wait = _number(document, "retry_after", "seconds")
                return ErrorLine(_text(document, "message"), code, retryable, wait)
            case _:
                wanted = ", ".join(KINDS)
                return _broken(where, f"has no known `type` (one of {wanted})", json.dumps(document, default=str))
    except _WrongFieldError as wrong:
        return _broken(where, f"({kind}) {wrong}", json.dumps(document, default=str))


class _WrongFieldError(Exception):
    pass


def _wrong(key: str, wanted: str, seen: Any) -> _WrongFieldError:
    shown = "nothing" if seen is None else shorten(json.dumps(seen, default=str), 60)
    return _WrongFieldError(f"needs `{key}` to be {wanted}, not {shown}")


def _text(document: Mapping[str, Any], key: str, *, required: bool = True, blank: bool = False) -> str:
    value = document.get(key)
    if value is None and not required:
        return ""
    if not isinstance(value, str) or (required and not blank and not value.strip()):
        raise _wrong(key, "a text", value)
    return value


def _id(document: Mapping[str, Any]) -> str:
    value = document.get("id")
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return _text(document, "id")


def _call(document: Mapping[str, Any]) -> Call:
    return Call(_id(document), _text(document, "name"), document.get("args", {}))


def _calls(document: Mapping[str, Any]) -> tuple[Call, ...]:
    value = document.get("calls")
    if not isinstance(value, list) or not value or not all(isinstance(call, dict) for call in value):
        raise _wrong("calls", "a list of calls, each with `id`, `name` and `args`", value)
    return tuple(map(_call, value))


def _count(document: Mapping[str, Any], key: str) -> int:
    value = document.get(key)
    if value is None:
        return 0
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**53:
        raise _wrong(key, "a whole number of tokens", value)
    return value


def _number(document: Mapping[str, Any], key: str, unit: str) -> float | None:
    value = document.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**53:
        raise _wrong(key, f"a number of {unit}", value)
    return value


def _amount(document: Mapping[str, Any]) -> Decimal | None:
    value = document.get("amount")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise _wrong("amount", 'money as text ("0.0123")', value)
    try:
        amount = Decimal(str(value))
    except InvalidOperation:
        raise _wrong("amount", 'money as text ("0.0123")', value) from None
    # Written out without its exponent, 1e-999999999 would be a gigabyte; so is a text of as many digits.
    if not amount.is_finite() or amount < 0 or amount >= 10**12 or _places(amount) > 100:
        raise _wrong("amount", 'money as text ("0.0123")', value)
    return amount


def _places(amount: Decimal) -> int:
    return -int(amount.as_tuple().exponent)


def _currency(document: Mapping[str, Any]) -> str | None:
    """As ISO 4217 writes it: "usd" and "USD" are one."""
    value = document.get("currency")
    if value is None:
        return None
    if not isinstance(value, str) or not re.fullmatch(r"[A-Z]{3}", value.upper()):
        raise _wrong("currency", 'three letters ("USD")', value)
    return value.upper()


def _broken(where: str, what: str, text: str) -> Broken:
    return Broken("agent_protocol", f"{where} of the agent's output {what}; it starts: {shorten(text, _SHOWN)}")


def loads(text: str) -> Any:
    """JSON with its half characters kept (B11), and a value instead of an exception."""
    try:
        document = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
    except RecursionError:
        return Unreadable(_TOO_DEEP)
    except ValueError as error:
        return Unreadable(str(error))
    brackets = text.count("[") + text.count("{")
    return Unreadable(_TOO_DEEP) if brackets > DEPTH_LIMIT and _deeper_than(document, DEPTH_LIMIT) else document


def loads_first(text: str) -> Any:
    """The JSON that a text starts with, whatever comes behind it."""
    try:
        return _DECODER.raw_decode(text)[0]
    except RecursionError:
        return Unreadable(_TOO_DEEP)
    except ValueError as error:
        return Unreadable(str(error))


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{shorten(text, 20)} is too large for a number")
    return number


_DECODER = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite)


def _deeper_than(document: Any, limit: int) -> bool:
    level: list[Any] = [document]
    for _ in range(limit):
        level = [
            child
            for parent in level
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True


def shorten(text: str, limit: int) -> str:
    """The start of a text, with a mark where it was cut."""
    return text if len(text) <= limit else text[:limit] + "…"
