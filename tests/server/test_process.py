"""The server as a process: start, refusals, SIGTERM, kill -9, the lifeline."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from evalfleet.lifeline import Lifeline
from evalfleet.server.accounts import changing
from evalfleet.server.accounts import create as create_token
from tests.server.conftest import COMMIT, run_body

TOKEN = "token-of-the-process-tests"
DEADLINE = 60.0

AGENT = """\
import json, os, sys, time
turn = json.load(sys.stdin)
open("started", "w").write(str(os.getpid()))
if turn["message"] == "hang":
    time.sleep(600)
print(json.dumps({"type": "answer", "text": str(sorted(name for name in os.environ if "EVALFLEET" in name))}))
"""

CONFIG = '[harness]\nname = "concierge"\n[harness.command]\nargv = ["%s", "agent.py"]\n'


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    folder.mkdir()
    (folder / "evalfleet.toml").write_text(CONFIG % sys.executable, encoding="utf-8")
    (folder / "agent.py").write_text(AGENT, encoding="utf-8")
    return folder


def command(tree: Path, *more: str, module: tuple[str, ...] = ("evalfleet.server",)) -> list[str]:
    return [
        sys.executable, "-P", "-m", *module, "--tree", str(tree), "--port", "0", "--commit", COMMIT, *more,
    ]  # fmt: skip


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EVALFLEET_")}
    root = str(Path(__file__).parents[2])
    return {**kept, "PYTHONPATH": root, "EVALFLEET_TOKEN": TOKEN, **more}


@contextlib.contextmanager
def started(
    tree: Path,
    *more: str,
    pass_fds: tuple[int, ...] = (),
    module: tuple[str, ...] = ("evalfleet.server",),
    **variables: str,
) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    process = subprocess.Popen(
        command(tree, *more, module=module),
        env=environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        pass_fds=pass_fds,
        cwd="/",
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("listening on http://127.0.0.1:"), process.stderr.read()
        url = line.removeprefix("listening on ").strip()
        with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=DEADLINE) as client:
            yield process, client
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(DEADLINE)
        process.stdout.close()
        process.stderr.close()


def refused(tree: Path, *more: str, **variables: str) -> tuple[int, str]:
    ended = subprocess.run(
        command(tree, *more), env=environment(**variables), capture_output=True, text=True, timeout=DEADLINE, cwd="/"
    )
    assert ended.stdout == ""
    assert "Traceback" not in ended.stderr
    return ended.returncode, ended.stderr


def create(client: httpx.Client, text: str, key: str) -> dict[str, Any]:
    harness_id = client.get("/v2/harnesses").json()["data"][0]["id"]
    answer = client.post("/v2/runs", json=run_body(harness_id, text), headers={"Idempotency-Key": key})
    assert answer.status_code == 201, answer.text
    run: dict[str, Any] = answer.json()
    return run


def ended_run(client: httpx.Client, run_id: str) -> dict[str, Any]:
    """The run after its stream has ended."""
    client.get(f"/v2/runs/{run_id}/events", headers={"Accept": "text/event-stream"})
    run: dict[str, Any] = client.get(f"/v2/runs/{run_id}").json()
    return run


def agent_of(tree: Path) -> int:
    """The agent's pid, once it is at work."""
    mark = tree / "started"
    until(mark.is_file)
    until(lambda: mark.read_text(encoding="ascii").isdigit())
    return int(mark.read_text(encoding="ascii"))


def until(true: Any) -> None:
    deadline = time.monotonic() + DEADLINE
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    status = Path(f"/proc/{pid}/stat")
    return status.is_file() and status.read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"


def test_it_serves_and_leaves_within_five_seconds_of_sigterm(tree: Path, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    with started(tree, "--ready-file", str(ready)) as (process, client):
        assert ready.read_text(encoding="ascii").strip() == str(client.base_url).rstrip("/")
        health = client.get("/healthz").json()
        assert health == {"status": "ok", "pid": process.pid, "version": health["version"]}
        done = create(client, "hello", "k1")
        assert ended_run(client, done["id"])["status"] == "succeeded"
        outputs = client.get(f"/v2/runs/{done['id']}/outputs").json()["data"]
        assert outputs[0]["value"] == "[]"  # the agent sees no variable of ours, least of all the token
        hanging = create(client, "hang", "k2")
        (tree / "started").unlink()
        agent = agent_of(tree)
        asked = time.monotonic()
        process.send_signal(signal.SIGTERM)
        lost = client.get(f"/v2/runs/{hanging['id']}/events", headers={"Accept": "text/event-stream"})
        assert '"to":"failed"' in lost.text
        assert process.wait(DEADLINE) == 0
        assert time.monotonic() - asked < 15  # 5 s on a machine that is not busy
        assert gone(agent)
    with started(tree) as (process, client):
        run = client.get(f"/v2/runs/{hanging['id']}").json()
        assert run["status"] == "failed"
        assert run["failure"]["code"] == "server_lost"
        assert run["failure"]["retryable"] is True
        state = tree / ".evalfleet"
        assert state.stat().st_mode & 0o777 == 0o700
        code, message = refused(tree)
        assert code == 2
        assert f"process {process.pid}" in message


def test_an_agent_that_ignores_sigterm_does_not_hold_the_server(tree: Path) -> None:
    stubborn = AGENT.replace(
        "import json,", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); import json,"
    )
    (tree / "agent.py").write_text(stubborn, encoding="utf-8")
    with started(tree) as (process, client):
        create(client, "hang", "k1")
        agent = agent_of(tree)
        asked = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE) == 0
        assert time.monotonic() - asked < 15
        assert gone(agent)


def test_what_a_killed_server_leaves_is_ended_by_the_next_start(tree: Path) -> None:
    with started(tree) as (process, client):
        hanging = create(client, "hang", "k1")
        behind = client.post(
            "/v2/runs",
            json=run_body(hanging["harness_id"], "later", chat_id=hanging["chat_id"]),
            headers={"Idempotency-Key": "k2"},
        ).json()
        agent = agent_of(tree)
        process.kill()
        process.wait(DEADLINE)
        assert not gone(agent)
    with started(tree) as (_process, client):
        for run_id in (hanging["id"], behind["id"]):
            run = client.get(f"/v2/runs/{run_id}").json()
            assert (run["status"], run["failure"]["code"]) == ("failed", "server_lost")
            journal = client.get(f"/v2/runs/{run_id}/events").json()["data"]
            assert journal[-1]["data"] == {"to": "failed"}
            assert [event["sequence"] for event in journal] == list(range(1, len(journal) + 1))
        until(lambda: gone(agent))
        # The same key answers with the run that was lost; a new key plays.
        again = client.post("/v2/runs", json=run_body(hanging["harness_id"], "hang"), headers={"Idempotency-Key": "k1"})
        assert again.json()["id"] == hanging["id"]
        assert ended_run(client, create(client, "hello", "k3")["id"])["status"] == "succeeded"


def test_it_leaves_when_the_command_that_started_it_is_gone(tree: Path) -> None:
    lifeline = Lifeline()
    variables: Any = lifeline.environment()
    with started(tree, pass_fds=(lifeline.fd,), **variables) as (process, client):
        create(client, "hang", "k1")
        agent = agent_of(tree)
        lifeline.close()
        process.wait(DEADLINE)
        assert gone(agent)


def test_a_taken_port_is_named(tree: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        code, message = refused(tree, "--port", str(port))
    assert code == 2
    assert f"port {port}" in message
    assert "--port" in message


@pytest.mark.parametrize(
    ("arguments", "variables", "words"),
    [
        pytest.param(
            [], {"EVALFLEET_TOKEN": ""}, ["EVALFLEET_TOKEN", "server.sqlite3", "evalfleet token create"], id="no token"
        ),
        pytest.param(["--keep-runs", "30m"], {}, ["--keep-runs '30m'", "1h"], id="too short a retention"),
        pytest.param([], {"EVALFLEET_KEEP_RUNS": "90"}, ["--keep-runs '90'", "90d"], id="no span"),
        pytest.param(["--commit", "HEAD"], {}, ["--commit", "40"], id="no commit"),
        pytest.param(["--agents", "0"], {}, ["--agents 0"], id="no agents"),
        pytest.param(["--port", "70000"], {}, ["--port 70000"], id="no port"),
        pytest.param(["--database", "mysql://x/y"], {}, ["--database", "mysql"], id="another database"),
        pytest.param(["--database", "nonsense"], {}, ["--database"], id="no database URL"),
        pytest.param(["--state", "/dev/null/x"], {}, ["--state /dev/null/x"], id="no place for a folder"),
        pytest.param(["--host", "203.0.113.7"], {}, ["203.0.113.7"], id="not our address"),
        pytest.param(["--tree", "/nowhere"], {}, ["/nowhere"], id="several trees with one commit"),
    ],
)
def test_a_start_that_cannot_be_is_one_sentence(
    tree: Path, arguments: list[str], variables: dict[str, str], words: list[str]
) -> None:
    code, message = refused(tree, *arguments, **variables)
    assert code == 2
    assert message.startswith("evalfleet server: ")
    if "/nowhere" not in words:
        for word in words:
            assert word in message


def test_a_ready_file_that_cannot_be_written_is_named(tree: Path) -> None:
    code, message = refused(tree, "--ready-file", "/dev/null/ready")
    assert code == 2
    assert "evalfleet server: --ready-file /dev/null/ready: cannot be written" in message


@pytest.mark.parametrize("variable", ["EVALFLEET_LOG_LEVEL", "EVALFLEET_LOG_FORMAT"])
def test_a_variable_is_held_to_the_same_words_as_its_flag(tree: Path, variable: str) -> None:
    code, message = refused(tree, **{variable: "loud"})
    assert code == 2
    assert f"{variable}='loud': write " in message


def test_it_starts_without_the_variable_where_its_database_has_a_token(tree: Path, tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'server.sqlite3'}"
    with changing(database) as connection:
        _made, secret = create_token(connection, "ci")
    with started(tree, "--database", database, "--keep-runs", "90d", EVALFLEET_TOKEN="") as (_process, client):
        assert client.get("/v2/runs").status_code == 401
        assert client.get("/v2/runs", headers={"Authorization": f"Bearer {secret}"}).status_code == 200
