"""How does the server log without ever waiting for whoever reads its log?

Lines wait in memory for one thread that writes them to stderr: a pipe that nobody empties stops that thread and not the
event loop. What does not fit any more is dropped, and counted in the next line that is written. The thread gathers for
50 ms before it writes, so that it is not woken, and does not take the interpreter from the loop, for each line.

Warnings and errors are plain lines, or JSON as the other parts write it (`evalfleet.logs`). The access log (level
info) is one JSON object for each request, on one line:
{"at", "request_id", "method", "path", "status", "ms", "bytes", "account", "client"}; `status` null: the client left
before it was answered. It holds no header, no body and no query, and what looks like a token in a path is struck out.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections import deque
from typing import Final

from evalfleet.logs import PLAIN, JsonLines
from evalfleet.server.accounts import PREFIX
from evalfleet.server.documents import now, text_of

WAITING: Final = 10_000
"""How many lines may wait for stderr."""
GATHER: Final = 0.05

_access = logging.getLogger("evalfleet.server.access")
_TOKEN: Final = re.compile(re.escape(PREFIX) + r"[\w-]+")


class LogWriter(logging.Handler):
    """The handler and its thread. `limit`: how many lines may wait."""

    def __init__(self, limit: int = WAITING, form: str = "text") -> None:
        super().__init__()
        self.setFormatter(_JsonLines() if form == "json" else _Lines(PLAIN))
        self._limit = limit
        self._waiting: deque[str] = deque()
        self._dropped = 0
        self._some = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._write_for_ever, name="log-writer", daemon=True)

    def createLock(self) -> None:  # noqa: N802 - logging's name
        self.lock = None  # a deque needs none, and the exit would wait for one that a stuck thread holds

    def handle(self, record: logging.LogRecord) -> bool:
        """As logging's own does it, which from Python 3.13 on cannot do without a lock."""
        self.emit(record)
        return True

    def start(self) -> None:
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        if len(self._waiting) >= self._limit:
            self._dropped += 1
        else:
            self._waiting.append(self.format(record))
            self._some.set()

    def stop(self) -> None:
        """Write what waits, for a second at most: stderr may be a pipe that nobody reads."""
        self._stopped.set()
        self._some.set()
        self._thread.join(1)

    def _write_for_ever(self) -> None:
        while True:
            self._some.wait()
            self._stopped.wait(GATHER)
            self._some.clear()
            last = self._stopped.is_set()
            self.write_waiting()
            if last:
                return

    def write_waiting(self) -> None:
        """To the descriptor itself: `sys.stderr` has a lock that a stuck thread would hold at the exit."""
        dropped, self._dropped = self._dropped, 0
        lines = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if dropped:
            lines.append(f"{dropped} lines were dropped: stderr is not read fast enough")
        rest = "".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace")
        try:
            while rest:
                rest = rest[os.write(2, rest) :]
        except OSError:  # nobody reads it any more: there is no other place to say so
            return


class _Lines(logging.Formatter):
    """Access lines as they are, all else with time, level and place."""

    def format(self, record: logging.LogRecord) -> str:
        return record.getMessage() if record.name == _access.name else super().format(record)


class _JsonLines(JsonLines):
    """Access lines as they are, which are JSON; all else as JSON, too."""

    def format(self, record: logging.LogRecord) -> str:
        return record.getMessage() if record.name == _access.name else super().format(record)


def start_logging(level: str, form: str = "text") -> LogWriter:
    """From now on the root logger writes to stderr. `stop()` the answer at the end."""
    writer = LogWriter(form=form)
    writer.start()
    root = logging.getLogger()
    root.addHandler(writer)
    root.setLevel(level.upper())
    return writer


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
    _access.info("%s", text_of(line))
