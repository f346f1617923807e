"""Is this pid still the process that was meant? A number alone proves nothing: it may be somebody else's by now."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def started(pid: int) -> str | None:
    """When a process started, in the system's own words; None if there is no such process (or only its zombie)."""
    if sys.platform == "linux":
        return _from_proc(pid)
    else:
        asked = subprocess.run(
            ["/bin/ps", "-o", "state=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False, timeout=10
        )
        state, _, start = asked.stdout.strip().partition(" ")
        return None if not start or state.startswith("Z") else start.strip()


def _from_proc(pid: int) -> str | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()  # the name before it may hold anything
    return None if fields[0] in "ZX" else fields[19]


def boot() -> str | None:
    """Linux counts start times from the boot: which boot. None elsewhere, where a start time is a date."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None
