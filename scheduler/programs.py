"""What are the parts of the embedded stack, as command lines and environments?

Ours are `python -P -m …`: the folder that a user stands in is off the path (their own `worker.py` is not ours). Secrets
go by environment only: a process list shows command lines to everybody.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from evalfleet import lifeline, settings
from scheduler import valkey

_ADDRESSES = {
    "EVALFLEET_BASE_URL",
    "EVALFLEET_BROKER_URL",
    "EVALFLEET_DATABASE_URL",
    "EVALFLEET_LIFELINE_FD",
    "EVALFLEET_METRICS_PORT",
    "EVALFLEET_PLAN_KEY",
    "EVALFLEET_RESULTS_URL",
    "EVALFLEET_STATE",
    "EVALFLEET_TOKEN",
}


@dataclass(frozen=True, slots=True)
class Setup:
    """What the parts' command lines are made of."""

    root: Path
    state: Path
    socket: Path
    port: int
    commit: str
    concurrency: int


def server_command(setup: Setup) -> list[str]:
    words = [sys.executable, "-P", "-m", "evalfleet.start", "evalfleet.server", "--tree", str(setup.root)]
    words += ["--database", f"sqlite:///{setup.state / 'server.sqlite3'}", "--port", str(setup.port)]
    return [*words, "--commit", setup.commit, "--verify-commit", "--state", str(setup.state)]


def worker_command(setup: Setup) -> list[str]:
    words = [sys.executable, "-P", "-m", "evalfleet.start", "worker", "--queues", "run,grade,aggregate"]
    return [*words, "--concurrency", str(setup.concurrency)]


def valkey_command(setup: Setup) -> list[str]:
    # A foreign program cannot watch the lifeline: the guard does, as its parent.
    guard = [sys.executable, "-I", "-S", lifeline.__file__]
    return [*guard, *valkey.arguments(setup.socket, setup.state / "valkey")]


@dataclass(frozen=True, slots=True)
class Programs:
    """The three command lines. Another one in a test: a small program that can be made to misbehave."""

    valkey: Callable[[Setup], Sequence[str]] = valkey_command
    server: Callable[[Setup], Sequence[str]] = server_command
    worker: Callable[[Setup], Sequence[str]] = worker_command


def part_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The caller's environment for a part of ours: `EVALFLEET_*` only where it tunes every process alike.

    The others are flags and addresses of the *command*: a port of its metrics cannot be that of three processes. A
    fleet's key for plans is none of theirs: nobody but the command reaches their broker.
    """
    kept = set(settings.VARIABLES) - _ADDRESSES
    ours = {name: value for name, value in env.items() if not name.startswith("EVALFLEET_") or name in kept}
    return {**ours, "PYTHONUNBUFFERED": "1"}


def plain_environment(env: Mapping[str, str]) -> dict[str, str]:
    """For a foreign program: nothing that could be a secret."""
    return {name: env[name] for name in ("PATH", "HOME", "TMPDIR", "TZ") if name in env} | {"LC_ALL": "C"}
