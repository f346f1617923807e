"""How do the parts of a fleet log, and how does a line say which submission, case, trial and run it is about?

`log_to_stderr` sets the one format of scheduler and worker: plain lines, or one JSON object a line for a log store
(`EVALFLEET_LOG_FORMAT`). Whoever takes up a piece of work says what it is with `about`; every line that is logged
meanwhile, also from a coroutine that it waits for, carries it in its JSON form. `Telling` hands those about a
submission to whoever shows them to people (`evalfleet logs`).
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime

from evalfleet.errors import EvalfleetError

FORMATS = ("text", "json")
PLAIN = "%(asctime)s %(levelname)s %(name)s: %(message)s"
CHATTY = ("celery.worker.strategy", "celery.app.trace", "celery.apps.worker", "celery.worker.consumer.consumer")
"""Celery's loggers with a line for each message, or several for each lost connection."""

OURS = ("scheduler", "worker", "evalfleet")
LONGEST = 500
"""Characters of a line that is told."""
WAITING = 500
"""Lines that wait to be told while the broker does not answer; the oldest leave first."""
AGAIN_AFTER_S = 5.0

Lines = Mapping[str, Sequence[Mapping[str, str | int]]]
"""Submission → what was said of it, oldest first."""

_about: ContextVar[Mapping[str, str | int]] = ContextVar("evalfleet_about")


@contextlib.contextmanager
def about(**what: str | int) -> Iterator[None]:
    """Lines from within say so: `submission`, `case`, `scenario`, `trial`, `run`."""
    token = _about.set({**_about.get({}), **what})
    try:
        yield
    finally:
        _about.reset(token)


def now_about(**what: str | int) -> None:
    """The same to the end of this coroutine's task."""
    _about.set({**_about.get({}), **what})


class JsonLines(logging.Formatter):
    """{"at", "level", "logger", "message", …what it is about, "exception"?}; `at` in UTC, with microseconds."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, str | int] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_about.get({}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def log_to_stderr(level: str, form: str = "text") -> None:
    """One line for each event, as all parts write them. `level`: debug, info, warning, error; `form`: one of FORMATS.

    Celery's line for each message would bury ours, and httpx' names every URL: both only at debug.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else logging.Formatter(PLAIN))
    # The command line has set its own before it knew which part this is.
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    if level.lower() != "debug":
        for name in (*CHATTY, "httpx", "httpcore"):
            logging.getLogger(name).setLevel("WARNING")


class Telling(logging.Handler):
    """Hands `put` what our own loggers say about a submission, from a thread of its own: {"at", "level", "part",
    "message", and what it is about}. Nobody who logs waits for it. `put` may raise: then it is asked again a little
    later. `secrets` stand in no line."""

    def __init__(self, put: Callable[[Lines], None], *, part: str, secrets: Sequence[str]) -> None:
        super().__init__(logging.INFO)
        self._put, self._part = put, part
        self._secrets = [secret for secret in secrets if secret]
        self._waiting: deque[tuple[str, Mapping[str, str | int]]] = deque(maxlen=WAITING)
        self._there = threading.Event()
        self._over = threading.Event()
        self._putting = threading.Lock()
        self._guard = threading.Lock()  # of what waits: emit must not wait for a broker
        self._thread = threading.Thread(target=self._main, name="evalfleet-telling", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        what = _about.get({})
        if "submission" not in what or record.name.partition(".")[0] not in OURS:
            return
        message = record.getMessage()
        for secret in self._secrets:
            message = message.replace(secret, "***")
        line: dict[str, str | int] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "part": self._part,
            "message": message if len(message) <= LONGEST else f"{message[: LONGEST - 1]}…",
        }
        rest = {name: value for name, value in what.items() if name != "submission"}
        with self._guard:
            self._waiting.append((str(what["submission"]), {**line, **rest}))
        self._there.set()

    def flush(self) -> None:
        """Tell what waits, once."""
        with self._putting:
            with self._guard:
                taken = list(self._waiting)
                self._waiting.clear()
            lines: defaultdict[str, list[Mapping[str, str | int]]] = defaultdict(list)
            for submission, line in taken:
                lines[submission].append(line)
            try:
                if taken:
                    self._put(lines)
            except EvalfleetError:  # a line about that would only be the next one that cannot be told
                with self._guard:
                    room = WAITING - len(self._waiting)
                    self._waiting.extendleft(reversed(taken[max(0, len(taken) - room) :]))
                self._there.set()

    def close(self) -> None:
        self._over.set()
        self._there.set()
        super().close()

    def _main(self) -> None:
        while self._there.wait() and not self._over.is_set():
            self._there.clear()
            self.flush()
            if self._there.is_set():
                self._over.wait(AGAIN_AFTER_S)


def tell_about_submissions(put: Callable[[Lines], None], *, part: str, secrets: Sequence[str]) -> None:
    """From now on this process' lines about a submission go to `put`, too."""
    logging.getLogger().addHandler(Telling(put, part=part, secrets=secrets))
