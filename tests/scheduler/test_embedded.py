"""The embedded stack on real processes: it starts, tells its parts what they need, and leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from evalfleet.errors import TreeBusy, UnfitHost
from scheduler.embedded import Stack, Target
from scheduler.interrupt import Interrupts
from scheduler.programs import part_environment
from tests.scheduler.stand_ins import (
    PART,
    alive,
    await_true,
    begin,
    pid_of,
    ping,
    python,
    stand_ins,
)


def test_the_three_parts_start_and_nothing_of_them_is_left(tmp_path: Path) -> None:
    with Stack(tmp_path, programs=stand_ins()) as stack:
        endpoints = begin(stack)
        ping(endpoints)
        with redis.Redis.from_url(endpoints.redis_url) as client:
            assert client.config_get("maxmemory-policy")["maxmemory-policy"] == "noeviction"
            assert client.config_get("appendonly")["appendonly"] == "yes"
        pids = [pid_of(stack, part) for part in ("valkey", "server", "worker")]
        assert all(alive(pid) for pid in pids)
        assert all(os.getsid(pid) == pid for pid in pids), "each part leads a session of its own"
        assert len(endpoints.token) > 30
        assert endpoints.token not in repr(endpoints)
        state = stack.state
        log = state / "logs" / "worker.log"
        assert await_true(lambda: "at work" in log.read_text()), "a stack does not wait for its worker; this test does"
    assert not any(alive(pid) for pid in pids)
    assert state == tmp_path / ".evalfleet"
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert (state / ".gitignore").read_text() == "*\n"
    assert list((state / "pids").iterdir()) == []
    assert not (state / "valkey.sock").exists()
    assert log.read_text() == "at work\nstopped\n", "it was asked to stop, and did"


def test_a_second_start_works_and_begins_with_an_empty_broker(tmp_path: Path) -> None:
    """What is to be done stands in the evaluations (I1): claims of a killed command would only hold up the next."""
    for _ in range(2):
        with Stack(tmp_path, programs=stand_ins()) as stack:
            endpoints = begin(stack, with_worker=False, with_server=False)
            with redis.Redis.from_url(endpoints.redis_url) as client:
                assert client.dbsize() == 0
                client.set("kept", "1")
    assert (tmp_path / ".evalfleet/logs/valkey.log.1").exists(), "the log of the run before is kept"


def test_a_signal_while_it_starts_ends_it_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    """S38: Ctrl-C does not wait for a server that takes a minute to say that it listens."""
    with Stack(tmp_path, programs=stand_ins(server=python(PART, "not yet"))) as stack, Interrupts() as interrupts:
        stack.launch(commit="0" * 40, concurrency=1, results=tmp_path / "results")
        assert await_true(lambda: (stack.state / "logs/server.log").exists())
        pid = pid_of(stack, "server")
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            stack.await_ready(time.monotonic() + 3600, interrupts.check)
        assert not alive(pid)


def test_a_second_command_is_told_who_holds_the_tree(tmp_path: Path) -> None:
    with Stack(tmp_path, command="evalfleet eval tone"):
        with pytest.raises(TreeBusy) as caught, Stack(tmp_path):
            pytest.fail("two at once")
        assert f"pid {os.getpid()} (evalfleet eval tone)" in caught.value.message
        assert "--state DIR" in caught.value.message
        with Stack(tmp_path, state=tmp_path / "other"):
            pass  # a state folder of its own is no second one in this
    with Stack(tmp_path):
        pass  # and free again


def test_a_lock_file_that_a_killed_command_left_is_no_lock(tmp_path: Path) -> None:
    (tmp_path / ".evalfleet").mkdir()
    (tmp_path / ".evalfleet/lock").write_text(
        '{"pid": 1, "command": "evalfleet eval", "started": "2026-01-01T00:00:00Z"}'
    )
    with Stack(tmp_path):
        assert json.loads((tmp_path / ".evalfleet/lock").read_text())["pid"] == os.getpid()


@pytest.mark.parametrize("name", ["d" * 90, "with blanks & 'quotes' % #"], ids=["too long for a socket", "odd letters"])
def test_a_state_folder_with_any_path_works(tmp_path: Path, name: str) -> None:
    with Stack(tmp_path, state=tmp_path / name, programs=stand_ins()) as stack:
        endpoints = begin(stack, with_server=False, with_worker=False)
        ping(endpoints)
        pointer = stack.state / "socket-folder"
        elsewhere = Path(pointer.read_text()) if pointer.exists() else None
        if elsewhere is not None:
            assert stat.S_IMODE(elsewhere.stat().st_mode) == 0o700
    assert elsewhere is None or not elsewhere.exists()


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        pytest.param(lambda path: path.write_text(""), "cannot be used", id="a file stands there"),
        pytest.param(lambda path: path.symlink_to("/dev/null"), "cannot be used", id="a link to something else"),
    ],
)
def test_a_state_folder_that_cannot_be_used_is_one_clear_sentence(
    tmp_path: Path, make: Callable[[Path], object], expected: str
) -> None:
    make(tmp_path / ".evalfleet")
    with pytest.raises(UnfitHost, match=expected) as caught, Stack(tmp_path):
        pytest.fail("must not start")
    assert "--state DIR" in caught.value.message


def test_the_parts_get_the_addresses_and_the_token_by_their_environment_only(tmp_path: Path) -> None:
    shows = """
    import json, os, sys, time
    from pathlib import Path
    words = [path.read_text() for path in Path("/proc").glob("[0-9]*/cmdline")] if sys.platform == "linux" else []
    print(json.dumps([dict(os.environ), any(os.environ["EVALFLEET_TOKEN"] in line for line in words)]), flush=True)
    time.sleep(600)
    """
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": os.environ["PYTHONPATH"], "MINE": "1"}
    env |= {"EVALFLEET_METRICS_PORT": "9100", "EVALFLEET_STALL": "60"}
    env |= {"SPLOX_API_KEY": "of-another", "SPLOX_API_KEY_PROD": "of-another", "SPLOX_BASE_URL": "https://another"}
    with Stack(tmp_path, programs=stand_ins(worker=python(shows))) as stack:
        target = Target("https://platform/api", "key-of-the-target", "staging")
        endpoints = begin(stack, with_server=False, target=target, env=env)
        log = stack.state / "logs/worker.log"
        assert await_true(lambda: log.read_text().endswith("\n"))
        told, shown = json.loads(log.read_text())
    assert endpoints.base_url == told["EVALFLEET_BASE_URL"] == "https://platform/api"
    assert endpoints.token == told["EVALFLEET_TOKEN"] == "key-of-the-target"
    assert told["EVALFLEET_BROKER_URL"] == endpoints.redis_url
    assert told["EVALFLEET_RESULTS_URL"] == str(tmp_path / "results")
    assert {name: value for name, value in told.items() if name.startswith("SPLOX_")} == {
        "SPLOX_API_KEY_STAGING": "key-of-the-target",
        "SPLOX_BASE_URL_STAGING": "https://platform/api",
    }
    assert told["MINE"] == "1"
    assert told["EVALFLEET_STALL"] == "60"
    assert "EVALFLEET_METRICS_PORT" not in told
    assert not shown, "no process list shows the token"


def test_flags_of_the_command_do_not_reach_its_parts() -> None:
    env = {"EVALFLEET_TRIALS": "3", "EVALFLEET_TOKEN": "x", "EVALFLEET_LOG_LEVEL": "debug", "PATH": "/bin"}
    assert part_environment(env) == {"EVALFLEET_LOG_LEVEL": "debug", "PATH": "/bin", "PYTHONUNBUFFERED": "1"}
