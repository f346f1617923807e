"""How is everything that a grader started ended, whatever it did to get away? (S28, F01, F02)

In a PID namespace: `kill(-1)` by its PID 1. Else on Linux: the keeper is the reaper of its orphans, so all of them are
its descendants; they are killed until it has none. Else (macOS): the process group, the session, and whatever carries
the call's mark in its environment, as `ps` shows it.
"""

# Plain calls: a path object for each name is memory that every forked call would pay for again.
# ruff: noqa: PTH106, PTH108, PTH114, PTH118, PTH123, PTH208
from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time

from evalfleet.graders.inside import kernel

MARK = "EVALFLEET_GRADER_CALL"
_SECONDS = 2.0  # a process that is not gone then is stuck in the kernel: SIGKILL waits for it there


def end_everything(pid: int, deaths: int) -> tuple[int | None, bool]:
    """Kill `pid` (a child of ours, possibly reaped already) and all it started.

    Returns its wait status if seen here, and whether nothing is left. `deaths`: the descriptor that becomes readable
    when a child of ours has died."""
    if os.getpid() == 1:
        kill(-1)
    else:
        kill(-pid)
        if not kernel.IS_LINUX:
            _kill_marked(pid)
    return end_children(pid, deaths)


def end_children(pid: int, deaths: int) -> tuple[int | None, bool]:
    """Reap until we have no child, and kill those that are slow to go. As `end_everything`."""
    status = None
    until = time.monotonic() + _SECONDS
    while time.monotonic() < until:
        try:
            gone, seen = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status, True  # no child, and orphans become our children: nothing is left
        if gone == pid:
            status = seen
        elif gone == 0 and select.select([deaths], [], [], 0.005)[0]:
            os.read(deaths, 4096)
        elif gone == 0 and os.getpid() != 1 and kernel.IS_LINUX:
            for left in descendants(os.getpid()):
                kill(left)
    return status, False


def kill(target: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # gone already, or a zombie's group on macOS
        os.kill(target, signal.SIGKILL)


def descendants(of: int) -> list[int]:
    """Every living process below `of`."""
    below = _by_parent()
    found, ahead = [], list(below.get(of, ()))
    while ahead:
        pid = ahead.pop()
        found.append(pid)
        ahead += below.get(pid, ())
    return found


def children(of: int) -> list[int]:
    return _by_parent().get(of, [])


def _by_parent() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                text = file.read()
        except OSError:
            continue
        state, parent = text[text.rindex(b")") + 2 :].split(None, 2)[:2]
        if state != b"Z":
            found.setdefault(int(parent), []).append(int(name))
    return found


def marked(listing: str, pid: int, mark: str) -> list[int]:
    """From `ps -A -E -ww -o pid=,ppid=,pgid=,command=`: the group of `pid`, its descendants, and who carries `mark`."""
    rows = [line.split(None, 3) for line in listing.splitlines()]
    found: set[int] = set()
    grown = True
    while grown:
        grown = False
        for row in rows:
            if len(row) < 4 or int(row[0]) in found or int(row[0]) == os.getpid():
                continue
            if int(row[1]) in found | {pid} or int(row[2]) == pid or mark in row[3]:
                found.add(int(row[0]))
                grown = True
    return sorted(found)


def _kill_marked(pid: int) -> None:
    listing = subprocess.run(
        ["/bin/ps", "-A", "-E", "-ww", "-o", "pid=,ppid=,pgid=,command="], capture_output=True, check=False, timeout=2
    ).stdout.decode("utf-8", "replace")
    for found in marked(listing, pid, f"{MARK}={os.getpid()}."):
        kill(found)


def remove_folder(folder: str) -> None:
    """Remove a scratch folder; what cannot be removed is left to the end of the whole pool's scratch."""
    try:
        os.rmdir(folder)
        return
    except OSError:
        pass
    for here, folders, files in os.walk(folder, topdown=False):
        for name in files + folders:
            path = os.path.join(here, name)
            try:
                os.rmdir(path) if name in folders and not os.path.islink(path) else os.unlink(path)
            except OSError:
                continue
    with contextlib.suppress(OSError):
        os.rmdir(folder)
