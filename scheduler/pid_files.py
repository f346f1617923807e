"""Which processes did an earlier stack leave behind, and how do they end?

A part's pid stands in `<state>/pids/<part>.json` while it lives, with its start time: a pid alone proves nothing, it
may be somebody else's by now. Each part leads a process group of its own, and the whole group is ended.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from evalfleet.process_identity import boot, started

log = logging.getLogger(__name__)
_POLL = 0.05  # seconds; only where the system has no descriptor of a process to wait on


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """One process, told apart from a later one of the same number."""

    part: str
    pid: int
    started: str | None
    boot: str | None

    @classmethod
    def of(cls, part: str, pid: int) -> ProcessRecord:
        return cls(part, pid, started(pid), boot())

    def ours(self) -> bool:
        """Whether the number still is that process's, or that of the group it led (such a number is not given anew)."""
        now = started(self.pid)
        return self.pid > 1 and self.boot == boot() and (now is None or now == self.started)


def write(folder: Path, record: ProcessRecord) -> None:
    """Put the record in place at once or not at all: a reader never sees half of it."""
    path = _path(folder, record.part)
    draft = path.with_suffix(".new")
    draft.write_text(
        json.dumps({"part": record.part, "pid": record.pid, "started": record.started, "boot": record.boot}),
        encoding="utf-8",
    )
    draft.replace(path)


def remove(folder: Path, part: str) -> None:
    _path(folder, part).unlink(missing_ok=True)


def end_leftovers(folder: Path, *, grace: float = 5.0) -> list[str]:
    """End what the records in `folder` name: SIGTERM to all groups, SIGKILL after `grace` seconds. The parts' names.

    For the holder of the tree's lock only, before it starts parts of its own. Most leftovers have heard of their
    command's death (`evalfleet.lifeline`) and are on their way already.
    """
    records = [record for path in sorted(folder.glob("*.json")) if (record := _read(path)) is not None]
    # A record whose group has nobody left names nothing that could be ended.
    alive = [record for record in records if record.ours() and _signal(record.pid, signal.SIGTERM)]
    deadline = time.monotonic() + grace
    for record in alive:
        if not _await_end(record.pid, deadline):
            log.warning("%s (pid %d) of an earlier evalfleet does not stop: killed", record.part, record.pid)
        _signal(record.pid, signal.SIGKILL)  # also to what its group still holds when the leader is gone
    for record in records:
        remove(folder, record.part)
    return [record.part for record in alive]


def _path(folder: Path, part: str) -> Path:
    return folder / f"{part}.json"


def _read(path: Path) -> ProcessRecord | None:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return ProcessRecord(path.stem, int(document["pid"]), document["started"], document["boot"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("the record of a process, %s, cannot be read (%s); it is dropped", path, error)
        with contextlib.suppress(OSError):
            path.unlink()
        return None


def _signal(group: int, number: signal.Signals) -> bool:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):  # nobody there; or, on macOS, only zombies
        return False
    return True


def _await_end(pid: int, deadline: float) -> bool:
    """Whether `pid`, which is no child of ours, ended before `deadline`."""
    if hasattr(os, "pidfd_open"):
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return True
        except OSError:
            pass  # a kernel or a sandbox without it: look again and again, below
        else:
            try:
                return bool(select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0])
            finally:
                os.close(descriptor)
    while started(pid) is not None:
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL)
    return True
