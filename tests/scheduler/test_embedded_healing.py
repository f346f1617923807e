"""What the stack does when a part of it dies (design: "Embedded life cycle")."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest
import redis

from evalfleet.errors import StackFailed, UnfitHost
from scheduler.embedded import Stack
from tests.scheduler.stand_ins import (
    PART,
    Seen,
    alive,
    await_true,
    begin,
    children_of_group,
    needs_proc,
    pid_of,
    python,
    stand_ins,
)


@pytest.mark.parametrize("part", ["valkey", "server", "worker"])
def test_a_part_that_is_killed_is_noticed_and_started_again(tmp_path: Path, part: str) -> None:
    seen = Seen()
    programs = stand_ins()
    with Stack(tmp_path, on_death=seen.died, on_restart=seen.restarted, programs=programs) as stack:
        endpoints = begin(stack)
        old = pid_of(stack, part)
        os.kill(old, signal.SIGKILL)
        seen.wait_for(lambda: bool(seen.restarts))
        assert seen.deaths == [(part, old)]
        new = pid_of(stack, part)
        assert seen.restarts == [(part, new)]
        assert new != old
        stack.check()
        with redis.Redis.from_url(endpoints.redis_url) as client:
            assert await_true(lambda: _answers(client))
    assert not alive(new)


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except (redis.ConnectionError, redis.BusyLoadingError):
        return False


def test_a_callback_that_raises_does_not_end_the_supervision(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    seen = Seen()

    def fall_over(_part: str, _pid: int) -> None:
        raise RuntimeError("the ledger is away")

    with Stack(tmp_path, on_death=fall_over, on_restart=seen.restarted, programs=stand_ins()) as stack:
        begin(stack, with_server=False)
        os.kill(pid_of(stack, "worker"), signal.SIGKILL)
        seen.wait_for(lambda: bool(seen.restarts))
    assert "the ledger is away" in caplog.text


@needs_proc
def test_the_broker_itself_is_killed_and_comes_back_with_its_data(tmp_path: Path) -> None:
    seen = Seen()
    with Stack(tmp_path, on_restart=seen.restarted, programs=stand_ins()) as stack:
        endpoints = begin(stack, with_server=False, with_worker=False)
        with redis.Redis.from_url(endpoints.redis_url) as client:
            client.set("kept", "1")
            client.config_set("appendfsync", "always")  # the test must not depend on the second that is synced
            client.set("kept", "2")
            guard = pid_of(stack, "valkey")
            (server,) = [pid for pid in children_of_group(guard) if pid != guard]
            os.kill(server, signal.SIGKILL)
            seen.wait_for(lambda: bool(seen.restarts))
            assert await_true(lambda: _answers(client))
            assert client.get("kept") == b"2"


def test_the_server_keeps_its_port_over_restarts(tmp_path: Path) -> None:
    listening = """
    import socket, sys
    with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as server:
        print("listening on http://127.0.0.1:" + sys.argv[1], flush=True)
        while True:
            server.accept()[0].close()
    """
    seen = Seen()
    programs = stand_ins(server=lambda setup: python(listening, str(setup.port))(setup))
    with Stack(tmp_path, on_restart=seen.restarted, programs=programs) as stack:
        endpoints = begin(stack, with_worker=False)
        port = int(endpoints.base_url.rpartition(":")[2])
        for round_ in range(1, 3):
            with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
                assert connection.recv(1) == b""  # served; what it closed lingers on the port
            os.kill(pid_of(stack, "server"), signal.SIGKILL)
            seen.wait_for(lambda expected=round_: len(seen.restarts) == expected)  # type: ignore[misc]
            assert await_true(lambda: _connects(port))


def _connects(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_part_that_keeps_dying_is_a_clear_error_with_the_end_of_its_log(tmp_path: Path) -> None:
    dying = "import os; print('token is', os.environ['EVALFLEET_TOKEN']); raise SystemExit('the database is gone')"
    seen = Seen()
    stack = Stack(tmp_path, on_death=seen.died, on_failure=seen.failed, programs=stand_ins(server=python(dying)))
    with pytest.raises(UnfitHost) as caught, stack:
        begin(stack, with_worker=False)
    message = caught.value.message
    assert "the server keeps ending (exit status 1)" in message
    assert message.endswith("token is ***\nthe database is gone"), "the secret is not in it"
    assert "logs/server.log" in message
    assert len(seen.deaths) == 6, "the first one and five restarts"
    assert seen.failures == [caught.value]


def test_a_part_that_keeps_dying_later_ends_the_stack_resumable(tmp_path: Path) -> None:
    once = tmp_path / "once"
    code = f"""
    import pathlib, sys, time
    print("listening on http://", flush=True)
    if not pathlib.Path({str(once)!r}).exists():
        pathlib.Path({str(once)!r}).touch()
        time.sleep(600)
    sys.exit("out of luck")
    """
    seen = Seen()
    with Stack(tmp_path, on_failure=seen.failed, programs=stand_ins(server=python(code))) as stack:
        begin(stack, with_worker=False)
        assert await_true(once.exists)
        os.kill(pid_of(stack, "server"), signal.SIGKILL)
        seen.wait_for(lambda: bool(seen.failures))
        with pytest.raises(StackFailed, match="out of luck") as caught:
            stack.check()
        assert caught.value.exit_code == 3
        assert seen.failures == [caught.value]


def test_a_part_that_refuses_its_settings_is_not_tried_again(tmp_path: Path) -> None:
    refusing = "import sys; print('EVALFLEET_STALL: must be a number'); sys.exit(2)"
    seen = Seen()
    stack = Stack(tmp_path, on_death=seen.died, programs=stand_ins(server=python(refusing)))
    with pytest.raises(UnfitHost, match=r"the server refused to start.*\n.*EVALFLEET_STALL: must be a number"), stack:
        begin(stack, with_worker=False)
    assert len(seen.deaths) == 1


def test_a_part_that_is_never_ready_is_named_with_its_log_and_stopped(tmp_path: Path) -> None:
    silent = python(PART, "still thinking")
    stack = Stack(tmp_path, programs=stand_ins(server=silent))
    with pytest.raises(UnfitHost, match="the server was not ready in time"), stack:
        begin(stack, with_worker=False, within=1.0)
    assert list((stack.state / "pids").iterdir()) == []


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    stack = Stack(tmp_path, programs=stand_ins(worker=lambda _setup: ["/no/such/python"]))
    with pytest.raises(UnfitHost, match="the worker cannot be started: /no/such/python: No such file"), stack:
        begin(stack)
    assert list((stack.state / "pids").iterdir()) == []


def test_a_broker_whose_data_cannot_be_read_says_so(tmp_path: Path) -> None:
    seen = Seen()
    with Stack(tmp_path, on_failure=seen.failed, programs=stand_ins()) as stack:
        begin(stack, with_server=False, with_worker=False)
        (manifest,) = (stack.state / "valkey/appendonlydir").glob("*.manifest")
        manifest.write_text("nonsense\n")
        os.kill(pid_of(stack, "valkey"), signal.SIGKILL)
        seen.wait_for(lambda: bool(seen.failures))
        with pytest.raises(StackFailed, match=r"(?s)the valkey keeps ending.*AOF"):
            stack.check()
