"""How a worker starts: its words, its refusals, and that nothing of a secret is shown."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import worker.app
from evalfleet.errors import CredentialError, SettingError, UnfitHost
from evalfleet.graders.cage import Cages
from evalfleet.settings import Settings
from worker.app import check_environment, main, read_queues, say_walls

SECRETS = {"EVALFLEET_TOKEN": "a-token-nobody-may-see", "SPLOX_API_KEY": "a-key-nobody-may-see"}


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in list(os.environ):
        if name.startswith(("EVALFLEET_", "SPLOX_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("EVALFLEET_BROKER_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setenv("EVALFLEET_RESULTS_URL", str(tmp_path))
    monkeypatch.setenv("EVALFLEET_BASE_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("EVALFLEET_TOKEN", SECRETS["EVALFLEET_TOKEN"])
    return monkeypatch


@pytest.mark.parametrize(
    ("arguments", "variables", "message"),
    [
        pytest.param(
            ["--concurrency", "0"], {}, "--concurrency: must be a whole number from 1 to 1000, not '0'", id="0"
        ),
        pytest.param(["--concurrency", "abc"], {}, "--concurrency: must be a whole number", id="no number"),
        pytest.param(["--concurrency", "-1"], {}, "--concurrency: must be a whole number", id="negative"),
        pytest.param(["--concurrency", "1.5"], {}, "--concurrency: must be a whole number", id="a fraction"),
        pytest.param([], {"EVALFLEET_CONCURRENCY": "abc"}, "must be a whole number", id="by variable"),
        pytest.param(["--queues", "run,walk"], {}, "walk is no queue; choose from run, grade, aggregate", id="queue"),
        pytest.param(["--queues", ","], {}, "nothing is no queue", id="no queue"),
        pytest.param([], {"EVALFLEET_QUEUES": "celery"}, "celery is no queue", id="queue by variable"),
        pytest.param(["--metrics-port", "70000"], {}, "--metrics-port: must be a whole number from 0", id="port"),
        pytest.param([], {"EVALFLEET_LOG_LEVEL": "loud"}, "EVALFLEET_LOG_LEVEL: must be one of", id="level"),
        pytest.param([], {"EVALFLEET_BROKER_URL": "amqp://h"}, "EVALFLEET_BROKER_URL: must begin", id="scheme"),
        pytest.param([], {"EVALFLEET_BROKER_URL": ""}, "EVALFLEET_BROKER_URL: is not set", id="no broker"),
        pytest.param([], {"EVALFLEET_RESULTS_URL": ""}, "EVALFLEET_RESULTS_URL: is not set", id="no results"),
        pytest.param([], {"EVALFLEET_RESULTS_URL": "gs://bucket"}, "EVALFLEET_RESULTS_URL: gs://", id="no folder"),
        pytest.param([], {"EVALFLEET_BASE_URL": ""}, "EVALFLEET_BASE_URL: is not set", id="no server"),
        pytest.param([], {"EVALFLEET_TOKEN": ""}, "EVALFLEET_TOKEN is not set", id="no token"),
    ],
)
def test_a_start_that_cannot_work_is_refused_in_one_line(
    arguments: list[str],
    variables: dict[str, str],
    message: str,
    environment: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in variables.items():
        environment.setenv(name, value)
    assert main(arguments) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("evalfleet worker: ")
    assert message in shown
    assert shown.count("\n") == 1
    assert SECRETS["EVALFLEET_TOKEN"] not in shown


def test_d06_there_is_no_other_pool_to_choose(
    environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A conversation's time limit is ours and holds under threads (B16); the pools under which it would not are refused
    with a message, and Celery's own command finds nothing to start."""
    with pytest.raises(SystemExit) as refused:
        main(["--pool", "prefork"])
    assert refused.value.code == 2
    assert "unrecognized arguments: --pool prefork" in capsys.readouterr().err
    celery = [sys.executable, "-P", "-m", "celery", "-A", "worker.app", "worker", "-P", "prefork"]
    done = subprocess.run(celery, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "Unable to load celery application" in done.stderr


def test_the_help_says_what_every_flag_does(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    for flag in ("--queues", "--concurrency", "--metrics-port", "--liveness-file", "--ready-file"):
        line = next(line for line in shown.splitlines() if line.strip().startswith(flag))
        assert len(line.split("  ")[-1]) > 10, f"{flag} is not explained"


PLATFORM = {"token": None, "base_url": None, "keys": {"default": "k"}}


@pytest.mark.parametrize(
    ("queues", "more", "refused"),
    [
        pytest.param(("run",), {}, None, id="playing needs no results folder"),
        pytest.param(("grade",), {}, None, id="graders come through the broker"),
        pytest.param(("aggregate",), {}, SettingError, id="recording writes evidence to it"),
        pytest.param(("run",), {"token": None}, CredentialError, id="our server needs its token"),
        pytest.param(("run",), {**PLATFORM, "plan_key": "k" * 16}, None, id="a platform needs a key and signed plans"),
        pytest.param(
            ("run",), {**PLATFORM, "addresses": {"default": "http://p"}}, None, id="or a key and where it goes"
        ),
        pytest.param(("run",), PLATFORM, SettingError, id="a key that might go anywhere"),
        pytest.param(("run",), {"token": None, "keys": {"default": "k"}}, CredentialError, id="half of our server's"),
    ],
)
def test_each_role_needs_what_it_uses(
    queues: tuple[str, ...], more: dict[str, object], refused: type[Exception] | None
) -> None:
    values = {"broker_url": "redis://127.0.0.1/0", "base_url": "http://127.0.0.1:1", "token": "t", **more}
    settings = Settings(**values)  # type: ignore[arg-type]
    if refused is None:
        check_environment(settings, queues)
    else:
        with pytest.raises(refused):
            check_environment(settings, queues)


def test_the_state_folder_is_made_at_the_start_or_refused_there(tmp_path: Path) -> None:
    """Where it was not there every grading was lost, as "a fault of ours"."""
    with_state = Settings(broker_url="redis://127.0.0.1/0", base_url="http://127.0.0.1:1", token="t")
    missing = tmp_path / "not" / "there"
    check_environment(replace(with_state, state=missing), ("grade",))
    assert missing.is_dir()
    assert missing.stat().st_mode & 0o077 == 0
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingError, match=r"EVALFLEET_STATE: .*/file/below: Not a directory"):
        check_environment(replace(with_state, state=tmp_path / "file" / "below"), ("grade",))


def test_queues_are_read_once_each_and_in_order() -> None:
    assert read_queues(" grade, run,grade ") == ("grade", "run")


@pytest.mark.parametrize(
    ("cages", "level", "message"),
    [
        pytest.param(
            Cages(True, True, True, True, True, True, True),
            "INFO",
            "graders run behind these walls: user namespace, PID namespace, network closed, read-only tree, "
            "memory limit, process limit",
            id="all",
        ),
        pytest.param(
            Cages(False, False, False, True, True, True, True),
            "WARNING",
            "graders run behind these walls: subreaper, read-only tree, memory limit, process limit; "
            "but graders can reach the network; graders run as the same user as this process and can read what that "
            "user can (docs/graders.md)",
            id="some",
        ),
        pytest.param(UnfitHost("no interpreter"), "ERROR", "graders cannot be run here: no interpreter", id="no cage"),
    ],
)
def test_s28_a_worker_says_which_walls_stand_here(
    cages: Cages | UnfitHost,
    level: str,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def see() -> Cages:
        if isinstance(cages, UnfitHost):
            raise cages
        return cages

    monkeypatch.setattr(worker.app, "capabilities", see)
    with caplog.at_level("INFO"):
        say_walls()
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [(level, message)]


def test_a_broker_that_is_not_there_is_named_without_its_password(
    environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    environment.setenv("EVALFLEET_BROKER_URL", "redis://user:hunter2@127.0.0.1:1/0")
    assert main([]) == 3
    shown = capsys.readouterr().err
    assert "the broker 127.0.0.1:1 does not answer" in shown
    assert "hunter2" not in shown


@pytest.mark.e2e
def test_at_debug_no_secret_is_logged_and_root_is_not_scolded(valkey: str, tmp_path: Path) -> None:
    """From start to SIGTERM, at the most talkative level."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("EVALFLEET_", "SPLOX_"))}
    variables = {
        "EVALFLEET_BROKER_URL": valkey,
        "EVALFLEET_RESULTS_URL": str(tmp_path),
        "EVALFLEET_BASE_URL": "http://127.0.0.1:1",
        "EVALFLEET_LOG_LEVEL": "debug",
        "SPLOX_BASE_URL": "http://127.0.0.1:1",
        **SECRETS,
    }
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "worker", "--concurrency", "1"],
        env=clean | variables,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            seen = []
            for line in process.stdout:
                seen.append(line)
                if " takes run,run-default,grade,grade-default," in line:
                    process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0, "".join(seen)
        finally:
            process.kill()
    log = "".join(seen)
    assert "leaves; what it plays goes back" in log
    assert "SecurityWarning" not in log
    assert log.count("graders run behind these walls: ") == 1
    for secret in SECRETS.values():
        assert secret not in log
