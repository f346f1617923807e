"""What a server that was killed leaves behind, and what the next one does about it (design: "Embedded life cycle")."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from evalfleet.server.drivers import end_leftovers
from evalfleet.server.drivers.leftovers import started
from evalfleet.server.drivers.process import AgentProcess

SLEEPER = [sys.executable, "-S", "-c", "print('up', flush=True); import time; time.sleep(60)"]
PARENT = [sys.executable, "-S", "-c", f"import subprocess; p = subprocess.Popen({SLEEPER!r}); print(p.pid, flush=True)"]


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(SLEEPER, start_new_session=True, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        yield process
        process.kill()


def a_record(folder: Path, pid: int, **changed: object) -> Path:
    boot = Path("/proc/sys/kernel/random/boot_id")
    boot_id = boot.read_text().strip() if boot.exists() else None
    folder.mkdir(exist_ok=True)
    path = folder / str(pid)
    path.write_text(json.dumps({"pid": pid, "started": started(pid), "boot": boot_id} | changed))
    return path


def test_an_agent_of_a_dead_server_is_killed_at_the_next_start(sleeper: subprocess.Popen[str], tmp_path: Path) -> None:
    path = a_record(tmp_path / "agents", sleeper.pid)
    assert end_leftovers(tmp_path / "agents") == 1
    assert sleeper.wait(10) == -signal.SIGKILL
    assert not path.exists()


@pytest.mark.parametrize(
    "changed",
    [pytest.param({"started": "1"}, id="another start time"), pytest.param({"boot": "before"}, id="before a reboot")],
)
def test_a_pid_that_is_somebody_elses_by_now_is_left_alone(
    sleeper: subprocess.Popen[str], tmp_path: Path, changed: dict[str, str]
) -> None:
    path = a_record(tmp_path / "agents", sleeper.pid, **changed)
    assert end_leftovers(tmp_path / "agents") == 0
    assert sleeper.poll() is None
    assert not path.exists()


def test_the_children_of_an_agent_that_is_gone_are_killed_too(tmp_path: Path) -> None:
    with subprocess.Popen(PARENT, start_new_session=True, stdout=subprocess.PIPE, text=True) as leader:
        assert leader.stdout is not None
        child = int(leader.stdout.readline())
        a_record(tmp_path / "agents", leader.pid)
        leader.wait(10)
        assert started(leader.pid) is None
        assert started(child) is not None
        assert end_leftovers(tmp_path / "agents") == 1
        leader.stdout.read()  # ends when the child does
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, 0)


def test_a_record_that_cannot_be_read_is_dropped(tmp_path: Path) -> None:
    (tmp_path / "123").write_text("{")
    (tmp_path / "124").write_text("[]")
    assert end_leftovers(tmp_path) == 0
    assert list(tmp_path.iterdir()) == []


def test_without_a_folder_there_is_nothing_to_end(tmp_path: Path) -> None:
    assert end_leftovers(tmp_path / "agents") == 0


async def test_a_running_agent_has_a_record_and_an_ended_one_has_none(tmp_path: Path) -> None:
    agent = await AgentProcess.start(SLEEPER, cwd=tmp_path, env={}, stdin=b"", records=tmp_path / "agents")
    try:
        assert await agent.stdout.read() == b"up\n"
        record = json.loads((tmp_path / "agents" / str(agent.pid)).read_text())
        assert (record["pid"], record["started"]) == (agent.pid, started(agent.pid))
        assert os.getsid(agent.pid) == os.getpgid(agent.pid) == agent.pid
    finally:
        await agent.close()
    assert not list((tmp_path / "agents").iterdir())
    assert await agent.wait() == -signal.SIGTERM or await agent.wait() == -signal.SIGKILL


async def test_no_descriptor_is_left_open_by_a_hundred_turns(tmp_path: Path) -> None:
    async def one() -> None:
        program = [sys.executable, "-S", "-c", "pass"]
        agent = await AgentProcess.start(program, cwd=tmp_path, env={}, stdin=b"x" * 200_000, records=tmp_path)
        assert await agent.wait() == 0
        await agent.close()

    await one()
    before = len(os.listdir("/dev/fd"))
    for _ in range(10):
        await asyncio.gather(*(one() for _ in range(10)))
    assert len(os.listdir("/dev/fd")) <= before
