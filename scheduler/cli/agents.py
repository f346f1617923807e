"""The command for a coding agent: `mcp`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from evalfleet.errors import UsageError
from scheduler.cli.flags import EnvFile, Results, State, Tree, Verbose
from scheduler.cli.output import log_level, say


def mcp(
    tree: Tree = None,
    state: State = None,
    results: Results = None,
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            envvar="EVALFLEET_BUDGET",
            help="What one harness_eval may spend that names no budget.",
            show_default="5",
            metavar="AMOUNT",
        ),
    ] = None,
    http: Annotated[
        str | None,
        typer.Option(
            "--http",
            envvar="EVALFLEET_HTTP",
            help="Serve streamable HTTP here instead of stdio; a token is needed.",
            metavar="HOST:PORT",
        ),
    ] = None,
    verbose: Verbose = False,
    _env_file: EnvFile = None,
) -> int:
    """The tree's checks as tools for a coding agent (MCP)."""
    from evalfleet.money import read_amount

    log_level(verbose)
    try:
        amount = None if budget is None else read_amount(budget)
    except ValueError as reason:
        raise UsageError(f"--budget {budget!r}: {reason}") from reason
    import asyncio

    from evalfleet.tree import find_tree
    from scheduler.mcp.protocol import serve_stdio
    from scheduler.mcp.workspace import DEFAULT_BUDGET, Workspace

    workspace = Workspace(find_tree(tree or Path.cwd()), state, results, amount or DEFAULT_BUDGET)
    if http is None:
        asyncio.run(serve_stdio(workspace))
        return 0
    from scheduler.mcp.http import read_place, serve_http

    place = read_place(http)
    token = os.environ.get("EVALFLEET_TOKEN") or None
    database = os.environ.get("EVALFLEET_DATABASE_URL") or None
    asyncio.run(serve_http(workspace, place, token=token, database=database, announce=say))
    return 0
