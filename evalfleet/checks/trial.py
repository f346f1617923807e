"""What happened in one trial of a scenario, read from the wire documents of its turns?

Built purely from runs, messages, outputs and events as the platform gave them (S8, S11), and stored as it is built:
scoring an artifact again sees the same trial.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from datetime import datetime
from typing import Any, TypeVar

from evalfleet.checks.text import as_text, bounded, json_safe, one_line, parsed_once

PLATFORM_SOURCE = "splox.toolkit"
FAILURE_SHOWN = 1000
"""Characters of a run's failure message that the trial's sentence repeats."""


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One turn as read from the platform: what was said, and the wire documents of its run as they came."""

    user: str
    run: Mapping[str, Any]
    messages: Sequence[Mapping[str, Any]]
    outputs: Sequence[Mapping[str, Any]]
    events: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class TurnSummary:
    """One turn of a trial. `answer` None: the run gave none. Times as the platform wrote them (RFC 3339)."""

    run_id: str
    chat_id: str
    user: str
    status: str
    failure: Mapping[str, Any] | None
    started_at: str | None
    completed_at: str | None
    answer: str | None


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the agent made. Its identity is its place: (run_id, message, position); agents repeat ids (S11).
    `turn` from 0 within the scenario; `message`: the position of the assistant message, so that calls made at once have
    the same (S20); `position`: that of the call's part in the message, 0 in artifacts that do not have it."""

    run_id: str
    id: str
    name: str
    args: Any
    result: Any
    has_result: bool
    turn: int
    message: int
    position: int = 0


@dataclass(frozen=True, slots=True)
class HookCall:
    """A point of the loop that was asked. `fallback`: an older answer was replayed, which counts as `failed` (S22).
    `error`: what the hook said when it failed, if it said anything."""

    run_id: str
    hook: str
    decision: str
    source: str
    duration_ms: float | None
    fallback: bool
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Trial:
    """One trial of one scenario. `not_played`: the sentence of S8, where the agent ended the conversation before all
    turns of this scenario were played. `error`: the sentence of the first turn that did not succeed. `notes`: what a
    person has to know of how the agent was read, and no check asks for (an `agent.note` of the journal each)."""

    turns: tuple[TurnSummary, ...]
    tool_calls: tuple[ToolCall, ...]
    hooks: tuple[HookCall, ...]
    final_answer: str | None
    error: str | None
    duration_ms: int
    not_played: str | None = None
    notes: tuple[str, ...] = ()

    def run_document(self) -> dict[str, Any]:
        """What a grader gets as `run` (S27). A fresh copy that JSON can hold; its text is as in the artifact."""
        document: dict[str, Any] = json_safe(
            {
                "final_answer": self.final_answer,
                "tool_calls": [
                    {"id": call.id, "name": call.name, "args": call.args, "result": call.result, "turn": call.turn}
                    for call in self.tool_calls
                ],
                "error": self.error,
                "turns": len(self.turns),
                "duration_ms": self.duration_ms,
            }
        )
        return document

    def to_json(self) -> dict[str, Any]:
        """What the artifact stores. Lone surrogates become U+FFFD here and nowhere before (B11): the trial that was
        judged live had them, each one character as its replacement is, so lengths and verdicts stay."""
        document: dict[str, Any] = json_safe(
            {
                "turns": [asdict(turn) for turn in self.turns],
                "tool_calls": [_shallow(call) for call in self.tool_calls],
                "hooks": [_shallow(hook) for hook in self.hooks],
                "final_answer": self.final_answer,
                "error": self.error,
                "duration_ms": self.duration_ms,
                "not_played": self.not_played,
                "notes": list(self.notes),
            }
        )
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Trial:
        """The trial of our own document. ValueError, with the reason, if it is none."""
        try:
            return cls(
                turns=tuple(_built(TurnSummary, turn) for turn in document["turns"]),
                tool_calls=tuple(_built(ToolCall, call) for call in document["tool_calls"]),
                hooks=tuple(_built(HookCall, hook) for hook in document["hooks"]),
                final_answer=document["final_answer"],
                error=document["error"],
                duration_ms=document["duration_ms"],
                not_played=document.get("not_played"),
                notes=tuple(str(note) for note in document.get("notes") or ()),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"this is not the document of a trial: {error!r}") from error


def read_trial(turns: Sequence[TurnRecord], *, not_played: str | None = None) -> Trial:
    """The trial of one scenario from its own turns, none of an earlier scenario among them (S11)."""
    return Trial(
        turns=tuple(_summary(turn) for turn in turns),
        tool_calls=tuple(call for number, turn in enumerate(turns) for call in _tool_calls(number, turn)),
        hooks=tuple(hook for turn in turns for hook in _hooks(turn)),
        final_answer=answer_of(turns[-1]) if turns and not_played is None else None,
        error=_error(turns),
        duration_ms=round(sum(run_seconds(turn.run) for turn in turns) * 1000),
        not_played=not_played,
        notes=tuple(note for number, turn in enumerate(turns, 1) for note in _notes(turn, number, of=len(turns))),
    )


def answer_of(turn: TurnRecord) -> str | None:
    """The answer of a turn: its first `result` output named `final_message`, else its first `result`, else the last
    text of the assistant. A value that is not text is compact JSON; null is no answer (S11, B19)."""
    results = [
        output
        for output in once(turn.outputs)
        if output.get("type", "result") == "result" and output.get("value") is not None
    ]
    named = [output for output in results if output.get("name") == "final_message"]
    for output in [*named, *results]:
        return as_text(bounded(output["value"]))
    for message in reversed(_messages(turn)):
        if message.get("role") == "assistant":
            texts = [part["text"] for part in _parts(message) if part.get("type") == "text" and _is_text(part, "text")]
            if any(texts):
                return "".join(texts)
    return None


def run_seconds(run: Mapping[str, Any]) -> float:
    """Seconds from a run's start to its end by the platform's clock; 0 for one that never started (S12)."""
    started, completed = instant(run.get("started_at")), instant(run.get("completed_at"))
    return max(0.0, (completed - started).total_seconds()) if started and completed else 0.0


def instant(stamp: Any) -> datetime | None:
    """An RFC 3339 time, or None for what is none."""
    if not isinstance(stamp, str):
        return None
    try:
        read = datetime.fromisoformat(stamp)
    except ValueError:
        return None
    return read if read.tzinfo is not None else None


def once(documents: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Documents without the replays of at-least-once delivery: one for each `id`, the first (B04)."""
    seen: set[str] = set()
    for document in documents:
        identity = document.get("id")
        if isinstance(identity, str) and identity:
            if identity in seen:
                continue
            seen.add(identity)
        yield document


def _messages(turn: TurnRecord) -> list[Mapping[str, Any]]:
    """The run's own messages, in order."""
    run_id = turn.run.get("id")
    return [message for message in once(turn.messages) if message.get("run_id", run_id) == run_id]


def _parts(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [part for part in content if isinstance(part, Mapping)] if isinstance(content, Sequence) else []


def _values(message: Mapping[str, Any]) -> Iterator[tuple[int, str, Mapping[str, Any]]]:
    """The `json` parts that are a `tool_call` or a `tool_result`: (position in the message, which, inner object)."""
    for position, part in enumerate(_parts(message)):
        value = part.get("value")
        if part.get("type") == "json" and isinstance(value, Mapping):
            kind = value.get("type")
            inner = value.get(kind) if kind in ("tool_call", "tool_result") else None
            if isinstance(kind, str) and isinstance(inner, Mapping):
                yield position, kind, inner


def _tool_calls(number: int, turn: TurnRecord) -> Iterator[ToolCall]:
    """Calls in the order they were made, each with its result.

    Agents repeat ids, so an id tells no call from another. A result joins the nearest earlier call of its id that has
    none yet (S11); one more for a call that has its result takes that one's place (B05).
    """
    run_id = str(turn.run.get("id") or "")
    made: list[tuple[int, int, Mapping[str, Any]]] = []
    waiting: dict[str, list[int]] = {}  # id → its calls without a result, by their place in `made`
    latest: dict[str, int] = {}  # id → the call that had its last result
    results: dict[int, Any] = {}
    for at, message in enumerate(_messages(turn)):
        for position, kind, value in _values(message):
            if kind == "tool_call" and message.get("role") == "assistant":
                if _is_text(value, "id"):
                    waiting.setdefault(value["id"], []).append(len(made))
                made.append((at, position, value))
            elif kind == "tool_result" and _is_text(value, "tool_call_id"):
                identity = value["tool_call_id"]
                if waiting.get(identity):
                    latest[identity] = waiting[identity].pop()
                if identity in latest:
                    results[latest[identity]] = value.get("output")
    for place, (at, position, call) in enumerate(made):
        yield ToolCall(
            run_id=run_id,
            id=call["id"] if _is_text(call, "id") else "",
            name=call["name"] if _is_text(call, "name") else "",
            args=bounded(parsed_once(call.get("args"))),
            result=bounded(results.get(place)),
            has_result=place in results,
            turn=number,
            message=at,
            position=position,
        )


def _hooks(turn: TurnRecord) -> Iterator[HookCall]:
    return hook_calls(str(turn.run.get("id") or ""), turn.events)


def hook_calls(run_id: str, events: Sequence[Mapping[str, Any]]) -> Iterator[HookCall]:
    """The hooks that a run's journal tells of, in its order."""
    for event in once(events):
        kind, data = event.get("type"), event.get("data")
        if kind not in ("hook.called", "hook.fallback") or not isinstance(data, Mapping):
            continue
        fallback = kind == "hook.fallback"
        duration = data.get("duration_ms")
        yield HookCall(
            run_id=run_id,
            hook=str(data.get("hook") or ""),
            decision="failed" if fallback else str(data.get("decision") or ""),
            source=str(data.get("source") or ""),
            duration_ms=duration if isinstance(duration, (int, float)) and not isinstance(duration, bool) else None,
            fallback=fallback,
            error=_hook_error(data) if fallback or data.get("decision") in ("failed", "malformed") else None,
        )


def _notes(turn: TurnRecord, number: int, *, of: int) -> Iterator[str]:
    for event in once(turn.events):
        data = event.get("data")
        if event.get("type") == "agent.note" and isinstance(data, Mapping) and _is_text(data, "message"):
            where = f"turn {number}: " if of > 1 else ""
            yield where + one_line(data["message"], FAILURE_SHOWN)


def _hook_error(data: Mapping[str, Any]) -> str | None:
    """A hook's own words about its failure. The wire does not name their key; ours is `error`."""
    for key in ("error", "message", "reason"):
        said = data.get(key)
        if isinstance(said, Mapping):
            said = said.get("message")
        if isinstance(said, str) and said.strip():
            return said[:FAILURE_SHOWN]
    return None


def _summary(turn: TurnRecord) -> TurnSummary:
    run = turn.run
    failure = run.get("failure")
    return TurnSummary(
        run_id=str(run.get("id") or ""),
        chat_id=str(run.get("chat_id") or ""),
        user=turn.user,
        status=str(run.get("status") or ""),
        failure=copy.deepcopy(dict(failure)) if isinstance(failure, Mapping) else None,
        started_at=_stamp(run, "started_at"),
        completed_at=_stamp(run, "completed_at"),
        answer=answer_of(turn),
    )


def _error(turns: Sequence[TurnRecord]) -> str | None:
    for number, turn in enumerate(turns, 1):
        status = turn.run.get("status")
        if status != "succeeded":
            where = f"turn {number} of {len(turns)}" if len(turns) > 1 else "the run"
            return f"{where} {failure_sentence(turn.run)}"
    return None


def failure_sentence(run: Mapping[str, Any]) -> str:
    """`failed: agent_exit: exit status 3`, `was cancelled`, `is still running`: one line, cut. Of many lines the first
    and the last are shown: a traceback says in its last one what went wrong."""
    status = str(run.get("status") or "of unknown status")
    if status == "cancelled":
        return "was cancelled"
    if status != "failed":
        return f"is still {status}"
    failure = run.get("failure")
    if not isinstance(failure, Mapping):
        return "failed without a reason"
    said = [str(failure[key]) for key in ("code", "message") if failure.get(key)]
    lines = [line.strip() for line in ": ".join(said).splitlines() if line.strip()]
    if len(lines) > 2:
        lines = [f"{lines[0]} … {lines[-1]}"]
    return one_line("failed: " + "\n".join(lines), FAILURE_SHOWN) if lines else "failed without a reason"


def _stamp(run: Mapping[str, Any], key: str) -> str | None:
    return run[key] if _is_text(run, key) else None


def _is_text(document: Mapping[str, Any], key: str) -> bool:
    return isinstance(document.get(key), str)


def _shallow(record: ToolCall | HookCall) -> dict[str, Any]:
    """Field by field without copying arguments and results: `json_safe` makes the copy."""
    return {item.name: getattr(record, item.name) for item in fields(record)}


_Record = TypeVar("_Record", TurnSummary, ToolCall, HookCall)


def _built(cls: type[_Record], document: Mapping[str, Any]) -> _Record:
    """A field with a default came later than the format: documents before it do not have it."""
    return cls(
        **{item.name: document[item.name] for item in fields(cls) if item.default is MISSING or item.name in document}
    )
