"""The public fake itself: what it scripts goes over the wire. Read with bare sockets, so that no client helps."""

from __future__ import annotations

import asyncio
import socket

import pytest

from evalfleet.testing import Cut, FaultServer, Reset, Scripted, Send, document, stream, text


async def exchange(server: FaultServer, request: bytes) -> bytes:
    """Everything that comes back until the server closes."""
    host, port = server.url.removeprefix("http://").partition("/")[0].split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(request)
        await writer.drain()
        async with asyncio.timeout(10):
            return await reader.read()
    finally:
        writer.close()


GET = b"GET /x?a=1 HTTP/1.1\r\nHost: h\r\nX-One: 1\r\n\r\n"


async def test_answers_come_in_order_and_the_last_one_again() -> None:
    async with FaultServer() as server:
        server.on("GET", "/x", text(b"one"), text(b"two", headers={"Connection": "close"}))
        server.on("GET", "/end", Scripted(0, (Cut(),)))
        raw = await exchange(server, GET * 3 + b"GET /end HTTP/1.1\r\n\r\n")
    assert [raw.count(word) for word in (b"\r\n\r\none", b"\r\n\r\ntwo")] == [1, 2]
    assert raw.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 3\r\n\r\none")


async def test_requests_are_kept_with_query_headers_and_body() -> None:
    async with FaultServer(prefix="/api") as server:
        server.on("POST", "/v2/runs", Scripted(200, (Cut(),)))
        await exchange(server, b'POST /api/v2/runs?a=b%2Bc HTTP/1.1\r\nContent-Length: 7\r\nX-Key: k\r\n\r\n{"a":1}')
        (request,) = server.requests
    assert (request.method, request.path, request.query) == ("POST", "/v2/runs", {"a": "b+c"})
    assert request.headers["x-key"] == "k"
    assert request.json() == {"a": 1}


async def test_a_chunked_request_is_read_whole() -> None:
    async with FaultServer() as server:
        server.on("POST", "/x", Scripted(200, (Cut(),)))
        await exchange(
            server, b"POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
        )
        assert server.requests[0].body == b"abcde"


async def test_a_stream_is_one_chunk_for_each_event_and_ends_cleanly_or_is_cut() -> None:
    async with FaultServer() as server:
        server.on("GET", "/x", stream(Send(b"a"), Send(b"bc")), stream(Send(b"a"), Cut()))
        raw = await exchange(server, GET + GET)
    assert b"\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n" in raw
    assert raw.endswith(b"\r\n\r\n1\r\na\r\n")


async def test_a_reset_is_a_reset() -> None:
    async with FaultServer() as server:
        server.on("GET", "/x", Scripted(200, (Reset(),), {"Content-Length": "5"}))
        with pytest.raises(ConnectionResetError):
            await exchange(server, GET)


async def test_what_is_not_scripted_is_answered_and_noted() -> None:
    async with FaultServer() as server:
        server.on("GET", "/end", Scripted(0, (Cut(),)))
        raw = await exchange(server, GET + b"GET /end HTTP/1.1\r\n\r\n")
        assert raw.startswith(b"HTTP/1.1 500 ")
        assert [request.path for request in server.unscripted] == ["/x"]


async def test_open_connections_are_counted_and_closed_at_the_end() -> None:
    async with FaultServer() as server:
        server.on("GET", "/x", document({}))
        host, port = server.url.removeprefix("http://").partition("/")[0].split(":")
        _reader, writer = await asyncio.open_connection(host, int(port))
        await server.until(lambda s: s.open_connections == 1)
        writer.close()
        await server.until(lambda s: s.open_connections == 0)
    with pytest.raises(ConnectionRefusedError), socket.create_connection((host, int(port)), timeout=5):
        pass
