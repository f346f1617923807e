"""What runs under one `evalfleet eval` on one machine, and how does all of it start and end together?

An embedded Valkey, the server on SQLite and one worker, each a supervised process (`scheduler.part`), with their state
in `.evalfleet/` at the tree's root (`--state DIR`: another folder). One stack per state folder, under a lock.

    <state>/                 0700, ignored by git
    ├── lock                 who is at work here
    ├── pids/ agents/        what a next start has to end if this one is killed
    ├── logs/<part>.log      this run's, and `.log.1`
    ├── valkey/              the broker's data, kept over its restarts and not from one command to the next
    ├── valkey.sock          (or in a folder for temporary files, where this path is too long for a socket)
    └── server.sqlite3       the server's database

With `stop()` the worker ends before server and Valkey: it gives its claims back through them.
When the command is killed they end by their lifeline within 5 s, and the next start ends what is left.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from evalfleet import lifeline
from evalfleet.credentials import DEFAULT, KEY, URL, key_variable, url_variable
from evalfleet.errors import EvalfleetError, StorageError, UnfitHost
from scheduler import pid_files, valkey
from scheduler.part import Launch, Part
from scheduler.programs import Programs, Setup, part_environment, plain_environment
from scheduler.tree_lock import TreeLock

log = logging.getLogger(__name__)

START_WITHIN = 60.0
STOP_WITHIN = 5.0
_HAND_OVER = 1.5
"""Seconds that a part may take before the one it leans on is asked to stop, too. All three: under 9 s at worst."""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where the parts are. `base_url` and `token` are the embedded server's, or the target's."""

    redis_url: str
    base_url: str
    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Target:
    """A platform that plays the runs instead of the embedded server (S40)."""

    base_url: str
    token: str = field(repr=False)
    profile: str = DEFAULT


class Stack:
    """The parts of one command. A context manager: entering takes the tree's lock and ends what an earlier stack left.

    `on_death(part, pid)` and `on_restart(part, pid)` come on a thread of the part's, at once; parts are `valkey`,
    `server`, `worker`. `on_failure(error)` when a part keeps dying: nothing goes on then, `check()` raises the same.
    """

    def __init__(
        self,
        root: Path,
        *,
        state: Path | None = None,
        command: str = "evalfleet",
        on_death: Callable[[str, int], None] = lambda _part, _pid: None,
        on_restart: Callable[[str, int], None] = lambda _part, _pid: None,
        on_failure: Callable[[EvalfleetError], None] = lambda _failure: None,
        programs: Programs | None = None,
    ) -> None:
        self.root = root.resolve()
        self.state = (state or self.root / ".evalfleet").resolve()
        self._lock = TreeLock(self.state, command)
        self._on_death = on_death
        self._on_restart = on_restart
        self._on_failure = on_failure
        self._programs = programs or Programs()
        self._socket_place = valkey.SocketPlace(self.state)
        self._line: lifeline.Lifeline | None = None
        self._reserved: socket.socket | None = None
        self._parts: dict[str, Part] = {}
        self._stopping = threading.Lock()

    # --- the state folder ----------------------------------------------------------------------------------------

    def __enter__(self) -> Stack:
        """TreeBusy; UnfitHost: the state folder cannot be used."""
        self._make_folders()
        self._lock.acquire()
        try:
            for part in pid_files.end_leftovers(self.state / "pids"):
                log.info("ended the %s of an earlier evalfleet in this tree", part)
            self._end_agents()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, *_exception: object) -> None:
        try:
            self.stop()
        finally:
            self._lock.release()

    def _make_folders(self) -> None:
        try:
            self.state.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self.state.stat().st_mode & 0o077:
                self.state.chmod(0o700)
            for name in ("pids", "agents", "logs", "valkey"):
                (self.state / name).mkdir(exist_ok=True)
            ignore = self.state / ".gitignore"
            if not ignore.exists():
                ignore.write_text("*\n", encoding="utf-8")
        except OSError as error:
            where = error.filename or self.state
            raise UnfitHost(
                f"the state folder {self.state} cannot be used ({where}: {error.strerror}); --state DIR takes another"
            ) from error

    # --- starting ------------------------------------------------------------------------------------------------

    def start(
        self,
        *,
        commit: str,
        concurrency: int,
        results: Path,
        with_server: bool = True,
        with_worker: bool = True,
        target: Target | None = None,
        env: Mapping[str, str] = os.environ,
        within: float = START_WITHIN,
    ) -> Endpoints:
        """Start the parts at once, all three, and return when Valkey and the server are ready (the worker finds them).

        `launch` and `await_ready` are its two halves, for a caller with something to do meanwhile.
        `target` takes the embedded server's place. UnfitHost says which part did not start and ends with its last
        words; what was started until then is stopped.
        """
        deadline = time.monotonic() + within
        endpoints = self.launch(
            commit=commit,
            concurrency=concurrency,
            results=results,
            with_server=with_server,
            with_worker=with_worker,
            target=target,
            env=env,
        )
        self.await_ready(deadline)
        return endpoints

    def launch(
        self,
        *,
        commit: str,
        concurrency: int,
        results: Path,
        with_server: bool = True,
        with_worker: bool = True,
        target: Target | None = None,
        env: Mapping[str, str] = os.environ,
    ) -> Endpoints:
        """Start the processes; nobody answers yet."""
        with self._or_stop():
            self._line = lifeline.Lifeline()
            self._empty_the_broker()
            setup = Setup(self.root, self.state, self._make_socket(), self._reserve_port(), commit, concurrency)
            if target is None:
                endpoints = Endpoints(
                    valkey.url(setup.socket), f"http://127.0.0.1:{setup.port}", secrets.token_urlsafe(32)
                )
            else:
                endpoints = Endpoints(valkey.url(setup.socket), target.base_url, target.token)
                with_server = False
            ours = part_environment(env)
            ours |= {"EVALFLEET_STATE": str(self.state), "EVALFLEET_TOKEN": endpoints.token}
            self._add("valkey", self._programs.valkey(setup), plain_environment(env), lambda line: valkey.READY in line)
            if with_server:
                self._add("server", self._programs.server(setup), ours, lambda line: "listening on" in line.lower())
            if with_worker:
                ours = {name: value for name, value in ours.items() if not name.startswith((KEY, URL))}
                ours |= {
                    "EVALFLEET_BASE_URL": endpoints.base_url,
                    "EVALFLEET_BROKER_URL": endpoints.redis_url,
                    "EVALFLEET_RESULTS_URL": str(results),
                }
                if target is not None:  # that key, and where this command has found that it may go
                    ours |= {key_variable(target.profile): target.token, url_variable(target.profile): target.base_url}
                self._add("worker", self._programs.worker(setup), ours, None)
            return endpoints

    def await_ready(self, deadline: float, check: Callable[[], None] = lambda: None) -> None:
        """Return when Valkey and the server are ready. `deadline` in monotonic seconds. Else stop all, and say why; so
        if `check`, which is asked meanwhile, raises."""
        with self._or_stop():
            for part in self._parts.values():
                part.await_ready(deadline, check)
            self.check()

    @contextlib.contextmanager
    def _or_stop(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.stop()
            raise

    def _add(self, name: str, argv: Sequence[str], env: Mapping[str, str], ready: Callable[[str], bool] | None) -> None:
        assert self._line is not None
        launch = Launch(argv, {**env, **self._line.environment()}, self.root, [self._line.fd])
        part = Part(name, launch, state=self.state, listener=self, ready=ready)
        part.start()
        self._parts[name] = part

    def _empty_the_broker(self) -> None:
        """Each command begins with an empty broker, and its data is there for a Valkey that dies under it.

        What is to be done stands in the evaluations (I1). Kept claims and heartbeats of a killed command would only
        make its follower wait until they run out.
        """
        data = self.state / "valkey"
        try:
            shutil.rmtree(data)
            data.mkdir()
        except OSError as error:
            raise UnfitHost(f"the broker's old data {data} cannot be removed: {error.strerror}") from error

    def _make_socket(self) -> Path:
        try:
            return self._socket_place.make()
        except OSError as error:
            raise StorageError(f"no place for the broker's socket: {error.filename}: {error.strerror}") from error

    def _reserve_port(self) -> int:
        """A loopback port that stays the server's own over its restarts.

        It is known before the server listens, so that the worker starts beside it. On Linux a socket of ours stays
        bound to it (it never listens, and `SO_REUSEADDR` lets the server in): no other program is given it in between.
        """
        reserved = socket.socket()
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        port: int = reserved.getsockname()[1]
        if sys.platform == "linux":
            self._reserved = reserved
        else:
            reserved.close()
        return port

    # --- while it runs -------------------------------------------------------------------------------------------

    def pid(self, part: str) -> int | None:
        """The process of `valkey` (its guard), `server` or `worker`; None while there is none."""
        found = self._parts.get(part)
        return found.pid if found is not None else None

    @property
    def failure(self) -> EvalfleetError | None:
        """Why the stack cannot go on, if a part keeps dying."""
        return next((part.failure for part in self._parts.values() if part.failure is not None), None)

    def check(self) -> None:
        """Raise `failure`, if there is one."""
        failure = self.failure
        if failure is not None:
            raise failure

    def part_died(self, part: str, pid: int, status: int) -> None:  # noqa: ARG002  (`Listener`)
        if part == "server":
            self._end_agents()  # they were its children and would go on without a reader
        self._on_death(part, pid)

    def _end_agents(self) -> None:
        """What a server had to leave behind. Imported only when there is something: it brings the HTTP stack along."""
        folder = self.state / "agents"
        if any(folder.iterdir()):
            from evalfleet.server.drivers import end_leftovers

            end_leftovers(folder)

    def part_restarted(self, part: str, pid: int) -> None:
        self._on_restart(part, pid)

    def part_failed(self, part: str, failure: EvalfleetError) -> None:  # noqa: ARG002  (`Listener`)
        self._on_failure(failure)

    # --- stopping ------------------------------------------------------------------------------------------------

    def stop(self, *, within: float = STOP_WITHIN, hand_over: bool = True) -> None:
        """SIGTERM to the worker, then to server and Valkey, SIGKILL `within` seconds later; nothing runs afterwards.

        The waits overlap. `hand_over` False: nothing is under way, so the server need not wait for the worker; Valkey
        always does, for a worker whose last words nobody hears says them for seconds. Twice is once. An interrupt
        during it kills what is left at once and goes on up.
        """
        with self._stopping:
            parts = [self._parts[name] for name in ("worker", "server", "valkey") if name in self._parts]
            try:
                deadlines = []
                for part in parts:
                    if parts[0].name == "worker" != part.name and (hand_over or part.name == "valkey"):
                        parts[0].await_stop(time.monotonic() + min(_HAND_OVER, within))
                    part.begin_stop()
                    deadlines.append(time.monotonic() + within)
                for part, deadline in zip(parts, deadlines, strict=True):
                    if not part.await_stop(deadline):
                        log.warning("the %s does not stop within %g s: killed", part.name, within)
            finally:
                for part in parts:
                    part.kill()
                for part in parts:
                    part.await_stop(time.monotonic() + within)
                self._let_go()

    def _let_go(self) -> None:
        if self._parts:
            self._end_agents()
        if self._line is not None:
            self._socket_place.remove()
            self._line.close()
            self._line = None
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None
        self._parts = {}
