"""How does a part learn that the command which started it is gone, also when that was killed with -9?

It inherits the read end of a pipe whose only write end is in the command (close-on-exec, so no other process holds
it). The pipe never carries a byte: its end *is* the message, and the kernel sends it whatever the command died of. A
process that hears it stops gracefully, and after `GRACE` seconds the hard way: within 5 s nothing is left (design:
"Embedded life cycle").

A program that is not ours (Valkey) cannot watch a pipe, so a guard does it: this file run as a script, with nothing but
the standard library, is the program's parent, hands signals on and leaves with its exit status.

    python -I -S lifeline.py PROGRAM [ARGUMENT…]
"""

from __future__ import annotations

import os
import signal
import stat
import sys
import threading
from collections.abc import Callable, MutableMapping, Sequence

VARIABLE = "EVALFLEET_LIFELINE_FD"
GRACE = 4.0
"""Seconds between the command's death and the hard exit of a part that did not stop by itself."""


class Lifeline:
    """The command's side: one pipe for all of its parts. Close it (or die) and every part ends."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()  # both close-on-exec (PEP 446)

    @property
    def fd(self) -> int:
        """The end that a part inherits: `Popen(pass_fds=[lifeline.fd])`."""
        return self._read

    def environment(self) -> dict[str, str]:
        """What the part's environment must say beside the inherited descriptor."""
        return {VARIABLE: str(self._read)}

    def close(self) -> None:
        """Let go: parts that still run stop as if this process had died. Twice is once."""
        if self._write >= 0:
            os.close(self._write)
            os.close(self._read)
            self._read = self._write = -1


def _inherited(environ: MutableMapping[str, str]) -> int | None:
    """The inherited pipe, taken out of the environment (our own children must not take its number for theirs)."""
    value = environ.pop(VARIABLE, None)
    if value is None:
        return None
    try:
        fd = int(value)
        if stat.S_ISFIFO(os.fstat(fd).st_mode):
            os.set_inheritable(fd, False)
            return fd
    except (ValueError, OverflowError, OSError):
        pass  # said below, the same for every way of naming no pipe
    raise ValueError(f"{value!r} is no inherited pipe; only a command that starts this process sets it: unset it")


def _until_cut(fd: int) -> None:
    """Return when the other side is gone. Bytes are nothing we know: they are skipped."""
    while os.read(fd, 64):
        pass


def _exit_hard() -> None:
    """Leave now, with everything in our own process group if we lead one (a session of our own: a part's start)."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(1)


def watch(
    on_lost: Callable[[], None],
    *,
    environ: MutableMapping[str, str] = os.environ,
    grace: float = GRACE,
    exit_hard: Callable[[], None] = _exit_hard,
) -> threading.Thread | None:
    """Call `on_lost` (in a thread of ours) once the command is gone, and end the process `grace` seconds later.

    Returns the daemon thread, or None when this process was not started by a command (no EVALFLEET_LIFELINE_FD), as on
    a fleet. `on_lost` asks for a graceful stop and returns; what it raises goes to stderr, and the hard exit stands.
    Without this, parts of a killed command would go on for ever. SettingError: the variable is set but names no pipe.
    """
    try:
        fd = _inherited(environ)
    except ValueError as error:
        from evalfleet.errors import SettingError  # not at the top: the guard below runs without our packages

        raise SettingError(VARIABLE, str(error)) from error
    if fd is None:
        return None

    def run() -> None:
        _until_cut(fd)
        os.close(fd)
        # The hard exit must come whatever `on_lost` does: raise, block, or never return.
        timer = threading.Timer(grace, exit_hard)
        timer.daemon = True
        timer.start()
        on_lost()

    thread = threading.Thread(target=run, name="lifeline", daemon=True)
    thread.start()
    return thread


# --- the guard of a foreign program ------------------------------------------------------------------------------


def _die_with_parent() -> None:
    """Linux: the kernel ends this process when the guard is killed with -9. Elsewhere the next start does."""
    if sys.platform != "linux":
        return
    import ctypes

    pr_set_pdeathsig = 1
    ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, int(signal.SIGKILL), 0, 0, 0)


def guard(program: Sequence[str], *, environ: MutableMapping[str, str] = os.environ, grace: float = GRACE) -> int:
    """Run `program` as our child until it ends or the command is gone; the exit status in the shell's convention.

    Must be called from a process without other threads (it forks).
    """
    fd = _inherited(environ)
    parent = os.getpid()
    # From here on a signal waits until there is a child to hand it to.
    handed_on = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, handed_on)
    child = os.fork()
    if child == 0:
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, handed_on)
            _die_with_parent()
            if os.getppid() == parent:  # else it died before the line above: nobody would end us
                os.execvp(program[0], list(program))  # noqa: S606  (no shell is the point)
        except OSError as error:
            sys.stderr.write(f"cannot start {program[0]}: {error.strerror}\n")
            sys.stderr.flush()
        os._exit(127)

    def hand_on(number: int, _frame: object) -> None:
        try:
            os.kill(child, number)
        except ProcessLookupError:
            return  # it ended this very moment; waitpid below says how

    for number in handed_on:
        signal.signal(number, hand_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, handed_on)

    if fd is not None:

        def end_child() -> None:
            _until_cut(fd)
            hand_on(signal.SIGTERM, None)
            timer = threading.Timer(grace, _exit_hard)
            timer.daemon = True
            timer.start()

        threading.Thread(target=end_child, name="lifeline", daemon=True).start()

    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: lifeline.py PROGRAM [ARGUMENT...]")
    try:
        sys.exit(guard(sys.argv[1:]))
    except ValueError as problem:
        sys.exit(f"{VARIABLE}: {problem}")
