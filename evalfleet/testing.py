"""Which faults can a test put on the wire? A small HTTP/1.1 server that answers by script, to the byte and the RST.

    async with FaultServer() as server:
        server.on("GET", "/v2/runs/run_1", problem(502, "upstream_unavailable"), document({"id": "run_1"}))
        async with Client(server.url, "token") as client:
            assert await client.get_run("run_1") == {"id": "run_1"}
        assert len(server.requests) == 2

Answers scripted for a method and path are given in order, and the last one again for ever. It listens on loopback,
keeps every request that it saw, and counts its open connections, so that a test can await that none leaked.

In front of a real server it breaks what is scripted and passes on the rest:

    server = FaultServer(fallback=lambda request: forward(request, url))

`evalfleet.broken_streams` has the shapes that an event stream can take.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import struct
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from types import TracebackType
from typing import Any, Final, Literal, Self
from urllib.parse import SplitResult, parse_qs, quote, unquote, urlencode, urlsplit

_HOP_BY_HOP: Final = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "te", "upgrade", "host", "content-length"}
)

Framing = Literal["length", "chunked", "close"]

STALL_SECONDS: Final = 120.0
"""A stall ends with the other side's connection, at the latest after this."""


@dataclass(frozen=True, slots=True)
class Send:
    """These bytes of the body, as one write (one chunk, if the answer is chunked)."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Await:
    """Nothing more until the test sets this event."""

    event: asyncio.Event


@dataclass(frozen=True, slots=True)
class Cut:
    """Close the connection here, whatever the framing still owes."""


@dataclass(frozen=True, slots=True)
class Reset:
    """Reset the connection (RST) here."""


@dataclass(frozen=True, slots=True)
class Stall:
    """Say nothing more until the other side closes."""


Step = Send | Await | Cut | Reset | Stall


@dataclass(frozen=True, slots=True)
class Scripted:
    """One answer. `steps` make its body; after the last one it ends as its framing wants.

    `framing` "length" sends Content-Length (of all `Send` steps together), "chunked" a chunk for each `Send`, "close"
    neither: the end is the connection's end. A status of 0 sends no head at all: the steps are raw bytes.
    """

    status: int
    steps: tuple[Step, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    framing: Framing = "length"


@dataclass(frozen=True, slots=True)
class SeenRequest:
    """A request as it came: header names in lower case, the query parsed (first values), the body whole."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


Answering = Scripted | Callable[[SeenRequest], Scripted | Awaitable[Scripted]]


def document(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Scripted:
    """A JSON answer."""
    return text(json.dumps(value).encode(), status, "application/json", headers)


def text(
    body: bytes, status: int = 200, content_type: str = "text/plain", headers: Mapping[str, str] | None = None
) -> Scripted:
    """Any whole answer."""
    steps = (Send(body),) if body else ()
    return Scripted(status, steps, {"Content-Type": content_type, **(headers or {})})


def problem(status: int, code: str, detail: str = "scripted", headers: Mapping[str, str] | None = None) -> Scripted:
    """A problem document."""
    value = {"type": f"https://api.splox.com/problems/{code}", "title": "…", "status": status, "detail": detail}
    body = json.dumps({**value, "code": code}).encode()
    return text(body, status, "application/problem+json", headers)


def page(rows: Iterable[Mapping[str, Any]], next_cursor: str | None = None, *, has_more: bool = False) -> Scripted:
    """A page of a listing or of the journal."""
    return document({"data": list(rows), "page": {"has_more": has_more, "next_cursor": next_cursor}})


def event(sequence: int, kind: str, data: Mapping[str, Any] | None = None, run_id: str = "run_1") -> dict[str, Any]:
    """A journal event: `evt_<n>` at cursor `cur_<n>`."""
    return {
        "id": f"evt_{sequence}",
        "cursor": f"cur_{sequence}",
        "run_id": run_id,
        "sequence": sequence,
        "type": kind,
        "created_at": "2026-09-02T07:21:48.254011Z",
        "data": dict(data or {}),
    }


def frame(entry: Mapping[str, Any]) -> bytes:
    """An event as the server-sent event that carries it."""
    body = json.dumps(entry, ensure_ascii=False).encode("utf-8", errors="surrogatepass")
    return f"id: {entry['cursor']}\nevent: {entry['type']}\n".encode() + b"data: " + body + b"\n\n"


def stream(
    *entries: Mapping[str, Any] | Step,
    framing: Framing = "chunked",
    headers: Mapping[str, str] | None = None,
    content_type: str = "text/event-stream",
) -> Scripted:
    """An event stream: a chunk for each event, steps where they stand, then a clean end."""
    steps = tuple(Send(frame(entry)) if isinstance(entry, Mapping) else entry for entry in entries)
    return Scripted(200, steps, {"Content-Type": content_type, "Cache-Control": "no-cache", **(headers or {})}, framing)


class FaultServer:
    """See the module's docstring. `url` has no trailing slash; `unscripted` lists requests that nothing was set for
    (they get a 500, which a client may retry: assert on this list where that would hide a mistake).
    """

    def __init__(self, *, prefix: str = "", fallback: Answering | None = None) -> None:
        """`fallback` answers what is not scripted."""
        self.prefix = prefix
        self._fallback = fallback
        self.requests: list[SeenRequest] = []
        self.unscripted: list[SeenRequest] = []
        self.open_connections = 0
        self.connections = 0
        self._scripts: dict[tuple[str, str], list[Answering]] = defaultdict(list)
        self._given: dict[tuple[str, str], int] = defaultdict(int)
        self._server: asyncio.Server | None = None
        self._handlers: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Condition()
        self.url = ""

    def on(self, method: str, path: str, *answers: Answering) -> None:
        """Script the answers to `method` `path` (without query), after those that are there already."""
        self._scripts[method, path].extend(answers)

    def seen(self, method: str, path: str) -> list[SeenRequest]:
        """The requests of this method and path so far."""
        return [request for request in self.requests if (request.method, request.path) == (method, path)]

    async def until(self, condition: Callable[[FaultServer], bool], within: float = 10.0) -> None:
        """Wait for something that this server can see (`lambda server: server.open_connections == 0`)."""
        async with asyncio.timeout(within), self._changed:
            await self._changed.wait_for(lambda: condition(self))

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", 0, limit=1024 * 1024)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}{self.prefix}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Close the listener and every connection."""
        if self._server is None:
            return
        self._server.close()
        for handler in list(self._handlers):
            handler.cancel()
        await asyncio.gather(*self._handlers, return_exceptions=True)
        await self._server.wait_closed()
        self._server = None

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._handlers.add(task)
        self.connections += 1
        await self._count(+1)
        try:
            while (request := await _read_request(reader, self.prefix)) is not None:
                self.requests.append(request)
                await self._count(0)
                answer = self._next(request)
                if not await _answer(answer if isinstance(answer, Scripted) else await answer, reader, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the other side left: what it does is the test's matter
        except asyncio.CancelledError:
            writer.transport.abort()  # the server stops; a callback of asyncio's must not see a cancelled task
        finally:
            writer.close()
            self._handlers.discard(task)
            await self._count(-1)

    async def _count(self, change: int) -> None:
        self.open_connections += change
        async with self._changed:
            self._changed.notify_all()

    def _next(self, request: SeenRequest) -> Scripted | Awaitable[Scripted]:
        key = (request.method, request.path)
        answers = self._scripts.get(key) or ([] if self._fallback is None else [self._fallback])
        if not answers:
            self.unscripted.append(request)
            return problem(500, "internal_error", f"nothing is scripted for {request.method} {request.path}")
        answer = answers[min(self._given[key], len(answers) - 1)]
        self._given[key] += 1
        return answer if isinstance(answer, Scripted) else answer(request)


async def forward(request: SeenRequest, upstream: str) -> Scripted:
    """The whole answer of the server at `upstream` (a URL) to this request; a stream is waited for to its end."""
    return await asyncio.to_thread(_forward, request, urlsplit(upstream))


def _forward(request: SeenRequest, upstream: SplitResult) -> Scripted:
    connection = http.client.HTTPConnection(upstream.hostname or "", upstream.port, timeout=STALL_SECONDS)
    kept = {name: value for name, value in request.headers.items() if name not in _HOP_BY_HOP}
    query = f"?{urlencode(request.query)}" if request.query else ""
    try:
        connection.request(request.method, quote(request.path) + query, request.body or None, kept)
        answer = connection.getresponse()
        headers = {name: value for name, value in answer.getheaders() if name.lower() not in _HOP_BY_HOP}
        return Scripted(answer.status, (Send(answer.read()),), headers)
    finally:
        connection.close()


async def _read_request(reader: asyncio.StreamReader, prefix: str) -> SeenRequest | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    method, target, _version = first.split(" ")
    headers = {}
    for line in lines:
        name, _colon, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    body = b""
    if "content-length" in headers:
        body = await reader.readexactly(int(headers["content-length"]))
    elif headers.get("transfer-encoding", "").lower() == "chunked":
        body = await _read_chunks(reader)
    parts = urlsplit(target)
    query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
    return SeenRequest(method, unquote(parts.path).removeprefix(prefix), query, headers, body)


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    parts = []
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        parts.append(await reader.readexactly(size))
        await reader.readexactly(2)
    await reader.readexactly(2)
    return b"".join(parts)


async def _answer(answer: Scripted, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Play the answer; whether the connection goes on."""
    if answer.status:
        writer.write(_head(answer))
        await writer.drain()
    for step in answer.steps:
        match step:
            case Send(data):
                chunked = answer.status and answer.framing == "chunked"
                writer.write(b"%x\r\n%s\r\n" % (len(data), data) if chunked else data)
                await writer.drain()
            case Await(waited_for):
                async with asyncio.timeout(STALL_SECONDS):
                    await waited_for.wait()
            case Cut():
                return False
            case Reset():
                _reset(writer)
                return False
            case Stall():
                async with asyncio.timeout(STALL_SECONDS):
                    await reader.read(1)
                return False
    if answer.status and answer.framing == "chunked":
        writer.write(b"0\r\n\r\n")
        await writer.drain()
    return bool(answer.status) and answer.framing != "close"


def _head(answer: Scripted) -> bytes:
    try:
        phrase = HTTPStatus(answer.status).phrase
    except ValueError:
        phrase = "Scripted"
    headers = dict(answer.headers)
    if answer.framing == "chunked":
        headers["Transfer-Encoding"] = "chunked"
    elif answer.framing == "close":
        headers["Connection"] = "close"
    elif answer.status != 204:
        headers.setdefault("Content-Length", str(sum(len(s.data) for s in answer.steps if isinstance(s, Send))))
    lines = [f"HTTP/1.1 {answer.status} {phrase}", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def _reset(writer: asyncio.StreamWriter) -> None:
    connection = writer.get_extra_info("socket")
    # Linger 0: closing drops what was not sent and answers with RST instead of FIN.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
