"""The stack with its real parts: our server, our worker, Valkey."""

from __future__ import annotations

import http.client
import os
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from evalfleet.errors import UnfitHost
from evalfleet.ledger import Ledger
from scheduler.embedded import Endpoints, Stack
from tests.scheduler.stand_ins import Seen, alive, await_true, begin, children_of_group, needs_proc, pid_of

pytestmark = pytest.mark.e2e


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "evals/cases").mkdir(parents=True)
    (tmp_path / "evalfleet.toml").write_text('[harness]\nname = "echo"\n[harness.command]\nargv = ["cat"]\n')
    return tmp_path


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def stack(tree: Path, seen: Seen) -> Iterator[Stack]:
    with Stack(tree, on_death=seen.died, on_restart=seen.restarted, on_failure=seen.failed) as stack:
        yield stack


def healthy(endpoints: Endpoints) -> bool:
    try:
        with urllib.request.urlopen(f"{endpoints.base_url}/healthz", timeout=5) as answer:
            return bool(answer.status == 200)
    except (OSError, http.client.HTTPException):
        return False


def at_work(endpoints: Endpoints, pid: int) -> bool:
    """Whether the worker with this pid is known to the ledger."""
    ledger = Ledger(endpoints.redis_url)
    try:
        return any(worker.get("pid") == pid for worker in ledger.workers())
    finally:
        ledger.close()


@needs_proc
def test_the_real_parts_start_heal_and_leave_nothing(stack: Stack, seen: Seen) -> None:
    endpoints = begin(stack)
    assert healthy(endpoints), "the server answers as soon as start() returns"
    assert await_true(lambda: at_work(endpoints, pid_of(stack, "worker")))
    for number, part in enumerate(("worker", "server"), start=1):
        os.kill(pid_of(stack, part), signal.SIGKILL)
        seen.wait_for(lambda number=number: len(seen.restarts) == number)  # type: ignore[misc]
    assert await_true(lambda: healthy(endpoints))
    assert await_true(lambda: at_work(endpoints, pid_of(stack, "worker")))
    everything = [pid for part in ("valkey", "server", "worker") for pid in children_of_group(pid_of(stack, part))]
    stack.stop()
    assert await_true(lambda: not any(alive(pid) for pid in everything))
    assert list((stack.state / "pids").iterdir()) == []
    assert list((stack.state / "agents").iterdir()) == []
    assert seen.failures == []


def test_the_parts_stop_when_asked_without_being_killed(stack: Stack, caplog: pytest.LogCaptureFixture) -> None:
    endpoints = begin(stack)
    assert await_true(lambda: at_work(endpoints, pid_of(stack, "worker")))
    stack.stop()
    assert "killed" not in caplog.text
    assert "Traceback" not in "".join(log.read_text() for log in (stack.state / "logs").glob("*.log"))


@needs_proc
def test_the_real_parts_end_when_their_command_is_gone(stack: Stack) -> None:
    endpoints = begin(stack)
    assert await_true(lambda: at_work(endpoints, pid_of(stack, "worker")))
    everything = [pid for part in ("valkey", "server", "worker") for pid in children_of_group(pid_of(stack, part))]
    assert len(everything) >= 4
    assert stack._line is not None
    for part in stack._parts.values():
        part._stopping = True  # a command that is gone restarts nothing
    stack._line.close()
    assert await_true(lambda: not any(alive(pid) for pid in everything), within=10)


def test_a_tree_that_the_server_refuses_is_said_in_its_own_words(tree: Path, stack: Stack) -> None:
    (tree / "evalfleet.toml").write_text("[harness]\nname = 'echo'\n")
    with pytest.raises(UnfitHost, match="the server refused to start") as caught:
        begin(stack)
    assert "harness.command" in str(caught.value)
