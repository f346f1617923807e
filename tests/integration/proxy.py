"""What if the connection ends at the worst moment? A proxy that cuts streams and keeps answers back."""

from __future__ import annotations

import contextlib
import http.client
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

import httpx

DEADLINE = 90.0
_HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "te", "upgrade", "host", "content-length"})

Ending = Literal["clean", "torn", "reset"]


@dataclass(frozen=True)
class Cut:
    """An event stream ends after so many bytes of its body.

    `clean`: as if the server had closed it; `torn`: in the middle of its chunks; `reset`: by an RST.
    """

    after: int
    ending: Ending


@dataclass(frozen=True)
class Seen:
    """A request that came through."""

    method: str
    path: str
    last_event_id: str | None
    stream: bool


class Proxy:
    """Stands in front of `upstream`. Each event stream that is opened takes the next of `cuts`; then none is cut."""

    def __init__(self, upstream: str) -> None:
        url = httpx.URL(upstream)
        self.upstream = (url.host, url.port or 80)
        self.url = ""
        self.seen: list[Seen] = []
        self.cuts: Iterator[Cut] = iter(())
        self.keeps: Callable[[Seen], bool] = lambda seen: False
        """Which answers never arrive: the server has done what was asked, and the asker does not learn it."""
        self.kept = threading.Event()
        self.guard = threading.Condition()
        self.closing = threading.Event()

    def streams(self) -> list[Seen]:
        return [seen for seen in self.seen if seen.stream]

    def opened(self, streams: int) -> None:
        """Until so many event streams have been opened."""
        with self.guard:
            assert self.guard.wait_for(lambda: len(self.streams()) >= streams, DEADLINE), self.seen


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: Proxy

    def _relay(self) -> None:
        proxy = self.proxy
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        kept = {name: value for name, value in self.headers.items() if name.lower() not in _HOP_BY_HOP}
        upstream = http.client.HTTPConnection(*proxy.upstream, timeout=DEADLINE)
        try:
            upstream.request(self.command, self.path, body or None, kept)
            answer = upstream.getresponse()
            stream = answer.headers.get("content-type", "").startswith("text/event-stream")
            seen = Seen(self.command, self.path, self.headers.get("last-event-id"), stream)
            with proxy.guard:
                proxy.seen.append(seen)
                proxy.guard.notify_all()
                cut = next(proxy.cuts, None) if stream else None
            if stream:
                self._stream(answer, cut)
                return
            content = answer.read()
            if proxy.keeps(seen):
                proxy.kept.set()
                proxy.closing.wait(DEADLINE)
                self.close_connection = True
                return
            self._head(answer, {"Content-Length": str(len(content))})
            self.wfile.write(content)
        except ConnectionError:  # whoever asked has left
            self.close_connection = True
        finally:
            upstream.close()

    do_GET = do_POST = do_PATCH = do_DELETE = do_PUT = _relay

    def _head(self, answer: http.client.HTTPResponse, more: dict[str, str]) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            if name.lower() not in _HOP_BY_HOP:
                self.send_header(name, value)
        for name, value in more.items():
            self.send_header(name, value)
        self.end_headers()

    def _stream(self, answer: http.client.HTTPResponse, cut: Cut | None) -> None:
        clean = cut is not None and cut.ending == "clean"
        self._head(answer, {"Connection": "close"} if clean else {"Transfer-Encoding": "chunked"})
        left = None if cut is None else cut.after
        while left != 0:
            piece = answer.read1(65536 if left is None else min(left, 65536))
            if not piece:
                break
            self.wfile.write(piece if clean else b"%x\r\n%b\r\n" % (len(piece), piece))
            self.wfile.flush()
            if left is not None:
                left -= len(piece)
        if cut is None:
            self.wfile.write(b"0\r\n\r\n")
            return
        self.close_connection = True
        if cut.ending == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def log_message(self, *_: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        error = sys.exception()
        if not isinstance(error, ConnectionError):  # a client that was killed has said enough
            traceback.print_exception(error)


@contextlib.contextmanager
def proxied(upstream: str) -> Iterator[Proxy]:
    """A proxy on loopback, until the end of the block."""
    proxy = Proxy(upstream)
    handler = type("Handler", (_Handler,), {"proxy": proxy})
    with _Server(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        proxy.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield proxy
        finally:
            proxy.closing.set()
            server.shutdown()
            thread.join()
