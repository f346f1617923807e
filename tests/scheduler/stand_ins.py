"""Small parts that can be made to misbehave, for tests of the stack's life; and looks at real processes."""

from __future__ import annotations

import os
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import redis

from evalfleet.errors import EvalfleetError
from evalfleet.process_identity import started
from scheduler.embedded import Endpoints, Stack
from scheduler.programs import Programs, Setup

PART = """
import os, signal, sys, threading
from evalfleet.lifeline import watch
done = threading.Event()
watch(done.set)
signal.signal(signal.SIGTERM, lambda *_: done.set())
print(sys.argv[1], flush=True)
while not done.wait(0.5):
    pass
print("stopped", flush=True)
"""

DEAF = """
import signal, time
from evalfleet.lifeline import watch
watch(lambda: None)
signal.signal(signal.SIGTERM, lambda *_: print("asked", flush=True))
print("listening on http://", flush=True)
while True:
    time.sleep(600)
"""


def python(code: str, *arguments: str) -> Callable[[Setup], Sequence[str]]:
    """A part's command line made of a few lines of Python."""
    return lambda _setup: [sys.executable, "-P", "-c", textwrap.dedent(code), *arguments]


def stand_ins(
    *, server: Callable[[Setup], Sequence[str]] | None = None, worker: Callable[[Setup], Sequence[str]] | None = None
) -> Programs:
    """The real Valkey beside a server and a worker that only live, hear their lifeline and stop when asked."""
    return Programs(server=server or python(PART, "listening on http://"), worker=worker or python(PART, "at work"))


def alive(pid: int) -> bool:
    return started(pid) is not None


def await_true(what: Callable[[], bool], within: float = 30.0) -> bool:
    """Whether it becomes true; for facts about processes that are no children of ours and send no event."""
    deadline = time.monotonic() + within
    while not what():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def children_of_group(group: int) -> list[int]:
    """The processes of one group, by /proc (Linux)."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and alive(int(entry.name)):
            try:
                if os.getpgid(int(entry.name)) == group:
                    found.append(int(entry.name))
            except ProcessLookupError:
                continue
    return sorted(found)


class Seen:
    """What a stack told its callbacks, and events to wait for it."""

    def __init__(self) -> None:
        self.deaths: list[tuple[str, int]] = []
        self.restarts: list[tuple[str, int]] = []
        self.failures: list[EvalfleetError] = []
        self._changed = threading.Condition()

    def died(self, part: str, pid: int) -> None:
        with self._changed:
            self.deaths.append((part, pid))
            self._changed.notify_all()

    def restarted(self, part: str, pid: int) -> None:
        with self._changed:
            self.restarts.append((part, pid))
            self._changed.notify_all()

    def failed(self, failure: EvalfleetError) -> None:
        with self._changed:
            self.failures.append(failure)
            self._changed.notify_all()

    def wait_for(self, what: Callable[[], bool], within: float = 60.0) -> None:
        with self._changed:
            assert self._changed.wait_for(what, timeout=within), (self.deaths, self.restarts, self.failures)


COMMIT = "ab" * 20
needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="looks processes up in /proc")


def begin(stack: Stack, **options: object) -> Endpoints:
    return stack.start(commit=COMMIT, concurrency=2, results=stack.root / "results", **options)  # type: ignore[arg-type]


def ping(endpoints: Endpoints) -> None:
    with redis.Redis.from_url(endpoints.redis_url, socket_timeout=5) as client:
        assert client.ping()


def pid_of(stack: Stack, part: str) -> int:
    pid = stack.pid(part)
    assert pid is not None
    return pid
