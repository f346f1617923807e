"""The lifeline, on real processes: a killed command must not leave anything behind (design: "Embedded life cycle")."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

from evalfleet import lifeline
from evalfleet.errors import SettingError
from evalfleet.lifeline import VARIABLE, Lifeline, watch

GUARD = [sys.executable, "-I", "-S", lifeline.__file__]


def python(code: str, *arguments: str, env: dict[str, str] | None = None, **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(  # type: ignore[call-overload, no-any-return]
        [sys.executable, "-P", "-c", textwrap.dedent(code), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **(env or {})},
        **options,
    )


def say_ready(process: subprocess.Popen[str], word: str = "ready") -> None:
    assert process.stdout is not None
    assert process.stdout.readline().strip() == word


PART = """
import sys, threading
from evalfleet.lifeline import watch
lost = threading.Event()
assert watch(lost.set, grace=float(sys.argv[1])) is not None
print("ready", flush=True)
{then}
"""


def test_a_part_hears_that_its_command_is_gone_and_stops_by_itself() -> None:
    line = Lifeline()
    part = python(
        PART.format(then="lost.wait(); print('stopped gracefully')"),
        "60",
        env=line.environment(),
        pass_fds=[line.fd],
        start_new_session=True,
    )
    with part:
        say_ready(part)
        assert part.poll() is None, "a part goes on while the command lives"
        line.close()
        line.close()
        assert part.communicate(timeout=30)[0] == "stopped gracefully\n"
    assert part.returncode == 0


def test_a_part_that_ignores_the_news_is_ended_with_its_own_children() -> None:
    line = Lifeline()
    then = """
import subprocess, time
child = subprocess.Popen(["sleep", "600"])      # same session and group: goes with its parent
print(child.pid, flush=True)
time.sleep(600)
"""
    part = python(PART.format(then=then), "0.1", env=line.environment(), pass_fds=[line.fd], start_new_session=True)
    with part:
        say_ready(part)
        line.close()
        # communicate() returns only when the child, too, has let go of stdout: its own end is what is awaited here.
        part.communicate(timeout=30)
    assert part.returncode == -signal.SIGKILL


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["killed with -9", "terminated"])
def test_the_death_of_the_command_reaches_its_part_whatever_it_died_of(how: signal.Signals) -> None:
    command = python(
        """
        import subprocess, sys
        from evalfleet.lifeline import Lifeline
        import os
        line = Lifeline()
        part = subprocess.Popen([sys.executable, "-P", "-c",
            "import threading; from evalfleet.lifeline import watch; e = threading.Event(); watch(e.set); "
            "print('ready', flush=True); e.wait(); print('gone', flush=True)"],
            env={**os.environ, **line.environment()}, pass_fds=[line.fd], start_new_session=True)
        part.wait()
        """
    )
    with command:
        say_ready(command)
        command.send_signal(how)
        command.wait(timeout=10)
        say_ready(command, "gone")


def test_a_process_that_no_command_started_watches_nothing() -> None:
    assert watch(lambda: None, environ={}) is None


@pytest.mark.parametrize("value", ["", "x", "-1", "999999", "99999999999999999999"], ids=repr)
def test_a_variable_that_names_no_pipe_is_refused_by_name(value: str) -> None:
    with pytest.raises(SettingError, match=f"{VARIABLE}: .*unset it"):
        watch(lambda: None, environ={VARIABLE: value})


def test_the_variable_does_not_reach_the_children_of_a_part() -> None:
    line = Lifeline()
    environ = {**line.environment(), "OTHER": "1"}
    copy = os.dup(line.fd)
    environ[VARIABLE] = str(copy)
    lost = threading.Event()
    thread = watch(lost.set, environ=environ, grace=3600, exit_hard=lambda: None)
    assert thread is not None
    assert environ == {"OTHER": "1"}
    assert not os.get_inheritable(copy)
    line.close()
    assert lost.wait(10)
    thread.join(10)


def test_the_hard_exit_comes_though_the_graceful_stop_raises() -> None:
    line = Lifeline()
    part = python(
        """
        import time
        from evalfleet.lifeline import watch
        watch(lambda: 1 / 0, grace=0.1)
        print("ready", flush=True)
        time.sleep(600)
        """,
        env=line.environment(),
        pass_fds=[line.fd],
        start_new_session=True,
        stderr=subprocess.PIPE,
    )
    with part:
        say_ready(part)
        line.close()
        _, errors = part.communicate(timeout=30)
    assert part.returncode == -signal.SIGKILL
    assert "ZeroDivisionError" in errors


# --- the guard ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "status"),
    [
        pytest.param(["sh", "-c", "exit 0"], 0, id="success"),
        pytest.param(["sh", "-c", "exit 3"], 3, id="its own status"),
        pytest.param(["sh", "-c", "kill -9 $$"], 137, id="killed"),
        pytest.param(["/no/such/program"], 127, id="not there"),
    ],
)
def test_the_guard_leaves_with_its_programs_status(program: list[str], status: int) -> None:
    done = subprocess.run([*GUARD, *program], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30)
    assert done.returncode == status
    assert ("cannot start /no/such/program: No such file or directory" in done.stderr) == (status == 127)


TRAPPED = "trap 'echo stopping; exit 7' TERM; echo ready; while :; do sleep 0.05; done"


def test_the_guard_hands_a_stop_on_to_its_program() -> None:
    with subprocess.Popen([*GUARD, "sh", "-c", TRAPPED], stdout=subprocess.PIPE, text=True) as process:
        say_ready(process)
        process.terminate()
        assert process.communicate(timeout=30)[0] == "stopping\n"
    assert process.returncode == 7


def test_the_guard_stops_its_program_when_the_command_is_gone() -> None:
    line = Lifeline()
    with subprocess.Popen(
        [*GUARD, "sh", "-c", TRAPPED],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **line.environment()},
        pass_fds=[line.fd],
        start_new_session=True,
    ) as process:
        say_ready(process)
        line.close()
        assert process.communicate(timeout=30)[0] == "stopping\n"
    assert process.returncode == 7


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG; elsewhere the next start ends the orphan")
def test_a_guard_that_is_killed_takes_its_program_along() -> None:
    with subprocess.Popen([*GUARD, "sh", "-c", "echo ready; exec sleep 600"], stdout=subprocess.PIPE, text=True) as p:
        say_ready(p)
        p.kill()
        p.communicate(timeout=30)  # the end of stdout: the program, too, is gone
    assert p.returncode == -signal.SIGKILL


def test_a_guard_with_a_wrong_variable_says_so() -> None:
    environ = {**os.environ, VARIABLE: "nonsense"}
    done = subprocess.run([*GUARD, "true"], env=environ, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr.strip()) == (
        1,
        f"{VARIABLE}: 'nonsense' is no inherited pipe; only a command that starts this process sets it: unset it",
    )
