"""How does our side start a cage and call a grader in it?

A `Cage` is one zygote process (see `inside/zygote.py`) for one unpacked bundle and its settings, on one event loop.
Nothing here forks: the zygote is exec'd, and each call gets a line of its own (a socket pair) to its own keeper, which
holds the limit itself. Closing the line ends the call; the end of our process closes all lines.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import itertools
import json
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal, Self

from evalfleet.credentials import is_ours
from evalfleet.errors import UnfitHost
from evalfleet.graders.inside import frames
from evalfleet.surroundings import user_environment

START_SECONDS = 30.0
BACKSTOP_SECONDS = 5.0  # a keeper that has not ended its call that long after the limit is killed from here
END_SECONDS = 5.0
_ZYGOTE = Path(__file__).parent / "inside" / "zygote.py"
_ORDER = struct.Struct(">cQ")
_KEPT_VARIABLES = ("PATH", "TZ", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")

_DEFAULT_VARIABLES = {
    "LANG": "C.UTF-8",
    # A library that starts a thread for each core would spend a grader's memory limit on stacks.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}

Allowed = Literal["best", "plain"]


@dataclass(frozen=True, slots=True)
class GraderSettings:
    """How graders run (S28). `python` None: our own interpreter; else a program on PATH or an absolute path. `env`:
    names of variables to pass. `memory_mb`: address space of one grader, MiB."""

    python: str | None = None
    env: tuple[str, ...] = ()
    network: bool = False
    memory_mb: int = 1024


@dataclass(frozen=True, slots=True)
class Cages:
    """Which walls stand on this host. Only `pid_namespace` is free of races; without it the subreaper (Linux) or a
    sweep (macOS) ends what a grader started."""

    user_namespace: bool
    pid_namespace: bool
    network_closed: bool
    read_only_tree: bool
    subreaper: bool
    memory_limit: bool
    process_limit: bool
    python: str = ""  # version of the graders' interpreter

    def weak(self) -> tuple[str, ...]:
        """One sentence for each wall that does not stand here."""
        sentences = (
            (self.pid_namespace or self.subreaper, "what a grader starts in a new session may outlive it"),
            (self.network_closed, "graders can reach the network"),
            (self.user_namespace, "graders run as the same user as this process and can read what that user can"),
            (self.read_only_tree, "a grader can change the modes of its copy of the tree and write to it"),
            (self.memory_limit, "a grader's memory is not limited"),
            (self.process_limit, "the number of processes that a grader starts is not limited"),
        )
        return tuple(sentence for stands, sentence in sentences if not stands)

    def standing(self) -> tuple[str, ...]:
        """A few words for each wall that stands here."""
        words = (
            (self.user_namespace, "user namespace"),
            (self.pid_namespace, "PID namespace"),
            (self.subreaper and not self.pid_namespace, "subreaper"),
            (self.network_closed, "network closed"),
            (self.read_only_tree, "read-only tree"),
            (self.memory_limit, "memory limit"),
            (self.process_limit, "process limit"),
        )
        return tuple(word for stands, word in words if stands)


@dataclass(frozen=True, slots=True)
class Ending:
    """How a call ended. `end`: "said" (see `said`), "limit", "died" (see `status`, a wait status), "stopped" (by the
    judge callback), "garbled" (see `detail`). Times in milliseconds; `in_llm`: the limit found it waiting in t.llm."""

    end: str
    said: Mapping[str, Any] = field(default_factory=dict)
    detail: str = ""
    status: int | None = None
    log: str = ""
    ms: int = 0
    llm_ms: int = 0
    in_llm: bool = False


class CageLost(Exception):
    """The cage died under a call, or did not keep its limit. Says nothing about the grader: call again."""


# A judge request {"prompt", "model"} -> {"text", "tokens"}; None ends the call as "stopped".
OnLlm = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any] | None]]


@dataclass(frozen=True, slots=True)
class _Keeper:
    number: int
    line: socket.socket


class Cage:
    """One zygote. Use from one event loop; `call` from any number of tasks at once."""

    def __init__(
        self, process: subprocess.Popen[bytes], control: socket.socket, scratch: Path, cages: Cages, memory_mb: int
    ) -> None:
        self.cages = cages
        self._process = process
        self._control = control
        self._scratch = scratch
        self._memory_mb = memory_mb
        self._numbers = itertools.count(1)
        self._ordering = asyncio.Lock()
        self._idle: list[_Keeper] = []
        self._busy: set[_Keeper] = set()

    @classmethod
    async def start(cls, root: Path, settings: GraderSettings, *, allowed: Allowed = "best") -> Self:
        """Start the interpreter on the unpacked bundle at `root`. UnfitHost if it cannot serve."""
        try:
            scratch = Path(tempfile.mkdtemp(prefix="evalfleet-grading-"))
            ours, theirs = socket.socketpair()
        except OSError as error:
            raise UnfitHost(f"graders cannot be run on this host: {error}") from error
        process = None
        try:
            with tempfile.TemporaryFile() as complaints:
                process = await asyncio.to_thread(_exec, root, settings, theirs, scratch, allowed, complaints)
                theirs.close()
                ours.setblocking(False)
                ready = await _ready(ours, settings, complaints)
            cages = Cages(**ready["cages"], python=ready["python"])
            if not cages.user_namespace:
                hide_from_children()
            return cls(process, ours, scratch, cages, settings.memory_mb)
        except BaseException:
            ours.close()
            theirs.close()
            if process is not None:
                process.kill()
                await asyncio.to_thread(process.wait, END_SECONDS)
            shutil.rmtree(scratch, ignore_errors=True)
            raise

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._process.pid

    async def call(self, request: Mapping[str, Any], *, limit: float, on_llm: OnLlm | None = None) -> Ending:
        """One call: `request` = {"op": "grade", "file", "function", "case", "run"}, maybe with "about" (what `t`
        knows of the trial), or {"op": "import", "file"}.

        `limit` seconds for everything. When this returns, nothing of the grader runs on; when it is cancelled, all of
        it is being killed. Raises CageLost, and frames.Garbled where the request is over 64 MiB."""
        keeper = self._idle.pop() if self._idle else None
        try:
            async with asyncio.timeout(limit + BACKSTOP_SECONDS):
                if keeper is None:
                    keeper = await self._new_keeper()
                self._busy.add(keeper)
                asked = {**request, "limit": limit, "memory_mb": self._memory_mb}
                ending, clean = await _converse(keeper.line, asked, on_llm)
            if clean:
                self._idle.append(keeper)
                self._busy.discard(keeper)
                keeper = None
            return ending
        except TimeoutError:
            if keeper is not None:
                with contextlib.suppress(OSError):
                    await self._order(b"K", keeper.number)
            raise CageLost(f"a call did not end within its {limit:g} s") from None
        except OSError as error:
            raise CageLost(f"the cage is gone: {error}") from error
        finally:
            if keeper is not None:
                self._busy.discard(keeper)
                keeper.line.close()

    async def _new_keeper(self) -> _Keeper:
        line, theirs = socket.socketpair()
        line.setblocking(False)
        number = next(self._numbers)
        try:
            await self._order(b"C", number, theirs)
        except BaseException:
            line.close()
            raise
        finally:
            theirs.close()
        return _Keeper(number, line)

    async def _order(self, order: bytes, number: int, passed: socket.socket | None = None) -> None:
        rights = (
            [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", passed.fileno()))] if passed is not None else []
        )
        async with self._ordering:  # nine bytes at a time, whole
            while True:
                try:
                    self._control.sendmsg([_ORDER.pack(order, number)], rights)
                    return
                except BlockingIOError:
                    await _writable(self._control)

    async def aclose(self) -> None:
        """End the zygote and every call in it."""
        while self._idle:
            self._idle.pop().line.close()
        for keeper in self._busy:
            with contextlib.suppress(OSError):
                keeper.line.shutdown(socket.SHUT_RDWR)  # its keeper ends the call, and who waits for it is told
        self._control.close()
        try:
            await asyncio.to_thread(self._process.wait, END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            await asyncio.to_thread(self._process.wait, END_SECONDS)
        await asyncio.to_thread(shutil.rmtree, self._scratch, ignore_errors=True)


async def _converse(line: socket.socket, request: Mapping[str, Any], on_llm: OnLlm | None) -> tuple[Ending, bool]:
    """How the call ended, and whether its keeper can take another."""
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(line, frames.pack(request))
    buffer = frames.FrameBuffer(frames.MAX_FRAME)
    judging: asyncio.Task[None] | None = None
    try:
        while True:
            data = await loop.sock_recv(line, 65536)
            if not data:
                raise CageLost("the cage died under a call")
            for document in buffer.feed(data):
                if "llm" in document:
                    judging = asyncio.create_task(_answer(line, document["llm"], on_llm))
                elif document["end"] == "broken":
                    raise CageLost(f"the cage broke: {document['detail']}")
                else:
                    clean = document.pop("clean")
                    if judging is not None and (judging.done() or document["end"] == "stopped"):
                        await judging
                    elif judging is not None:
                        clean = False  # half an answer may be on the line
                    return Ending(**{**document, "said": document["said"] or {}}), clean
    finally:
        if judging is not None and not judging.done():
            judging.cancel()
            await asyncio.wait([judging])
        if judging is not None and not judging.cancelled():
            judging.exception()  # raised above, or told by what is being raised


async def _answer(line: socket.socket, asked: Mapping[str, Any], on_llm: OnLlm | None) -> None:
    answer = None
    try:
        answer = await on_llm(asked) if on_llm is not None else None
    finally:  # a callback that blew up ends the call too; `_converse` raises what it raised
        with contextlib.suppress(OSError):
            await asyncio.get_running_loop().sock_sendall(line, frames.pack(answer or {"stop": True}))


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


async def _writable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_writer(sock, _set, ready)
    try:
        await ready
    finally:
        loop.remove_writer(sock)


def _exec(
    root: Path,
    settings: GraderSettings,
    theirs: socket.socket,
    scratch: Path,
    allowed: Allowed,
    complaints: IO[bytes],
) -> subprocess.Popen[bytes]:
    program = settings.python or sys.executable
    orders = {"root": str(root.resolve()), "network": settings.network, "scratch": str(scratch), "cages": allowed}
    passed_on = [name for name in settings.env if not is_ours(name)]  # a plan may say anything
    environment = user_environment()
    variables = {name: environment[name] for name in (*_KEPT_VARIABLES, *passed_on) if name in environment}
    try:
        return subprocess.Popen(
            [program, "-I", "-X", "utf8", str(_ZYGOTE), str(theirs.fileno()), json.dumps(orders)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=complaints,
            pass_fds=(theirs.fileno(),),
            env={**_DEFAULT_VARIABLES, **variables},
            start_new_session=True,
        )
    except OSError as error:
        raise UnfitHost(
            f"the graders' interpreter cannot be started: {program!r}: {error.strerror}; `python` under [graders] in "
            "evalfleet.toml names it"
        ) from error


async def _ready(control: socket.socket, settings: GraderSettings, complaints: IO[bytes]) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    said = b""
    try:
        async with asyncio.timeout(START_SECONDS):
            while not said.endswith(b"\n"):
                data = await loop.sock_recv(control, 65536)
                if not data:
                    break
                said += data
    except (TimeoutError, OSError):
        said = b""
    if not said.endswith(b"\n"):
        complaints.seek(0)
        lines = complaints.read()[-2000:].decode("utf-8", "replace").strip().splitlines()
        raise UnfitHost(
            f"the graders' interpreter {settings.python or sys.executable!r} cannot run them (Python 3.8 or newer is "
            f"needed): {lines[-1] if lines else 'it said nothing'}"
        )
    document: dict[str, Any] = json.loads(said)
    return document


def hide_from_children() -> None:
    """Keep this process's environment and memory from other processes of the same user (Linux; elsewhere nothing).

    Called where graders cannot be put in a user namespace: `/proc/<us>/environ` holds our token."""
    if sys.platform.startswith("linux"):
        libc = ctypes.CDLL(None, use_errno=True)
        zero = ctypes.c_ulong(0)
        libc.prctl(ctypes.c_int(4), zero, zero, zero, zero)  # PR_SET_DUMPABLE


def capabilities(settings: GraderSettings | None = None) -> Cages:
    """Which walls this host gives, found by putting them up once. Not to be called on an event loop."""

    async def see() -> Cages:
        with tempfile.TemporaryDirectory() as folder:
            cage = await Cage.start(Path(folder), settings or GraderSettings())
            await cage.aclose()
            return cage.cages

    return asyncio.run(see())
