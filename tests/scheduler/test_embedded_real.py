"""The stack with its real parts: our server, our worker, Valkey."""

from __future__ import annotations

import http.client
import json
import os
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evalfleet.errors import UnfitHost
from evalfleet.ledger import Ledger
from evalfleet.tree import read_tree_config, tree_commit
from scheduler.embedded import Endpoints, Stack
from tests.scheduler.stand_ins import Seen, alive, await_true, children_of_group, needs_proc, pid_of

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


def begin(stack: Stack, **options: Any) -> Endpoints:
    """At the tree's own commit: the server plays no other (S33)."""
    commit = tree_commit(read_tree_config(stack.root))
    return stack.start(commit=commit, concurrency=2, results=stack.root / "results", **options)


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


def cut(stack: Stack) -> None:
    """What the parts see when their command is killed: the end of the lifeline, and nobody who restarts them."""
    assert stack._line is not None
    for part in stack._parts.values():
        part._stopping = True
    stack._line.close()


def ask(endpoints: Endpoints, method: str, path: str, body: object = None) -> Any:
    request = urllib.request.Request(f"{endpoints.base_url}{path}", method=method)
    request.add_header("Authorization", f"Bearer {endpoints.token}")
    request.add_header("Accept", "application/json")
    if body is not None:
        request.add_header("Content-Type", "application/json")
        request.add_header("Idempotency-Key", "one")
        request.data = json.dumps(body).encode()
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


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
    cut(stack)
    assert await_true(lambda: not any(alive(pid) for pid in everything), within=10)


DEAF_AGENT = """#!/bin/sh
trap '' TERM
echo $$ > {pids}
sleep 600 & echo $! >> {pids}
while :; do wait; done
"""


@needs_proc
@pytest.mark.parametrize("how", ["the command is gone", "it is stopped", "the server is killed"])
def test_an_agent_that_does_not_listen_goes_with_the_stack(tree: Path, stack: Stack, seen: Seen, how: str) -> None:
    pids = tree / "pids"
    (tree / "agent.sh").write_text(DEAF_AGENT.format(pids=pids))
    (tree / "evalfleet.toml").write_text('[harness]\nname = "deaf"\n[harness.command]\nargv = ["sh", "agent.sh"]\n')
    endpoints = begin(stack, with_worker=False)
    (harness,) = ask(endpoints, "GET", "/v2/harnesses")["data"]
    content = [{"type": "text", "text": "hello"}]
    ask(endpoints, "POST", "/v2/runs", {"harness_id": harness["id"], "input": {"role": "user", "content": content}})
    assert await_true(lambda: pids.exists() and len(pids.read_text().splitlines()) == 2)
    agents = [int(line) for line in pids.read_text().splitlines()]
    assert all(alive(pid) for pid in agents)
    if how == "the server is killed":
        os.kill(pid_of(stack, "server"), signal.SIGKILL)
        seen.wait_for(lambda: bool(seen.restarts))
    elif how == "it is stopped":
        stack.stop()
    else:
        cut(stack)
    assert await_true(lambda: not any(alive(pid) for pid in agents), within=5.0)


def test_a_tree_that_the_server_refuses_is_said_in_its_own_words(tree: Path, stack: Stack) -> None:
    (tree / "evalfleet.toml").write_text("[harness]\nname = 'echo'\n")
    with pytest.raises(UnfitHost, match="the server refused to start") as caught:
        begin(stack)
    assert "harness.command" in str(caught.value)
