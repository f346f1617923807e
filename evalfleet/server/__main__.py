"""How is the server started as a process of its own? `python -P -m evalfleet.server`, or `evalfleet server`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from evalfleet.errors import EvalfleetError, UsageError
from evalfleet.host_limits import make_room
from evalfleet.importing import uncollected
from evalfleet.logs import FORMATS
from evalfleet.surroundings import settle

LEVELS = ("debug", "info", "warning", "error")


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, serve, and answer the exit code (S36)."""
    settle()
    parser = _parser()
    options = parser.parse_args(arguments)
    from evalfleet.server.logs import start_logging

    log = start_logging(options.log_level, options.log_format)
    try:
        token = os.environ.pop("EVALFLEET_TOKEN", None) or None  # popped: agents that we start must not inherit it
        if options.commit is not None and not _is_commit(options.commit):
            raise UsageError(f"--commit {options.commit!r}: write 40 lower-case hex digits")
        if options.agents < 1:
            raise UsageError(f"--agents {options.agents}: write 1 or more")
        for name, port in (("--port", options.port), ("--metrics-port", options.metrics_port)):
            if port is not None and not 0 <= port <= 65_535:
                raise UsageError(f"{name} {port}: write 0 to 65535")
        keep_runs = None if options.keep_runs is None else _span(options.keep_runs)
        with uncollected():
            from evalfleet.server.process import Options, serve
            from evalfleet.server.trees import check_judges

        trees = [Path(tree).resolve() for tree in options.tree or [os.environ.get("EVALFLEET_TREE") or "."]]
        if not _embedded():  # `evalfleet eval` has looked at its cases and its limits itself
            make_room(options.agents, "--agents")
            for tree in trees:
                check_judges(tree)
        state = Path(options.state) if options.state else trees[0] / ".evalfleet"
        serve(
            Options(
                trees=trees,
                token=token,
                state=state,
                host=options.host,
                port=options.port,
                database=options.database or None,
                commit=options.commit,
                verify=options.verify_commit,
                agents=options.agents,
                keep_runs=keep_runs,
                ready_file=Path(options.ready_file) if options.ready_file else None,
                metrics_port=options.metrics_port,
            ),
            announce=lambda line: print(line, flush=True),  # noqa: T201
        )
    except EvalfleetError as problem:
        print(f"evalfleet server: {problem.message}", file=sys.stderr)  # noqa: T201
        return problem.exit_code
    except KeyboardInterrupt:
        return 130
    finally:
        log.stop()
    return 0


def _embedded() -> bool:
    return "EVALFLEET_LIFELINE_FD" in os.environ


def _is_commit(text: str) -> bool:
    return len(text) == 40 and not set(text) - set("0123456789abcdef")


def _span(text: str) -> timedelta:
    """How long ended runs are kept. A run must outlive its own grading and recording, so an hour is the least."""
    from evalfleet.server.accounts import lifetime

    span = lifetime(text, "--keep-runs")
    if span < timedelta(hours=1):
        raise UsageError(f"--keep-runs {text!r}: write 1h or more: a run that has just ended is still to be recorded")
    return span


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="evalfleet server", description="The self-hosted v2 API.")

    def add(flag: str, variable: str, default: Any = None, **more: Any) -> None:
        """A flag that is given wins over its variable."""
        value = os.environ.get(variable)
        if value and value not in more.get("choices", (value,)):  # argparse looks at those of the command line only
            parser.error(f"{variable}={value!r}: write {', '.join(more['choices'])}")
        parser.add_argument(flag, default=value or default, **more)

    parser.add_argument(
        "--tree", action="append", metavar="DIR", help="a tree to serve (repeat for more; default: this folder)"
    )
    add("--host", "EVALFLEET_HOST", "127.0.0.1")
    add("--port", "EVALFLEET_PORT", 8080, type=int, help="0 takes a free one; default 8080")
    add("--database", "EVALFLEET_DATABASE_URL", metavar="URL", help="default: SQLite in the state")
    add("--state", "EVALFLEET_STATE", metavar="DIR", help="default: .evalfleet in the first tree")
    add(
        "--commit",
        "EVALFLEET_COMMIT",
        metavar="HEX",
        help="the tree's version, 40 hex digits; default: computed from the tree",
    )
    parser.add_argument(
        "--verify-commit", action="store_true", help="play nothing unless the tree is the commit that --commit names"
    )
    add("--agents", "EVALFLEET_AGENTS", 256, type=int, metavar="N", help="agents at a time; default 256")
    add(
        "--keep-runs",
        "EVALFLEET_KEEP_RUNS",
        metavar="SPAN",
        help="prune chats that ended that long ago and are in no evaluation, such as 90d or 12h; default: keep all",
    )
    add("--ready-file", "EVALFLEET_READY_FILE", metavar="FILE", help="gets the URL when the server listens")
    add(
        "--metrics-port",
        "EVALFLEET_METRICS_PORT",
        type=int,
        metavar="PORT",
        help="Prometheus metrics on a port of their own, too",
    )
    # Inside `evalfleet eval` nobody reads a line for each request.
    quiet = "warning" if _embedded() else "info"
    add("--log-level", "EVALFLEET_LOG_LEVEL", quiet, choices=LEVELS, help="default info: one line a request")
    add("--log-format", "EVALFLEET_LOG_FORMAT", "text", choices=FORMATS, help="json: every line is one JSON object")
    return parser


if __name__ == "__main__":
    sys.exit(main())
