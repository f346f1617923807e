"""What does an agent's output say? The pure, incremental reader of the agent's protocol (docs/agents.md).

Bytes go in as they come, in pieces of any size; *lines* come out. Nothing here touches a process or a socket. What is
not understood is a value too (`Broken`), after which nothing more comes out.

The first line that is not blank decides: a JSON object with a known `type` means JSON Lines, anything else means that
the whole output is the answer, as plain text. Only a line feed ends a line (a raw U+2028 in a text does not).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Literal

LINE_LIMIT = 64 * 1024 * 1024
TOTAL_LIMIT = 256 * 1024 * 1024
DEPTH_LIMIT = 200  # what every JSON library on the way (journal, queue, artifact) can still write
_TOO_DEEP = f"nested deeper than {DEPTH_LIMIT} levels"
_SHOWN = 120


@dataclass(frozen=True, slots=True)
class ToolCallLine:
    id: str
    name: str
    args: Any


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
    """The agent says itself that the turn failed."""

    message: str
    code: str
    retryable: bool


@dataclass(frozen=True, slots=True)
class Broken:
    """The output cannot be read. `code` is `agent_protocol` or `agent_output_too_large`."""

    code: str
    message: str


AgentLine = ToolCallLine | ToolResultLine | HookLine | UsageLine | AnswerLine | ErrorLine | Broken
Mode = Literal["auto", "lines", "text"]

KINDS = ("tool_call", "tool_result", "hook", "usage", "answer", "error")
# A first line that cannot be parsed but says one of our types is a broken protocol and no answer in plain text.
_SAYS_A_TYPE = re.compile(r'"type"\s*:\s*"(?:' + "|".join(KINDS) + r')"')


class AgentOutput:
    """Reads one agent's output of one turn.

    `feed(bytes)` gives the lines that are complete, `finish()` what the end of the output completes: the last line
    without a line feed, or the answer in plain text (one final line end removed; nothing at all is no answer).
    `mode` "lines" and "text" leave no choice to the first line.
    """

    def __init__(self, mode: Mode = "auto", *, line_limit: int = LINE_LIMIT, total_limit: int = TOTAL_LIMIT) -> None:
        self._mode: Mode = mode
        self._line_limit = line_limit
        self._total_limit = total_limit
        self._total = 0
        self._number = 0
        self._buffer = bytearray()  # the unfinished line; in plain text everything
        self._seen = 0  # how much of the buffer is known to hold no line feed: keeps a long line linear
        self._start = 0  # where the undecided line starts; the blank lines before it belong to a plain answer
        self._broken = False

    def feed(self, data: bytes) -> list[AgentLine]:
        if self._broken or not data:
            return []
        self._total += len(data)
        if self._total > self._total_limit:
            return self._break(
                "agent_output_too_large", f"the agent printed more than {_size(self._total_limit)} in one turn"
            )
        self._buffer += data
        lines: list[AgentLine] = []
        while not self._settled() and (end := self._buffer.find(b"\n", self._seen)) >= 0:
            if self._take(bytes(self._buffer[self._start : end]), lines, whole=True):
                del self._buffer[: end + 1]
                self._start = self._seen = 0
            else:
                self._start = self._seen = end + 1
        if self._settled():
            return lines
        self._seen = len(self._buffer)
        if self._mode == "auto" and not self._may_be_json():
            self._mode = "text"
        elif len(self._buffer) - self._start > self._line_limit:
            lines += self._break(
                "agent_output_too_large",
                f"line {self._number + 1} of the agent's output is longer than {_size(self._line_limit)}",
            )
        return lines

    def finish(self) -> list[AgentLine]:
        if self._broken:
            return []
        lines: list[AgentLine] = []
        if self._mode != "text" and len(self._buffer) > self._start:
            self._take(bytes(self._buffer[self._start :]), lines, whole=False)
        if self._mode == "lines" or self._broken:
            return lines
        text = self._buffer.decode("utf-8", errors="replace").removeprefix("\ufeff")
        text = text.removesuffix("\n").removesuffix("\r") if text.endswith("\n") else text
        return [AnswerLine(text)] if text else []

    def tail(self, limit: int) -> str:
        """The end of what was printed and not understood yet: for the message of an agent that failed."""
        return bytes(self._buffer[-limit:]).decode("utf-8", errors="replace").strip()

    def _take(self, raw: bytes, lines: list[AgentLine], *, whole: bool) -> bool:
        """Read one line. False: it is (so far) a part of a plain answer and has to stay in the buffer."""
        self._number += 1
        text = raw.decode("utf-8", errors="replace")
        if self._number == 1:
            text = text.removeprefix("\ufeff")
        text = text.strip(" \t\r\n")
        if not text:
            return self._mode == "lines"
        if self._mode == "lines":
            self._add(read_line(text, f"line {self._number}", whole=whole), lines)
            return True
        document = _loads(text) if text.startswith("{") else None
        if isinstance(document, dict) and document.get("type") in KINDS:
            self._mode = "lines"
            self._add(from_document(document, f"line {self._number}"), lines)
            return True
        if isinstance(document, _Unreadable) and (
            _SAYS_A_TYPE.search(text) or (not whole and re.match(r'\{\s*(?:"|$)', text))
        ):
            self._add(read_line(text, f"line {self._number}", whole=whole), lines)
            return True
        self._mode = "text"
        return False

    def _add(self, line: AgentLine, lines: list[AgentLine]) -> None:
        lines.append(line)
        if isinstance(line, Broken):
            self._broken = True

    def _break(self, code: str, message: str) -> list[AgentLine]:
        self._broken = True
        self._buffer.clear()
        return [Broken(code, message)]

    def _settled(self) -> bool:
        """No more lines are looked for: the output is plain text, or broken."""
        return self._broken or self._mode == "text"

    def _may_be_json(self) -> bool:
        head = bytes(self._buffer[self._start : self._start + 64]).removeprefix(b"\xef\xbb\xbf").lstrip(b" \t\r\n")
        return not head or head[:1] in (b"{", b"\xef")


@dataclass(frozen=True, slots=True)
class _Unreadable:
    reason: str


def read_line(text: str, where: str, *, whole: bool = True) -> AgentLine:
    """One object of the protocol as text. `where` ("line 3", "event 2") names it in the message of a `Broken`."""
    document = _loads(text)
    if isinstance(document, _Unreadable):
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
                return ToolCallLine(_id(document), _text(document, "name"), document.get("args", {}))
            case "tool_result":
                return ToolResultLine(_id(document), document.get("output"))
            case "hook":
                return HookLine(
                    _text(document, "hook"),
                    _text(document, "decision"),
                    _text(document, "source", required=False) or None,
                    _duration(document),
                )
            case "usage":
                return UsageLine(
                    _count(document, "input_tokens"),
                    _count(document, "output_tokens"),
                    _count(document, "cache_read_tokens"),
                    _count(document, "cache_write_tokens"),
                    _amount(document),
                    _text(document, "currency", required=False) or None,
                )
            case "answer":
                return AnswerLine(_text(document, "text", blank=True))
            case "error":
                retryable = document.get("retryable", False)
                if not isinstance(retryable, bool):
                    raise _wrong("retryable", "true or false", retryable)
                code = _text(document, "code", required=False) or "agent_error"
                return ErrorLine(_text(document, "message"), code, retryable)
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


def _count(document: Mapping[str, Any], key: str) -> int:
    value = document.get(key)
    if value is None:
        return 0
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**53:
        raise _wrong(key, "a whole number of tokens", value)
    return value


def _duration(document: Mapping[str, Any]) -> float | None:
    value = document.get("duration_ms")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**53:
        raise _wrong("duration_ms", "a number of milliseconds", value)
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
    if not amount.is_finite() or amount < 0 or amount >= 10**12:
        raise _wrong("amount", 'money as text ("0.0123")', value)
    return amount


def _broken(where: str, what: str, text: str) -> Broken:
    return Broken("agent_protocol", f"{where} of the agent's output {what}; it starts: {shorten(text, _SHOWN)}")


def _loads(text: str) -> Any:
    """JSON with its half characters kept (B11), and a value instead of an exception."""
    try:
        document = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
    except RecursionError:
        return _Unreadable(_TOO_DEEP)
    except ValueError as error:
        return _Unreadable(str(error))
    brackets = text.count("[") + text.count("{")
    return _Unreadable(_TOO_DEEP) if brackets > DEPTH_LIMIT and _deeper_than(document, DEPTH_LIMIT) else document


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{shorten(text, 20)} is too large for a number")
    return number


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


def _size(count: int) -> str:
    return f"{count // (1024 * 1024)} MiB" if count >= 1024 * 1024 else f"{count} bytes"
