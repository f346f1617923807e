"""How do the parts of a fleet log, and how does a line say which submission, case, trial and run it is about?

`log_to_stderr` sets the one format of scheduler and worker: plain lines, or one JSON object a line for a log store
(`EVALFLEET_LOG_FORMAT`). Whoever takes up a piece of work says what it is with `about`; every line that is logged
meanwhile, also from a coroutine that it waits for, carries it in its JSON form.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime

FORMATS = ("text", "json")
PLAIN = "%(asctime)s %(levelname)s %(name)s: %(message)s"
CHATTY = ("celery.worker.strategy", "celery.app.trace", "celery.apps.worker", "celery.worker.consumer.consumer")
"""Celery's loggers with a line for each message, or several for each lost connection."""

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
