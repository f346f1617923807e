"""A small real HTTP service that answers byte for byte what a test tells it to, and keeps what it was asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

CUT = object()
"""In the pieces of an answer: the connection is cut here."""

GARBAGE = object()
"""Here the answer stops being HTTP."""


@dataclass
class Asked:
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)


@dataclass
class Service:
    """`pieces` are sent one by one, each as a chunk of the body; an Event among them is waited for, CUT cuts."""

    status: int = 200
    content_type: str = "application/json"
    pieces: Sequence[bytes | asyncio.Event | object] = ()
    headers: dict[str, str] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    came: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a request has come."""
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a client closed its connection."""
    url: str = ""
    _server: asyncio.Server | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def __aenter__(self) -> Service:
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            while await self._request(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.left.set()
            writer.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:]) if name}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        self.asked.append(Asked(head[0].split(" ")[1], headers, body))
        self.came.set()
        more = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
        writer.write(
            f"HTTP/1.1 {self.status} X\r\nContent-Type: {self.content_type}\r\n{more}"
            "Transfer-Encoding: chunked\r\n\r\n".encode("latin-1")
        )
        for piece in self.pieces:
            if isinstance(piece, asyncio.Event):
                await self._wait(piece, reader)
            elif piece is GARBAGE:
                writer.write(b"this is no chunk\r\n")
            elif piece is CUT:
                await writer.drain()
                writer.transport.abort()
                return False
            else:
                assert isinstance(piece, bytes)
                if not piece:
                    continue
                writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
                await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    async def _wait(self, event: asyncio.Event, reader: asyncio.StreamReader) -> None:
        """Until the test says so, or the client leaves."""
        told, gone = asyncio.ensure_future(event.wait()), asyncio.ensure_future(reader.read(1))
        await asyncio.wait([told, gone], return_when=asyncio.FIRST_COMPLETED)
        left = gone.done()
        told.cancel()
        gone.cancel()
        await asyncio.gather(told, gone, return_exceptions=True)
        if left:
            raise ConnectionResetError


def sse(*documents: Any, done: bool = True) -> bytes:
    events = "".join(f"data: {json.dumps(document)}\n\n" for document in documents)
    return (events + ("data: [DONE]\n\n" if done else "")).encode()


def ndjson(*documents: Any) -> bytes:
    return "".join(json.dumps(document) + "\n" for document in documents).encode()
