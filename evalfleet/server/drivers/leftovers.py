"""What did a server that was killed leave behind, and how does the next one end it?

Each running agent has a record, `<state>/agents/<pid>`, with its start time: a pid alone proves nothing, for it may be
somebody else's by now.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
from pathlib import Path

log = logging.getLogger(__name__)

PROC = Path("/proc/self/stat").exists()
"""Linux tells a start time in /proc; elsewhere `ps` is asked."""


def record(path: Path, pid: int) -> None:
    """Write down that the process runs. OSError if that cannot be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"pid": pid, "started": started(pid), "boot": _boot()}), encoding="utf-8")


def forget(path: Path) -> None:
    """The process has ended."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("the record of an agent, %s, cannot be removed (%s): the next start looks at it", path, error)


def end_leftovers(folder: Path) -> int:
    """Kill the agents of a server that is gone, by the records in `folder` (`<state>/agents`); how many there were.

    A pid alone proves nothing (it may be somebody else's by now): the start time has to be the recorded one. Where only
    the leader is gone, its group is ended: a number that is still a group's is not given to a new process.
    """
    ended = 0
    for path in sorted(folder.glob("*")) if folder.is_dir() else ():
        try:
            noted = json.loads(path.read_text(encoding="utf-8"))
            pid, start, boot = int(noted["pid"]), noted["started"], noted.get("boot")
        except (ValueError, KeyError, TypeError) as error:
            log.warning("the record of an agent, %s, cannot be read (%s); it is dropped", path, error)
            path.unlink(missing_ok=True)
            continue
        now = started(pid)
        ours = now == start if now is not None else True
        if pid > 1 and ours and boot == _boot():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
                ended += 1
        path.unlink(missing_ok=True)
    return ended


def started(pid: int) -> str | None:
    """When a process started, in the system's own words; None if there is no such process (or only its zombie)."""
    if PROC:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            return None
        fields = stat.rpartition(")")[2].split()  # the name before it may hold anything
        return None if fields[0] in "ZX" else fields[19]
    asked = subprocess.run(
        ["/bin/ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False, timeout=10
    )
    return asked.stdout.strip() or None


def _boot() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None  # not Linux: there the start time is a date
