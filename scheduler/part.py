"""How does one process of the stack live? Started in a session of its own, watched, restarted when it dies, stopped.

Two threads for each part and no polling: one waits for the process (`waitpid`), one reads what it says into its log and
finds the line that says it is ready. What a dead part's group still holds is ended before the next one starts.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from evalfleet.errors import EvalfleetError, StackFailed, UnfitHost
from scheduler import pid_files
from scheduler.log_file import LogFile

log = logging.getLogger(__name__)

RESTARTS = 5
WINDOW = 60.0  # seconds
REFUSED = 2
CHECK_S = 0.2
"""Exit status of a part that said what is wrong with its settings (S36): the next one would say the same."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What to start. `pass_fds` are inherited under the same numbers. The environment may hold a token: not shown."""

    argv: Sequence[str]
    env: Mapping[str, str] = field(repr=False)
    cwd: Path
    pass_fds: Sequence[int] = ()


class Listener(Protocol):
    """Who is told. Called on the part's own thread, which restarts it after `part_died` returned: be short."""

    def part_died(self, part: str, pid: int, status: int) -> None: ...
    def part_restarted(self, part: str, pid: int) -> None: ...
    def part_failed(self, part: str, failure: EvalfleetError) -> None: ...


class Restarts:
    """At most `limit` restarts in any `window` seconds: one more is a part that cannot live here."""

    def __init__(self, limit: int = RESTARTS, window: float = WINDOW) -> None:
        self._limit = limit
        self._window = window
        self._times: list[float] = []

    def allow(self, now: float) -> bool:
        """Whether a death at `now` (monotonic seconds) is answered with a restart, which is counted then."""
        self._times = [then for then in self._times if now - then < self._window]
        if len(self._times) >= self._limit:
            return False
        self._times.append(now)
        return True


class Part:
    """One supervised process. `ready` reads its lines and says whether it is at work; None: it is so once it runs."""

    def __init__(
        self,
        name: str,
        launch: Launch,
        *,
        state: Path,
        listener: Listener,
        ready: Callable[[str], bool] | None = None,
        restarts: Restarts | None = None,
    ) -> None:
        self.name = name
        self._launch = launch
        self._pids = state / "pids"
        self._listener = listener
        self._is_ready_line = ready
        self._restarts = restarts or Restarts()
        self._log_path = state / "logs" / f"{name}.log"
        self._log = LogFile(self._log_path)
        self._changed = threading.Condition()  # guards everything below
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._was_ready = False
        self._stopping = False
        self._ended = False
        self._failure: EvalfleetError | None = None

    @property
    def pid(self) -> int | None:
        """Of the process that runs now (for Valkey: of its guard)."""
        with self._changed:
            return self._process.pid if self._process is not None and not self._ended else None

    @property
    def failure(self) -> EvalfleetError | None:
        with self._changed:
            return self._failure

    def start(self) -> None:
        """Start it; it is not ready yet. UnfitHost: the program cannot be started at all."""
        try:
            process = self._spawn()
        except OSError as error:
            self._log.close()
            what = error.filename or self._launch.argv[0]
            raise UnfitHost(f"the {self.name} cannot be started: {what}: {error.strerror}") from error
        threading.Thread(target=self._supervise, args=(process,), name=f"part-{self.name}", daemon=True).start()

    def await_ready(self, deadline: float, check: Callable[[], None]) -> None:
        """Return when it has been ready once. `deadline` in monotonic seconds. Raises why it will not be, or what
        `check`, which is asked a few times a second, raises."""
        with self._changed:
            while not self._changed.wait_for(
                lambda: self._was_ready or self._failure is not None or self._ended, timeout=CHECK_S
            ):
                check()
                if time.monotonic() > deadline:
                    break
            if self._failure is not None:
                raise self._failure
            if self._was_ready:
                return
        raise UnfitHost(f"the {self.name} was not ready in time. {self._log_says()}")

    def begin_stop(self) -> None:
        """Ask it to end (SIGTERM), and restart it no more. Returns at once."""
        with self._changed:
            self._stopping = True
            if self._process is not None and not self._ended:
                self._process.send_signal(signal.SIGTERM)

    def await_stop(self, deadline: float) -> bool:
        """Whether it has ended before `deadline` (monotonic seconds)."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._ended or self._process is None, timeout=max(0.0, deadline - time.monotonic())
            )

    def kill(self) -> None:
        """End it now, with its whole group."""
        with self._changed:
            self._stopping = True
            if self._process is not None and not self._ended:
                _kill_group(self._process.pid)

    # --- on the part's threads -----------------------------------------------------------------------------------

    def _spawn(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            list(self._launch.argv),
            env=dict(self._launch.env),
            cwd=self._launch.cwd,
            pass_fds=self._launch.pass_fds,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            start_new_session=True,  # a terminal's Ctrl-C is for the command, which stops its parts in order
        )
        try:
            pid_files.write(self._pids, pid_files.ProcessRecord.of(self.name, process.pid))
        except OSError:  # a full disk: nobody would find it again
            _kill_group(process.pid)
            process.communicate()
            raise
        self._process = process
        if self._is_ready_line is None:
            self._was_ready = True
        self._reader = threading.Thread(target=self._read, args=(process,), name=f"log-{self.name}", daemon=True)
        self._reader.start()
        return process

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        unread = b""
        with process.stdout as pipe:
            while piece := pipe.read(65536):
                self._log.write(piece)
                if self._was_ready or self._is_ready_line is None:
                    continue
                *lines, unread = (unread + piece).split(b"\n")
                unread = unread[-65536:]
                if any(self._is_ready_line(line.decode("utf-8", "replace")) for line in lines):
                    with self._changed:
                        self._was_ready = True
                        self._changed.notify_all()

    def _supervise(self, process: subprocess.Popen[bytes]) -> None:
        current: subprocess.Popen[bytes] | None = process
        while current is not None:
            current = self._after(current, self._await_death(current))
        pid_files.remove(self._pids, self.name)
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        if self._reader is not None and not self._reader.is_alive():
            self._log.close()

    def _after(self, process: subprocess.Popen[bytes], status: int) -> subprocess.Popen[bytes] | None:
        """What lives on after the death of `process`: the next one, or nothing."""
        if self._is_stopping():
            return None
        log.info("the %s (pid %d) ended: %s", self.name, process.pid, _spoken(status))
        self._tell(lambda: self._listener.part_died(self.name, process.pid, status))
        failure = self._verdict(status)
        if failure is None:
            try:
                with self._changed:
                    if self._stopping:
                        return None
                    follower = self._spawn()
            except OSError as error:
                failure = StackFailed(f"the {self.name} ended and cannot be started again: {error.strerror}")
            else:
                self._tell(lambda: self._listener.part_restarted(self.name, follower.pid))
                return follower
        with self._changed:
            self._failure = failure
            self._changed.notify_all()
        self._tell(lambda: self._listener.part_failed(self.name, failure))
        return None

    def _tell(self, news: Callable[[], None]) -> None:
        try:
            news()
        except Exception:  # the listener's fault must not end the supervision: nobody would restart the part
            log.exception("who was told of the %s raised", self.name)

    def _is_stopping(self) -> bool:
        with self._changed:
            return self._stopping

    def _await_death(self, process: subprocess.Popen[bytes]) -> int:
        waitid = getattr(os, "waitid", None)  # macOS has it from Python 3.13 on
        if waitid is None:
            process.wait()
        else:  # not reaped yet: the number cannot be another's while the rest of the group is ended
            waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        _kill_group(process.pid)
        status = process.wait()
        if self._reader is not None:
            self._reader.join(timeout=1.0)  # its last words; a stray child in another session may hold the pipe longer
        return status

    def _verdict(self, status: int) -> EvalfleetError | None:
        """None: start it again. Else why not."""
        if status == REFUSED and (self._is_ready_line is None or not self._was_ready):
            return UnfitHost(f"the {self.name} refused to start. {self._log_says()}")
        if self._restarts.allow(time.monotonic()):
            return None
        message = f"the {self.name} keeps ending ({_spoken(status)}). {self._log_says()}"
        return StackFailed(message) if self._was_ready else UnfitHost(message)

    def _log_says(self) -> str:
        """Its last words without the secrets that its environment held."""
        words = self._log.last_words()
        for name, value in self._launch.env.items():
            if len(value) >= 8 and any(mark in name.upper() for mark in ("TOKEN", "KEY", "SECRET", "PASSWORD")):
                words = words.replace(value, "***")
        return f"The end of {self._log_path}:\n{words}" if words else f"It said nothing ({self._log_path})."


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return  # nobody left (macOS answers EPERM for a group of zombies)


def _spoken(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
