"""What is left when the command itself dies or is stopped: nothing (design: "Embedded life cycle")."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from scheduler import pid_files
from scheduler.embedded import Stack
from tests.scheduler.stand_ins import (
    alive,
    await_true,
    begin,
    children_of_group,
    needs_proc,
    pid_of,
    ping,
    python,
    stand_ins,
)

COMMAND = """
import sys, threading
from pathlib import Path
from scheduler.embedded import Stack
from tests.scheduler.stand_ins import DEAF, python, stand_ins
with Stack(Path(sys.argv[1]), programs=stand_ins()) as stack:
    stack.start(commit="ab" * 20, concurrency=2, results=Path(sys.argv[1]) / "results")
    try:
        print(*(stack.pid(part) for part in ("valkey", "server", "worker")), flush=True)
        threading.Event().wait(600)
    except KeyboardInterrupt:
        pass
"""


def start_command(tree: Path, code: str = COMMAND) -> tuple[subprocess.Popen[str], list[int]]:
    command = subprocess.Popen(
        [sys.executable, "-P", "-c", code, str(tree)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    assert command.stdout is not None
    return command, [int(pid) for pid in command.stdout.readline().split()]


@needs_proc
def test_kill_9_of_the_command_leaves_nothing_and_a_second_start_works(tmp_path: Path) -> None:
    command, parts = start_command(tmp_path)
    with command:
        groups = [pid for part in parts for pid in children_of_group(part)]
        assert len(groups) == 4, "guard and Valkey, server, worker"
        command.kill()
        command.wait()
        begun = time.monotonic()
        assert await_true(lambda: not any(alive(pid) for pid in groups))
        assert time.monotonic() - begun < 5.0  # the promise itself, about processes that stop when they are asked
    with Stack(tmp_path, programs=stand_ins()) as stack:
        ping(begin(stack))


def test_an_interrupted_command_stops_its_parts_in_order(tmp_path: Path) -> None:
    command, parts = start_command(tmp_path)
    with command:
        command.send_signal(signal.SIGINT)
        assert command.wait(timeout=60) == 0
    assert not any(alive(pid) for pid in parts)


def test_leftovers_of_a_killed_command_are_ended_by_the_next_start(tmp_path: Path) -> None:
    pids = tmp_path / ".evalfleet/pids"
    pids.mkdir(parents=True)
    deaf = subprocess.Popen(
        ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done"],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    innocent = subprocess.Popen(["sleep", "600"], start_new_session=True)
    with deaf, innocent:
        assert deaf.stdout is not None
        deaf.stdout.readline()
        pid_files.write(pids, pid_files.ProcessRecord.of("worker", deaf.pid))
        record = pid_files.ProcessRecord.of("server", innocent.pid)
        pid_files.write(pids, pid_files.ProcessRecord("server", record.pid, "another start", record.boot))
        (pids / "valkey.json").write_text("{ half a rec")
        assert pid_files.end_leftovers(pids, grace=0.2) == ["worker"]
        assert deaf.wait(timeout=10) == -signal.SIGKILL
        assert innocent.poll() is None, "a pid that is somebody else's by now is left alone"
        innocent.kill()
    assert list(pids.iterdir()) == []


@needs_proc
def test_a_second_interrupt_while_stopping_ends_everything_at_once(tmp_path: Path) -> None:
    """The parts do not stop when they are asked; nobody who presses Ctrl-C again waits for that."""
    code = COMMAND.replace("stand_ins()", "stand_ins(worker=python(DEAF), server=python(DEAF))", 1)
    assert code != COMMAND
    command, parts = start_command(tmp_path, code)
    with command:
        groups = [pid for part in parts for pid in children_of_group(part)]
        command.send_signal(signal.SIGINT)
        log = tmp_path / ".evalfleet/logs/worker.log"
        assert await_true(lambda: "asked" in log.read_text())
        command.send_signal(signal.SIGINT)
        assert command.wait(timeout=60) != 0
        assert await_true(lambda: not any(alive(pid) for pid in groups), within=3.0)


def test_a_part_that_does_not_stop_is_killed_with_its_children(tmp_path: Path) -> None:
    deaf = python(
        """
        import signal, subprocess, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print(subprocess.Popen(["sleep", "600"]).pid, flush=True)
        time.sleep(600)
        """
    )
    with Stack(tmp_path, programs=stand_ins(worker=deaf)) as stack:
        begin(stack, with_server=False)
        log = stack.state / "logs/worker.log"
        assert await_true(lambda: log.read_text().endswith("\n"))
        child, worker, broker = int(log.read_text()), pid_of(stack, "worker"), pid_of(stack, "valkey")
        stack.stop(within=0.2)
        assert await_true(lambda: not any(alive(pid) for pid in (child, worker, broker)))
        stack.stop()
