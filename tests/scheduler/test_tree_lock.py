"""One command at a time in a tree, and the second is told who the first is."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from evalfleet.errors import TreeBusy, UnfitHost
from scheduler.tree_lock import TreeLock, busy_message

NOW = datetime(2026, 11, 30, 12, 47, tzinfo=UTC)
HOLDER = '{"pid": 4711, "command": "evalfleet eval", "started": "%s"}'


@pytest.mark.parametrize(
    ("holder", "expected"),
    [
        pytest.param(
            HOLDER % "2026-11-30T12:46:10+00:00",
            ": pid 4711 (evalfleet eval), started 12:46:10 UTC, 50 s ago. Wait",
            id="seconds",
        ),
        pytest.param(HOLDER % "2026-11-30T12:00:00+00:00", ", 47 min ago. Wait", id="minutes"),
        pytest.param(HOLDER % "2026-11-29T12:47:00+00:00", ", 24 h ago. Wait", id="hours"),
        pytest.param(HOLDER % "2026-11-30T12:48:00+00:00", ", 0 s ago. Wait", id="a clock that was set back"),
        pytest.param("", "in this tree. Wait", id="it has not written yet"),
        pytest.param("[1]", "in this tree. Wait", id="nonsense"),
        pytest.param('{"pid": 1, "command": "x", "started": "soon"}', "in this tree. Wait", id="no time"),
        pytest.param(
            '{"pid": 1, "command": "x", "started": "2026-11-30T12:46:10"}', "in this tree. Wait", id="no zone"
        ),
    ],
)
def test_the_second_command_is_told_who_is_at_work_and_what_to_do(holder: str, expected: str) -> None:
    message = busy_message(holder.encode(), now=NOW)
    assert expected in message
    assert message.endswith("--state DIR")


def test_a_lock_ends_with_its_holder_and_not_with_its_file(tmp_path: Path) -> None:
    code = """
import sys; from pathlib import Path; from scheduler.tree_lock import TreeLock
with TreeLock(Path(sys.argv[1]), "evalfleet eval"):
    print("held", flush=True)
    sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-P", "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(TreeBusy, match=f"pid {holder.pid} "):
            TreeLock(tmp_path, "second").acquire()
        holder.kill()
        holder.communicate(timeout=30)
    with TreeLock(tmp_path, "third"):
        pass
    assert (tmp_path / "lock").read_bytes() == b"", "nobody is named by a lock that nobody holds"


def test_children_of_the_holder_do_not_keep_the_lock(tmp_path: Path) -> None:
    lock = TreeLock(tmp_path, "first")
    lock.acquire()
    with subprocess.Popen(["sleep", "600"], close_fds=False) as child:
        lock.release()
        TreeLock(tmp_path, "second").acquire()
        child.kill()


@pytest.mark.parametrize("at", ["lock/", "away"], ids=["a folder stands there", "a link stands there"])
def test_a_lock_that_cannot_be_opened_is_one_sentence(tmp_path: Path, at: str) -> None:
    if at.endswith("/"):
        (tmp_path / at).mkdir()
    else:
        (tmp_path / "lock").symlink_to(tmp_path / at)
    with pytest.raises(UnfitHost, match=r"cannot open the lock .*; --state DIR"):
        TreeLock(tmp_path, "x").acquire()
