"""The command as a user starts it: the console script's module in a process of its own, with everything below it.

Tests await lines, files and ends; each wait has a deadline and says what was seen when it passes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

WITHIN = 90.0
"""Seconds. Nothing here takes a tenth of it on a machine that is not busy."""

needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="looks processes up in /proc")


def await_true(what: Callable[[], bool], because: str, within: float = WITHIN) -> None:
    """For facts that send no event: files that grow, processes that are no children of ours."""
    deadline = time.monotonic() + within
    while not what():
        assert time.monotonic() < deadline, f"not within {within:.0f} s: {because}"
        time.sleep(0.05)


@dataclass(frozen=True)
class Finished:
    """How a command ended. `seconds`: how long it took."""

    code: int
    out: str
    err: str
    seconds: float

    def document(self) -> dict[str, Any]:
        """The one object that `--json` printed; anything else on stdout fails."""
        document = json.loads(self.out)
        assert isinstance(document, dict)
        return document

    def check(self, code: int, *words: str) -> Finished:
        """Assert the exit code, that no fault of ours is shown, and words that stand on stderr or stdout."""
        everything = self.out + self.err
        assert self.code == code, f"exit {self.code} instead of {code}\n{everything}"
        assert "Traceback" not in everything
        for word in words:
            assert word in everything, f"{word!r} is not in:\n{everything}"
        return self


class Command:
    """A running command. Use as a context manager: what is still there at its end is killed."""

    def __init__(
        self,
        *arguments: str,
        home: Path,
        environment: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        cwd: Path | None = None,
        program: Sequence[str] = ("-m", "evalfleet.start"),
    ) -> None:
        # HOME goes to every part and every agent, so what a command has left running is found by it.
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("EVALFLEET_", "SPLOX_"))}
        self.home = home
        self._began = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-P", *program, *arguments],
            cwd=cwd or home,
            env={**clean, "HOME": str(home), "NO_COLOR": "1", **(environment or {})},
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            start_new_session=True,
        )
        if stdin is not None:
            assert self._process.stdin is not None
            self._process.stdin.write(stdin.decode())
            self._process.stdin.close()
        self._lines: dict[str, list[str]] = {"out": [], "err": []}
        self._changed = threading.Condition()
        self._open = 2
        self._readers = [
            threading.Thread(target=self._read, args=(name, stream), daemon=True)
            for name, stream in (("out", self._process.stdout), ("err", self._process.stderr))
        ]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *_exception: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self.wait()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def _read(self, name: str, stream: Any) -> None:
        for line in stream:
            with self._changed:
                self._lines[name].append(line)
                self._changed.notify_all()
        stream.close()
        with self._changed:
            self._open -= 1
            self._changed.notify_all()

    def await_line(self, words: str, within: float = WITHIN) -> str:
        """The first line on stderr that holds `words`."""

        def found() -> str | None:
            return next((line for line in self._lines["err"] if words in line), None)

        with self._changed:
            self._changed.wait_for(lambda: found() is not None or self._open == 0, timeout=within)
            line = found()
            assert line is not None, f"no line with {words!r}:\n" + "".join(self._lines["out"] + self._lines["err"])
            return line

    def await_true(self, what: Callable[[], bool], because: str, within: float = WITHIN) -> None:
        """As `await_true`, and over at once when the command ends meanwhile. Shows what it said."""
        deadline = time.monotonic() + within
        while not what():
            if time.monotonic() > deadline or (not self.running and not what()):
                said = "".join(self._lines["out"] + self._lines["err"])
                ended = "it still runs" if self.running else "it ended"
                pytest.fail(f"not seen: {because}; {ended}, and said:\n{said}")
            time.sleep(0.02)

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def wait(self, within: float = WITHIN) -> Finished:
        try:
            code = self._process.wait(within)
        except subprocess.TimeoutExpired:
            said = "".join(self._lines["out"] + self._lines["err"])
            pytest.fail(f"the command does not end within {within:.0f} s; it said:\n{said}")
        seconds = time.monotonic() - self._began
        for reader in self._readers:
            reader.join(10)
        return Finished(code, "".join(self._lines["out"]), "".join(self._lines["err"]), seconds)


def part_pid(tree: Path, part: str) -> int | None:
    """The process of `valkey`, `server` or `worker`, by the pid file that a next start would go by."""
    try:
        pid = json.loads((tree / ".evalfleet/pids" / f"{part}.json").read_bytes())["pid"]
    except (OSError, ValueError, KeyError):
        return None
    return int(pid)


def left_running(home: Path) -> list[str]:
    """The processes whose HOME is `home`: parts, agents, and whatever they started (Linux)."""
    mark = f"HOME={home}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found.append(f"{entry.name} {words}")
        except OSError:  # it ended meanwhile, or is somebody else's
            continue
    return found


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
