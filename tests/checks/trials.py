"""How do tests make the wire documents of a turn, and trials from them?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evalfleet.checks import HookCall, ToolCall, Trial, TurnRecord

START = "2026-09-02T07:00:00Z"


def run(status: str = "succeeded", *, seconds: float = 1.0, **more: Any) -> dict[str, Any]:
    """A run document that started at 07:00:00 and took so long."""
    minutes, rest = divmod(seconds, 60)
    done = f"2026-09-02T07:{int(minutes):02d}:{rest:09.6f}Z"
    return {
        "id": "run_1",
        "chat_id": "chat_1",
        "status": status,
        "started_at": START,
        "completed_at": done,
        "failure": None,
        **more,
    }


def says(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": [{"type": "text", "text": text}]}


def calls(*made: tuple[str, str, Any], role: str = "assistant") -> dict[str, Any]:
    """One message with tool calls (id, name, args)."""
    return {
        "role": role,
        "content": [
            {
                "type": "json",
                "value": {"type": "tool_call", "tool_call": {"id": identity, "name": name, "args": args}},
            }
            for identity, name, args in made
        ],
    }


def result(identity: str, output: Any) -> dict[str, Any]:
    inner = {"tool_call_id": identity, "output": output, "metadata": {}}
    return {"role": "tool", "content": [{"type": "json", "value": {"type": "tool_result", "tool_result": inner}}]}


def answers(value: Any, name: str = "final_message", kind: str = "result") -> dict[str, Any]:
    return {"type": kind, "name": name, "value": value}


def event(kind: str, **data: Any) -> dict[str, Any]:
    return {"type": kind, "data": data}


def turn(
    *messages: dict[str, Any],
    status: str = "succeeded",
    outputs: Sequence[dict[str, Any]] = (),
    events: Sequence[dict[str, Any]] = (),
    user: str = "hi",
    **more: Any,
) -> TurnRecord:
    return TurnRecord(user=user, run=run(status, **more), messages=messages, outputs=outputs, events=events)


def trial_with(
    *,
    answer: str | None = "ok",
    made: Sequence[tuple[Any, ...]] = (),
    hooks: Sequence[HookCall] = (),
    error: str | None = None,
    not_played: str | None = None,
) -> Trial:
    """A trial with calls (name, args[, result]) in messages of their own, in this order."""
    tool_calls = tuple(
        ToolCall("run_1", f"c{n}", name, args, rest[0] if rest else None, bool(rest), 0, n)
        for n, (name, args, *rest) in enumerate(made)
    )
    return Trial((), tool_calls, tuple(hooks), answer, error, 1000, not_played)
