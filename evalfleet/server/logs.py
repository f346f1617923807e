"""How does the server log without ever waiting for whoever reads its log?

All records go through a bounded queue to one thread that writes to stderr: a pipe that nobody empties stops that thread
and not the event loop. What does not fit any more is dropped, and counted in the next line that is written.

Warnings and errors are plain lines. The access log (level info) is one JSON object for each request, on one line:
{"at", "request_id", "method", "path", "status", "ms", "bytes", "account", "client"}; `status` null: the client left
before it was answered. It holds no header, no body and no query, and what looks like a token in a path is struck out.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
import queue
import re
from typing import Final

from evalfleet.server.accounts import PREFIX
from evalfleet.server.documents import now

WAITING: Final = 10_000
"""How many lines may wait for stderr."""

_access = logging.getLogger("evalfleet.server.access")
_TOKEN: Final = re.compile(re.escape(PREFIX) + r"[\w-]+")


class _Queue(logging.handlers.QueueHandler):
    """Puts a record into the queue, or counts it as dropped."""

    queue: queue.Queue[logging.LogRecord | None]
    dropped = 0

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            if self.dropped:
                said = f"{self.dropped} lines were dropped: stderr is not read"
                self.queue.put_nowait(logging.LogRecord(__name__, logging.WARNING, __file__, 0, said, None, None))
                self.dropped = 0
            self.queue.put_nowait(record)
        except queue.Full:
            self.dropped += 1


class _Stderr(logging.Handler):
    """Writes to the descriptor itself, and without a lock: the exit waits for locks that a stuck thread would hold."""

    def createLock(self) -> None:  # noqa: N802 - logging's name
        self.lock = None  # one thread writes

    def emit(self, record: logging.LogRecord) -> None:
        rest = (self.format(record) + "\n").encode("utf-8", "backslashreplace")
        try:
            while rest:
                rest = rest[os.write(2, rest) :]
        except OSError:  # nobody reads it any more: there is no other place to say so
            return


class _Lines(logging.Formatter):
    """Access lines as they are, all else with time, level and place."""

    def format(self, record: logging.LogRecord) -> str:
        return record.getMessage() if record.name == _access.name else super().format(record)


class _Listener(logging.handlers.QueueListener):
    queue: queue.Queue[logging.LogRecord | None]

    def stop(self) -> None:
        """Write what waits, for a second at most: stderr may be a pipe that nobody reads."""
        thread, self._thread = self._thread, None
        if thread is not None:
            try:
                self.queue.put(None, timeout=1)
            except queue.Full:
                return
            thread.join(1)


def start_logging(level: str) -> _Listener:
    """From now on the root logger writes to stderr. `stop()` the answer at the end."""
    lines: queue.Queue[logging.LogRecord | None] = queue.Queue(WAITING)
    stream = _Stderr()
    stream.setFormatter(_Lines("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    listener = _Listener(lines, stream)
    listener.start()
    root = logging.getLogger()
    root.addHandler(_Queue(lines))
    root.setLevel(level.upper())
    return listener


def access_logged() -> bool:
    return _access.isEnabledFor(logging.INFO)


def log_access(
    *,
    request_id: str,
    method: str,
    path: str,
    status: int | None,
    seconds: float,
    size: int,
    account: str | None,
    client: str | None,
) -> None:
    """One line for one request."""
    line = {
        "at": now(),
        "request_id": request_id,
        "method": method[:20],
        "path": _TOKEN.sub(PREFIX + "***", path[:500]),
        "status": status,
        "ms": round(seconds * 1000, 1),
        "bytes": size,
        "account": account,
        "client": client,
    }
    _access.info("%s", json.dumps(line, ensure_ascii=True, separators=(",", ":")))
