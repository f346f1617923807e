"""How is an agent's program started, listened to and ended, with everything that it started?

Each program leads a session and a process group of its own: a terminal's Ctrl-C does not reach it, and one signal
reaches all of it. A record of it stands in a file while it lives (`leftovers`).

The pipes are ours and not asyncio's: with `subprocess.PIPE`, some Python versions report the exit of a program only
when nobody holds its pipes any more, and a forgotten grandchild would hang the turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from evalfleet.server.drivers.leftovers import PROC, forget, record

log = logging.getLogger(__name__)

READ_SIZE = 256 * 1024
LINGER = 1.0  # seconds that a pipe may stay open after the program has ended
_LATE_LIMIT = 4 * 1024 * 1024  # bytes read after that: more than any pipe of an ended program can still hold
_KILL_WAIT = 5.0


class NotStarted(Exception):
    """The program could not be started. `ours`: for want of memory, processes or files, not because of the program."""

    def __init__(self, message: str, *, ours: bool = False) -> None:
        super().__init__(message)
        self.ours = ours


class Pipe:
    """The read end of a pipe, read on demand: what nobody reads holds the writer up and not our memory."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._late: int | None = None
        self._wake: asyncio.Event | None = None

    async def read(self) -> bytes:
        """What is there, or will be next; b"" at the end of the pipe, or `LINGER` after the program's end."""
        while self._descriptor >= 0 and (self._late is None or self._late < _LATE_LIMIT):
            try:
                piece = os.read(self._descriptor, READ_SIZE)
            except BlockingIOError:
                if self._late is not None:
                    break
                await self._readable()
            else:
                if self._late is not None:
                    self._late += len(piece)
                await asyncio.sleep(0)  # a program that floods does not keep the loop to itself
                return piece
        return b""

    def hurry(self) -> None:
        """From now on only what the pipe holds already."""
        self._late = self._late or 0
        if self._wake is not None:
            self._wake.set()

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            if self._wake is not None:
                asyncio.get_running_loop().remove_reader(descriptor)
                self._wake.set()
            os.close(descriptor)

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        loop.add_reader(self._descriptor, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            self._wake = None
            if self._descriptor >= 0:
                loop.remove_reader(self._descriptor)


class AgentProcess:
    """A program that runs, made by `start`. Whoever started it calls `close`, whatever happened."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        feeding: asyncio.Task[None],
        stdout: Pipe,
        stderr: Pipe,
        kept_in: Path,
    ) -> None:
        self._process = process
        self._feeding = feeding
        self.pid = process.pid
        self._record = kept_in
        self.stdout = stdout
        self.stderr = stderr
        self._exit = asyncio.create_task(self._watch(), name=f"agent {process.pid}")

    @classmethod
    async def start(
        cls, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], stdin: bytes, records: Path
    ) -> AgentProcess:
        """Start `argv` (its first word a path) and give it `stdin`, then the end of file. Raises NotStarted.

        A program that never reads its input is not held up by it, nor are we.
        """
        descriptors: list[int] = []
        try:
            in_read, in_write = _pipe(descriptors)
            out_read, out_write = _pipe(descriptors)
            err_read, err_write = _pipe(descriptors)
            process = await asyncio.create_subprocess_exec(
                *argv, stdin=in_read, stdout=out_write, stderr=err_write, cwd=cwd, env=env, start_new_session=True
            )
        except (OSError, ValueError) as error:
            for descriptor in descriptors:
                os.close(descriptor)
            raise _not_started(error, argv[0], cwd) from error
        except BaseException:
            for descriptor in descriptors:
                os.close(descriptor)
            raise
        for descriptor in (in_read, out_write, err_write):
            os.close(descriptor)
        feeding = asyncio.create_task(_feed(in_write, stdin))
        feeding.add_done_callback(lambda _: os.close(in_write))  # also when it was cancelled before its first step
        agent = cls(process, feeding, Pipe(out_read), Pipe(err_read), records / str(process.pid))
        try:
            await agent._note()
        except OSError as error:
            await asyncio.shield(agent.close())
            raise NotStarted(f"its record {agent._record} cannot be written: {error.strerror}", ours=True) from error
        except BaseException:
            await asyncio.shield(agent.close())
            raise
        return agent

    async def wait(self) -> int:
        """Its exit status; negative for a signal. What it left in its group is dead then."""
        return await asyncio.shield(self._exit)

    async def end(self, grace: float) -> None:
        """SIGTERM to the whole group, SIGKILL `grace` seconds later to what is still there."""
        if self._exit.done():
            return  # its number may be another's by now
        self._signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.wait(), grace)
        self._signal(signal.SIGKILL)
        try:
            await asyncio.wait_for(self.wait(), _KILL_WAIT)
        except TimeoutError:
            log.critical("agent process %d is still there %g s after SIGKILL", self.pid, _KILL_WAIT)

    async def kill(self) -> None:
        """End it at once, and listen to nothing but what it has said already."""
        self.stdout.hurry()
        self.stderr.hurry()
        await self.end(0)

    async def close(self) -> None:
        """End what is left, give back every descriptor, and forget the pid."""
        if not self._exit.done():
            await self.end(0)
        self.stdout.close()
        self.stderr.close()
        self._feeding.cancel()
        await asyncio.wait([self._feeding])
        if self._exit.done():
            forget(self._record)
        else:
            self._exit.cancel()  # its record stays for the next start

    async def _note(self) -> None:
        if PROC:
            record(self._record, self.pid)
        else:
            await asyncio.to_thread(record, self._record, self.pid)  # it asks `ps`

    async def _watch(self) -> int:
        status = await self._process.wait()
        self._signal(signal.SIGKILL)
        loop = asyncio.get_running_loop()
        loop.call_later(LINGER, self.stdout.hurry)
        loop.call_later(LINGER, self.stderr.hurry)
        return status

    def _signal(self, number: signal.Signals) -> None:
        # The group may be gone; macOS says EPERM of a group that holds only a zombie.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


async def _feed(descriptor: int, data: bytes) -> None:
    """Write a program's input; its task's end closes it. A program that ends or does not care to read is no error."""
    loop = asyncio.get_running_loop()
    rest = memoryview(data)
    os.set_blocking(descriptor, False)
    try:
        while rest:
            try:
                rest = rest[os.write(descriptor, rest) :]
            except BlockingIOError:
                writable = asyncio.Event()
                loop.add_writer(descriptor, writable.set)
                try:
                    await writable.wait()
                finally:
                    loop.remove_writer(descriptor)
    except BrokenPipeError:
        return


def _pipe(descriptors: list[int]) -> tuple[int, int]:
    pair = os.pipe()
    descriptors += pair
    return pair


def _not_started(error: Exception, program: str, cwd: Path) -> NotStarted:
    if isinstance(error, OSError):
        if error.errno in (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE):
            return NotStarted(f"{program} could not be started on this machine now: {error.strerror}", ours=True)
        if not cwd.is_dir():
            return NotStarted(f"the folder {cwd} in which {program} should start is not there")
        if error.errno == errno.ENOENT and Path(program).exists():
            return NotStarted(f"{program} is there, but the program that its #! line names is not")
        if error.errno == errno.ENOENT:
            return NotStarted(f"{program} is not there")
        if error.errno == errno.EACCES:
            return NotStarted(f"{program} may not be executed (chmod +x?)")
        if error.errno == errno.ENOEXEC:
            return NotStarted(f"{program} is no program this machine can execute (is its #! line missing?)")
        return NotStarted(f"{program} could not be started: {error.strerror or error}")
    return NotStarted(f"{program} could not be started: {error}")
