"""What did a chat-completions endpoint answer, and what did it cost? Pure: documents in, one `ChatAnswer` out.

The streamed form comes as chunks whose deltas are put together here; the other as one document. Endpoints differ in
small ways, and those seen in the wild are read: usage sent more than once (each one is the total), a tool call without
an index, two calls under one index, or one id, that follow each other, content as a list of parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from evalfleet.contract import jsontext
from evalfleet.server.driving import Call
from evalfleet.treeconfig import Price


@dataclass(frozen=True, slots=True)
class ChatUsage:
    """Tokens of one completion. `input` counts all of the prompt; `cached` is the part of it that was read cheaply."""

    input: int = 0
    output: int = 0
    cached: int = 0
    total: int = 0


@dataclass(slots=True)
class _Call:
    id: str
    name: str = ""
    arguments: list[str] = field(default_factory=list)


class ChatAnswer:
    """One completion, put together. `add_chunk` for each streamed document, `add_whole` for the answer in one piece."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._refusal: list[str] = []
        self._calls: list[tuple[int, _Call]] = []
        self.usage: ChatUsage | None = None
        self.finished = False
        """A finish reason was seen: without one, a stream that just ends was cut."""
        self.error: str | None = None
        """What an `error` object inside a 200 answer says."""

    @property
    def text(self) -> str:
        return "".join(self._text) or "".join(self._refusal)

    @property
    def calls(self) -> list[Call]:
        """In order. Arguments that are no JSON stay text."""
        return [Call(call.id, call.name or "(without a name)", _arguments(call.arguments)) for _, call in self._calls]

    def add_chunk(self, document: Any) -> None:
        self._add(document, "delta")

    def add_whole(self, document: Any) -> None:
        self._add(document, "message")

    def _add(self, document: Any, part: str) -> None:
        if not isinstance(document, Mapping):
            self.error = self.error or "the endpoint's answer is no JSON object"
            return
        if document.get("error"):
            self.error = self.error or _error_text(document["error"])
        if isinstance(document.get("usage"), Mapping):
            self.usage = _usage(document["usage"])
        choices = document.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if not isinstance(choice, Mapping) or choice.get("index", 0) not in (0, None):
                continue
            self.finished = self.finished or choice.get("finish_reason") is not None
            message = choice.get(part)
            if isinstance(message, Mapping):
                self._add_message(message, whole=part == "message")

    def _add_message(self, message: Mapping[str, Any], *, whole: bool) -> None:
        self._text.append(_content(message.get("content")))
        if isinstance(message.get("refusal"), str):
            self._refusal.append(message["refusal"])
        calls = message.get("tool_calls")
        for position, call in enumerate(calls if isinstance(calls, list) else ()):
            if isinstance(call, Mapping):
                self._add_call(call, position, whole=whole)

    def _add_call(self, delta: Mapping[str, Any], position: int, *, whole: bool) -> None:
        index = delta["index"] if isinstance(delta.get("index"), int) else position
        call_id = delta["id"] if isinstance(delta.get("id"), str) else ""
        function = delta["function"] if isinstance(delta.get("function"), Mapping) else {}
        name = function["name"] if isinstance(function.get("name"), str) else ""
        call = next((call for at, call in reversed(self._calls) if at == index), None)
        if call is None or whole or _begins_another(call, call_id, name, function.get("arguments")):
            call = _Call(call_id or f"call_{len(self._calls)}")
            self._calls.append((index, call))
        call.name = call.name or name
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            call.arguments.append(arguments)
        elif arguments is not None:
            call.arguments.append(jsontext.dumps(arguments).decode("ascii", errors="replace"))


def _begins_another(call: _Call, call_id: str, name: str, arguments: Any) -> bool:
    """Is what comes under a call's index the next call, and not more of this one? Its id or its name differ; or it
    names itself again after arguments that are whole, to which nothing can be added (S11: ids may repeat)."""
    if (call_id and call.id and call_id != call.id) or (name and call.name and name != call.name):
        return True
    so_far = call.arguments[-1].rstrip() if call.arguments else ""
    return (
        bool((call_id or name) and arguments) and so_far.endswith("}") and isinstance(_arguments(call.arguments), dict)
    )


def completions_url(base_url: str) -> str:
    return base_url.rstrip("/") + "/chat/completions"


def price_of(usage: ChatUsage, price: Price | None) -> Decimal | None:
    """Money for one completion, exact; None where no price is set. A cached token costs what any other does."""
    if price is None:
        return None
    return (price.input * usage.input + price.output * usage.output) / 1_000_000


def plain(amount: Decimal) -> str:
    """An amount as the wire has it: no exponent, no trailing zeros."""
    text = format(amount, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _arguments(pieces: list[str]) -> Any:
    text = "".join(pieces)
    if not text.strip():
        return {}
    try:
        return jsontext.loads(text)
    except ValueError:
        return text


def _content(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, Mapping))
    return ""


def _usage(usage: Mapping[str, Any]) -> ChatUsage:
    details = usage.get("prompt_tokens_details")
    prompt, completion = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
    cached = _count(details.get("cached_tokens")) if isinstance(details, Mapping) else 0
    return ChatUsage(prompt, completion, min(cached, prompt), _count(usage.get("total_tokens")) or prompt + completion)


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**53:
        return 0
    return int(value)


def _error_text(error: Any) -> str:
    if isinstance(error, Mapping) and isinstance(error.get("message"), str):
        return str(error["message"])
    return error if isinstance(error, str) else jsontext.dumps(error).decode("utf-8")
