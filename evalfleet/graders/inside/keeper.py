"""Who watches one call of one grader: its limit, its output, its judge calls, its end?

A keeper has a line of its own to the worker and serves one call at a time: it forks the grader's process, reads the
request, hands it on, and ends the call with one document. Calls that run at once have a keeper each, so no flood and no
hang of one delays another. Where the host has PID namespaces the keeper is PID 1 of one: before it says how a call
ended, everything else in the namespace is dead, and so it can take the next call. The process of that is forked then:
it waits behind its walls, and the call does not wait for a fork.

The worker's line carries: request → ; ← `{"llm": {...}}`, → `{"text", "tokens"}` or `{"stop": true}`; ← the ending
`{"end", "said", "status", "log", "ms", "llm_ms", …}` with end = said | limit | died | stopped | garbled | broken. A
closed line means that nobody waits any more: everything is killed and nothing is said.
"""

# Plain calls: a path object for each name is memory that every forked call would pay for again.
# ruff: noqa: PTH102
from __future__ import annotations

import functools
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from typing import Any, NoReturn

from evalfleet.graders.inside import child, frames, kernel, sweep

LOG_BYTES = 64 * 1024
_CHUNK = 65536
_LAST_READS = 32  # of what the pipe still holds when its writers are dead


class Log:
    """The first and the last half of `LOG_BYTES` of what was printed; memory stays flat whatever comes."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._tail = bytearray()
        self._seen = 0

    def add(self, data: bytes) -> None:
        self._seen += len(data)
        room = LOG_BYTES // 2 - len(self._head)
        self._head += data[: max(room, 0)]
        self._tail += data[max(room, 0) :]
        if len(self._tail) > LOG_BYTES:
            del self._tail[: -LOG_BYTES // 2]

    def text(self) -> str:
        tail = self._tail[-LOG_BYTES // 2 :]
        lost = self._seen - len(self._head) - len(tail)
        mark = f"\n… [cut: {lost} bytes of {self._seen}] …\n".encode() if lost else b""
        return (bytes(self._head) + mark + bytes(tail)).decode("utf-8", "backslashreplace")


def run(line: socket.socket, root: str, cages: dict[str, bool], scratch: str) -> NoReturn:
    """The whole life of a keeper. `scratch`: a path to make each call's temporary folder at. Never returns."""
    try:
        os.setsid()
        if cages["subreaper"] and os.getpid() != 1:
            kernel.become_subreaper()
        deaths = child_deaths()
        child.furnish(root, scratch)
        incoming = frames.FrameBuffer(frames.MAX_FRAME)
        make = functools.partial(_Call, line, incoming, deaths, root, cages, scratch)
        ending: dict[str, Any] | None = {"clean": True}
        while ending is not None and ending["clean"]:
            call = _ahead(make)
            request = _next_request(line, incoming)
            if request is None:
                if call is not None:
                    call.drop()
                break
            if call is None or not call.waits():
                call = make()
            ending = call.watch(request)
            if ending is not None:
                line.sendall(frames.pack(ending))
    except Exception as error:  # noqa: BLE001 - the last word of a process of ours: its caller has to hear why
        line.sendall(frames.pack({"end": "broken", "detail": repr(error)}))
    os._exit(0)


def _next_request(line: socket.socket, incoming: frames.FrameBuffer) -> dict[str, Any] | None:
    """None: the line was closed."""
    request: dict[str, Any] | None = None
    while request is None:
        data = line.recv(_CHUNK)
        if not data:
            return None
        for document in incoming.feed(data):
            if "op" in document:  # else: a judge's answer that crossed the end of the call before
                request = document
    return request


def _ahead(make: Callable[[], _Call]) -> _Call | None:
    """None where the host is full just now: it is tried again when a request is there, whose trouble it is then."""
    try:
        return make()
    except OSError:
        return None


class _Call:
    """The process of one call, and its temporary folder. Made before the request is there, for which the process waits
    behind its walls; the call's time begins with the request."""

    def __init__(
        self,
        line: socket.socket,
        incoming: frames.FrameBuffer,
        deaths: int,
        root: str,
        cages: dict[str, bool],
        scratch: str,
    ) -> None:
        self._line = line
        self._incoming = incoming
        self._log = Log()
        self._said: Any = None
        self._end: str | None = None
        self._detail = ""
        self._status: int | None = None
        nonce = os.urandom(16).hex().encode()
        self._outgoing = frames.FrameBuffer(frames.MAX_CHILD_FRAME, nonce)
        self._llm_since: float | None = None
        self._llm_seconds = 0.0
        self._begun = self._deadline = 0.0

        self._wake = deaths
        self._scratch = scratch
        os.mkdir(scratch, 0o700)
        self._log_end, log_start = os.pipe()
        self._channel, theirs = socket.socketpair()
        try:
            self._pid = os.fork()
        except OSError:
            theirs.close()
            os.close(log_start)
            self._close()
            raise
        if self._pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            child.run(root, theirs, nonce, log_start, cages)
        theirs.close()
        os.close(log_start)
        os.set_blocking(self._log_end, False)

    def waits(self) -> bool:
        """Whether it is still there. Who was killed while it waited has not failed at anything."""
        if os.waitpid(self._pid, os.WNOHANG)[0] == 0:
            return True
        self._close()
        return False

    def drop(self) -> None:
        """End it, whose request does not come."""
        sweep.kill(self._pid)  # it may be too young to lead a group, by which all is ended on some hosts
        sweep.end_everything(self._pid, self._wake)
        self._close()

    def _close(self) -> None:
        self._channel.close()
        os.close(self._log_end)
        sweep.remove_folder(self._scratch)

    def watch(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """Until the call has an end; then nothing of it is alive. None: nobody waits for the answer any more."""
        self._begun = time.monotonic()
        self._deadline = self._begun + float(request["limit"])
        self._tell_child(request)
        poller = select.poll()
        handlers = {
            self._log_end: self._read_log,
            self._channel.fileno(): self._read_child,
            self._line.fileno(): self._read_worker,
            self._wake: self._reap,
        }
        for descriptor in handlers:
            poller.register(descriptor, select.POLLIN)
        while self._end is None:
            left = self._deadline - time.monotonic()
            if left <= 0:
                self._end = "limit"
                break
            for descriptor, _event in poller.poll(left * 1000 + 1):
                if not handlers[descriptor]():
                    poller.unregister(descriptor)
            if self._end is None and self._status is not None:
                self._read_child()  # what it said just before it died
                self._end = self._end or "died"
        ended = time.monotonic()
        if self._llm_since is not None:
            self._llm_seconds += ended - self._llm_since
        status, clean = sweep.end_everything(self._pid, self._wake)
        for _ in range(_LAST_READS):
            if not self._read_log():
                break
        self._close()
        if self._end == "gone":
            return None
        return {
            "end": self._end,
            "in_llm": self._llm_since is not None,
            "said": self._said,
            "detail": self._detail,
            "status": self._status if self._status is not None else status,
            "log": self._log.text(),
            "ms": round((ended - self._begun) * 1000),
            "llm_ms": round(self._llm_seconds * 1000),
            "clean": clean,
        }

    def _read_log(self) -> bool:
        try:
            data = os.read(self._log_end, _CHUNK)
        except BlockingIOError:
            return True
        self._log.add(data)
        return bool(data)

    def _read_child(self) -> bool:
        while True:
            try:
                data = self._channel.recv(_CHUNK, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return True
            except ConnectionError:
                return False
            if not data:
                return False
            try:
                documents = self._outgoing.feed(data)
            except frames.Garbled as error:
                self._end, self._detail = "garbled", str(error)
                return False
            for document in documents:
                if "llm" in document:
                    self._llm_since = time.monotonic()
                    self._line.sendall(frames.pack(document))
                else:
                    self._said, self._end = document, "said"
                    return False

    def _read_worker(self) -> bool:
        try:
            data = self._line.recv(_CHUNK)
        except ConnectionError:
            data = b""
        if not data:
            self._end = "gone"
            return False
        for document in self._incoming.feed(data):
            if "stop" in document:
                self._end = "stopped"
                return False
            if self._llm_since is not None:
                self._llm_seconds += time.monotonic() - self._llm_since
                self._llm_since = None
            self._tell_child(document)
        return True

    def _tell_child(self, document: Any) -> None:
        try:
            self._channel.settimeout(max(self._deadline - time.monotonic(), 0.01))
            self._channel.sendall(frames.pack(document))
        except OSError:
            pass  # it died or does not read; its death or the limit ends the call
        finally:
            self._channel.settimeout(None)  # with one, MSG_DONTWAIT would wait

    def _reap(self) -> bool:
        os.read(self._wake, 4096)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return True
            if pid == self._pid:
                self._status = status


def child_deaths() -> int:
    """A descriptor that becomes readable when a child of ours has died."""
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(theirs, warn_on_full_buffer=False)
    return ours
