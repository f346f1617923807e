"""A platform that plays a script, and the wire to it, which breaks by a seed. In one process, without a socket.

`Wire` stands where the HTTP library does: everything above it is the real client. Each request may meet a fault of its
kind, with the probability `weather`; some runs have journals with a hole that no request can fill.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from evalfleet.contract.clock import ClockOffset
from evalfleet.contract.transport import Answer, NoAnswer, StreamAnswer, Transport
from tests.chain.clock import NOON, Clock
from tests.chain.script import Step, Turn

COMMIT = "c" * 40
HTML = b"<html><body><h1>502 Bad Gateway</h1></body></html>"
BAD_FRAMES = (
    b"data: {half\n\n",
    b'event: error\ndata: {"error": {"message": "upstream timed out"}}\n\n',
    b'event: error\ndata: {"type": "error", "message": "upstream"}\n\n',
    b"data: " + HTML + b"\n\n",
    b"data: [1]\n\n",
)
STREAM_FAULTS = (
    *("cut", "drop", "late", "end_alone", "skip") * 3,
    *("twice", "swap", "foreign", "bad_frame", "conflict", "endless", "from_start", "mute", "stall"),
    *("html", "refused", "502", "503", "429", "204", "410"),
)
READ_FAULTS = ("refused", "cut", "html", "502", "503", "429", "no_json")
PAGE_FAULTS = (*READ_FAULTS, "reversed", "doubled", "drop_row", "lagging", "foreign", "410")
LIST_FAULTS = (*READ_FAULTS, "doubled", "short", "drop_row", "drop_row")


class Broken(Exception):
    """The connection breaks here."""


@dataclass
class Run:
    """One run as the platform knows it; everything about it is a function of the time and of when it was cancelled."""

    number: int
    chat: str
    turn: Turn
    created: float
    lost: frozenset[int] = frozenset()
    cancelled: float | None = None
    messages: list[tuple[float, dict[str, Any]]] = field(default_factory=list)
    outputs: list[tuple[float, dict[str, Any]]] = field(default_factory=list)
    plan: list[tuple[float, str, dict[str, Any]]] = field(default_factory=list)
    """(time, type, data) of the events it would have if nobody cancelled it."""

    @property
    def id(self) -> str:
        return f"run_{self.number}"

    @property
    def started(self) -> float:
        return self.created + self.turn.queued

    @property
    def end(self) -> float | None:
        """When it ends by itself."""
        if self.turn.ending in {"never", "asks"}:
            return None
        return self.started + sum(step.gap for step in self.turn.steps) + self.turn.gap

    def __post_init__(self) -> None:
        at = self.created
        self.plan.append((at, "run.created", {"run_id": self.id, "chat_id": self.chat}))
        self._message(at, "user", [{"type": "text", "text": self.turn.user}])
        at = self.started
        self.plan.append((at, "run.status_changed", {"to": "running"}))
        for step in self.turn.steps:
            at += step.gap
            self._step(at, step)
        at += self.turn.gap
        if self.turn.ending == "asks":
            self.plan.append((at, "interaction.created", {"interaction_id": "int_1"}))
            self.plan.append((at, "run.status_changed", {"to": "waiting"}))
        elif self.end is not None:
            self.plan.append((at, "run.status_changed", {"to": self._natural}))

    @property
    def _natural(self) -> str:
        return "succeeded" if self.turn.ending == "succeeded" else "failed"

    def _step(self, at: float, step: Step) -> None:
        match step.kind:
            case "text":
                self._message(at, "assistant", [{"type": "text", "text": step.said}])
            case "calls":
                calls = [{"type": "tool_call", "tool_call": {"id": i, "name": n, "args": {}}} for i, n in step.said]
                self._message(at, "assistant", [{"type": "json", "value": call} for call in calls])
            case "result":
                result = {"tool_call_id": step.said[0], "output": step.said[1], "metadata": {}}
                self._message(at, "tool", [{"type": "json", "value": {"type": "tool_result", "tool_result": result}}])
            case "hook":
                name, decision, source = step.said
                data = {"hook": name, "decision": decision, "source": source, "duration_ms": 3}
                self.plan.append((at, "hook.called", data))
            case "fallback":
                self.plan.append((at, "hook.fallback", {"hook": step.said[0], "source": step.said[1]}))
            case "answer":
                id_ = f"out_{self.number}_{len(self.outputs)}"
                output = {"id": id_, "run_id": self.id, "type": "result", "name": "final_message", "value": step.said}
                self.outputs.append((at, output))
                data = {"output_id": id_, "type": "result", "name": "final_message"}
                self.plan.append((at, "output.created", data))
            case _:
                self.plan.append((at, "usage.updated" if step.kind == "usage" else "moon.landed", {}))

    def _message(self, at: float, role: str, content: list[dict[str, Any]]) -> None:
        id_ = f"msg_{self.number}_{len(self.messages)}"
        self.messages.append((at, {"id": id_, "run_id": self.id, "role": role, "content": content}))
        self.plan.append((at, "message.created", {"message_id": id_, "role": role}))

    def over(self, now: float) -> bool:
        return self.status(now) in {"succeeded", "failed", "cancelled"}

    def status(self, now: float) -> str:
        if self.cancelled is not None and now >= self.cancelled:
            return "cancelled" if now >= self.cancelled + 0.1 else "cancelling"
        if self.end is not None and now >= self.end:
            return self._natural
        if now < self.started:
            return "queued"
        asks = any(kind == "interaction.created" and at <= now for at, kind, _ in self.plan)
        return "waiting" if asks else "running"

    def cancel(self, now: float) -> None:
        if self.cancelled is None and not self.over(now):
            self.cancelled = now

    def timeline(self) -> list[tuple[float, str, dict[str, Any]]]:
        """The whole journal as it will be, if nobody cancels it from now on."""
        if self.cancelled is None:
            return self.plan
        return [
            *(entry for entry in self.plan if entry[0] <= self.cancelled),
            (self.cancelled, "run.status_changed", {"to": "cancelling"}),
            (self.cancelled + 0.1, "run.status_changed", {"to": "cancelled"}),
        ]

    def journal(self, now: float) -> list[dict[str, Any]]:
        """The events that are there, as the wire has them; those that are lost are on no wire."""
        return [
            {
                "id": f"evt_{self.number}_{number}",
                "cursor": f"cur_{self.number}_{number}",
                "run_id": self.id,
                "sequence": number,
                "type": kind,
                "created_at": stamp(at),
                "data": data,
            }
            for number, (at, kind, data) in enumerate(self.timeline(), 1)
            if at <= now and number not in self.lost
        ]

    def document(self, now: float) -> dict[str, Any]:
        status = self.status(now)
        ended = {"succeeded": self.end, "failed": self.end}.get(status, (self.cancelled or 0.0) + 0.1)
        failure = {"code": self.turn.ending, "message": "it failed", "retryable": False}
        begun = now >= self.started and (self.cancelled is None or self.cancelled >= self.started)
        return {
            "id": self.id,
            "chat_id": self.chat,
            "harness_id": "h_1",
            "harness_commit": COMMIT,
            "status": status,
            "created_at": stamp(self.created),
            "started_at": stamp(self.started) if begun else None,
            "completed_at": stamp(ended or 0.0) if self.over(now) else None,
            "failure": failure if status == "failed" else None,
            "metadata": {},
        }


def stamp(at: float) -> str:
    return datetime.fromtimestamp(NOON + at, UTC).isoformat()


class Reply(StreamAnswer):
    """An answer whose body is a generator of pieces; `Broken` out of it is the end of the connection."""

    def __init__(self, status: int, headers: Mapping[str, str], pieces: AsyncIterator[bytes]) -> None:
        self.status = status
        self.headers = headers
        self._pieces = pieces

    async def chunk(self, within: float) -> bytes | None:
        try:
            async with asyncio.timeout(within):
                return await anext(self._pieces, None)
        except TimeoutError as late:
            raise NoAnswer("nothing came") from late
        except Broken as broken:
            raise NoAnswer("broken") from broken

    async def rest(self, within: float, *, most: int = 0) -> Answer:
        parts = []
        while (piece := await self.chunk(within)) is not None:
            parts.append(piece)
        return Answer(self.status, self.headers, b"".join(parts))

    async def aclose(self) -> None:
        await self._pieces.aclose()  # type: ignore[attr-defined]  # a generator


async def _whole(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def _cut(body: bytes) -> AsyncIterator[bytes]:
    yield body
    raise Broken


class Wire(Transport):
    """The platform behind a wire that breaks. `met` counts the faults that were met, by kind;
    `cancels` the requests for one."""

    def __init__(self, turns: Mapping[str, Turn], clock: Clock, draw: random.Random, weather: float) -> None:
        self.base_url = "http://platform"
        self.clock = ClockOffset()
        self.turns, self.draw, self.weather = turns, draw, weather
        self.now: Callable[[], float] = lambda: clock.now
        self.runs: list[Run] = []
        self.keys: dict[str, Run] = {}
        self.met: dict[str, int] = {}
        self.cancels = 0

    async def aclose(self) -> None:
        pass

    def _fault(self, kinds: tuple[str, ...], of: str) -> str:
        if self.draw.random() >= self.weather:
            return ""
        kind = self.draw.choice(kinds)
        self.met[f"{of}: {kind}"] = self.met.get(f"{of}: {kind}", 0) + 1
        return kind

    async def open(
        self,
        method: str,
        path: str,
        *,
        within: float,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> StreamAnswer:
        parts = urlsplit(path).path.strip("/").split("/")
        await asyncio.sleep(self.draw.choice((0.0, 0.01, 0.3)))
        if method == "POST" and len(parts) == 2:
            fault = self._fault(READ_FAULTS, "launch")
            if fault in {"", "cut", "no_json"} or self.draw.random() < 0.5:  # carried out, or not
                run = self._create(json.loads(body or b""), (headers or {})["Idempotency-Key"])
                return self._json(run.document(run.created), fault if fault != "no_json" else "cut", status=201)
            return self._json({}, fault)
        run = self.runs[int(parts[2].removeprefix("run_"))]
        what = parts[3] if len(parts) > 3 else "run"
        if what == "events" and (headers or {}).get("Accept") == "text/event-stream":
            cursor = (headers or {}).get("Last-Event-ID")
            return self._stream(run, cursor, self._fault(STREAM_FAULTS, "stream"), within)
        if what == "events":
            return self._page(run, dict(params or {}), self._fault(PAGE_FAULTS, "page"))
        if what == "cancel":
            self.cancels += 1
            fault = self._fault(READ_FAULTS, "cancel")
            if not fault or self.draw.random() < 0.5:
                run.cancel(self.now())
            return self._json(run.document(self.now()), fault)
        if what == "usage":
            return self._json({"run_id": run.id, "final": True, "amount": "0", "currency": "USD"}, "")
        if what in {"messages", "outputs"}:
            rows = [row for at, row in getattr(run, what) if run.cancelled is None or at <= run.cancelled]
            fault = self._fault(LIST_FAULTS, what)
            return self._rows(rows, dict(params or {}), fault)
        fault = self._fault((*READ_FAULTS, "stale"), "run")
        return self._json(run.document(self.now() - (4.0 if fault == "stale" else 0.0)), fault)

    def _create(self, body: Mapping[str, Any], key: str) -> Run:
        if key not in self.keys:
            number = len(self.runs)
            turn = self.turns[body["input"]["content"][0]["text"]]
            run = Run(number, body.get("chat_id") or f"chat_{number}", turn, self.now())
            if self.draw.random() < self.weather / 3:
                run.lost = frozenset({self.draw.randint(1, len(run.plan))})
                self.met["a hole for good"] = self.met.get("a hole for good", 0) + 1
            self.runs.append(run)
            self.keys[key] = run
        return self.keys[key]

    def _json(self, document: Any, fault: str, status: int = 200) -> StreamAnswer:
        body = json.dumps(document).encode()
        kind = {"Content-Type": "application/json", "content-type": "application/json"}
        match fault:
            case "refused":
                raise NoAnswer("connection refused")
            case "cut":
                return Reply(status, kind, _cut(body[: self.draw.randint(0, len(body))]))
            case "html":
                return Reply(200, {"content-type": "text/html"}, _whole(HTML))
            case "no_json":
                return Reply(status, kind, _whole(b"{half"))
            case "502" | "503":
                return Reply(int(fault), {"content-type": "text/html"}, _whole(HTML))
            case "429" | "410":
                code = {"429": "rate_limited", "410": "event_cursor_expired"}[fault]
                problem = json.dumps({"status": int(fault), "code": code, "detail": "no"}).encode()
                headers = {"content-type": "application/problem+json", "retry-after": self.draw.choice(("0", "1"))}
                return Reply(int(fault), headers, _whole(problem))
        return Reply(status, kind, _whole(body))

    def _page(self, run: Run, params: Mapping[str, str], fault: str) -> StreamAnswer:
        now = self.now()
        if fault == "410" and "cursor" not in params:
            fault = ""
        after = _number(params.get("cursor"))
        rows = [event for event in run.journal(now) if event["sequence"] > after]
        if fault == "lagging":
            rows = [event for event in run.journal(now - 2.0) if event["sequence"] > after]
        size = self.draw.choice((1, 3, int(params["limit"])))
        more, rows = len(rows) > size, rows[:size]
        if fault == "reversed":
            rows = rows[::-1]
        elif fault == "doubled":
            rows = [*rows, *rows]
        elif fault == "drop_row" and rows:
            lost = self.draw.choice(rows)
            rows = [row for row in rows if row is not lost]
        elif fault == "foreign" and rows:
            rows = [*rows[:-1], {**rows[-1], "run_id": "run_other"}]
        cursor = max((row["cursor"] for row in rows), key=_number, default=params.get("cursor"))
        return self._json({"data": rows, "page": {"has_more": more, "next_cursor": cursor}}, fault)

    def _rows(self, rows: list[dict[str, Any]], params: Mapping[str, str], fault: str) -> StreamAnswer:
        start = int(params.get("cursor", "0"))
        size = 1 if fault == "short" else int(params["limit"])
        cut = rows[start : start + size]
        if fault == "doubled":
            cut = [*cut, *cut]
        elif fault == "drop_row" and cut:
            lost = self.draw.choice(cut)
            cut = [row for row in cut if row is not lost]
        page = {"has_more": len(rows) > start + size, "next_cursor": str(start + size)}
        return self._json({"data": cut, "page": page}, fault)

    def _stream(self, run: Run, cursor: str | None, fault: str, within: float) -> StreamAnswer:
        if fault == "410" and cursor is None:
            fault = "cut"
        if fault in {"html", "refused", "502", "503", "429", "410"}:
            return self._json({}, fault)
        if fault == "204":
            return Reply(204, {}, _whole())
        after = {"from_start": 0, "skip": _number(cursor) + 1}.get(fault, _number(cursor))
        return Reply(200, {"content-type": "text/event-stream"}, self._frames(run, after, fault))

    async def _frames(self, run: Run, after: int, fault: str) -> AsyncIterator[bytes]:
        """The stream after a number, event by event as they come about, with one fault in it."""
        draw = self.draw
        at = draw.randint(1, 10)  # the fault's place: so many events into this connection
        count = 0
        if fault == "stall":
            await asyncio.sleep(3600)
        elif fault == "mute":
            while True:
                yield b":hb\n\n"
                await asyncio.sleep(15)
        held = b""
        beat = self.now() + 15
        while True:
            ready = [event for event in run.journal(self.now()) if event["sequence"] > after]
            for event in ready:
                after = event["sequence"]
                last = event["data"].get("to") in {"succeeded", "failed", "cancelled"}
                count += 1
                raw = frame(event)
                hit = count == at
                if fault == "late" and count <= at and not last:
                    continue
                if fault == "end_alone" and not last:
                    continue
                if hit and fault == "drop":
                    continue
                if hit and fault == "cut":
                    yield raw[: draw.randrange(len(raw))]
                    if draw.random() < 0.5:
                        raise Broken
                    return
                if hit and fault == "bad_frame":
                    yield draw.choice(BAD_FRAMES)
                if hit and fault == "foreign":
                    raw = frame({**event, "run_id": "run_other"})
                if hit and fault == "endless":
                    yield b"data: x\n" * 70_000
                if hit and fault == "swap" and not last:
                    held = raw
                    continue
                yield raw
                if held:
                    yield held
                    held = b""
                if hit and fault == "twice":
                    yield frame({**event, "id": f"{event['id']}_again"})
                if hit and fault == "conflict":
                    yield frame({**event, "id": f"{event['id']}_other", "data": {"hook": "another"}})
                if last:
                    return
            upcoming = [time for time, _, _ in run.timeline() if time > self.now()]
            wait = min([beat - self.now(), 1.0, *(time - self.now() for time in upcoming)])
            await asyncio.sleep(max(wait, 0.001))
            if self.now() >= beat:
                beat += 15
                yield b":hb\n\n"


def frame(event: Mapping[str, Any]) -> bytes:
    return f"id: {event['cursor']}\nevent: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


def _number(cursor: str | None) -> int:
    return 0 if cursor is None else int(cursor.rpartition("_")[2])
