"""What does a person type?

Each command reads its flags, calls one public function, renders what came back and turns errors into exit codes (S36).
stdout carries the result, stderr everything else (S37). Heavy imports stand inside the commands: `--help` and
`validate` do not wait for Celery.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated

import typer

from evalfleet import __version__
from scheduler.cli import agents, evaluating, parts, reading, steering
from scheduler.cli.flags import Command
from scheduler.cli.output import command, tell
from scheduler.names import check_names
from scheduler.tokens import token_app

app = typer.Typer(
    name="evalfleet",
    help="Play a harness' checks k times, judge every trial, record it, and say pass, flaky or fail.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"evalfleet {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[  # noqa: ARG001  - its callback does the work
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which version.")
    ] = False,
) -> None:
    check_names()


_PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""Of commands whose words another program reads."""

app.command("eval", cls=Command)(command(evaluating.eval_))
app.command()(command(evaluating.validate))
app.command()(command(evaluating.plan))
app.command(cls=Command)(command(evaluating.resume))
app.command()(command(evaluating.cancel))
app.command("list")(command(reading.list_))
app.command(cls=Command)(command(reading.score))
app.command(cls=Command)(command(reading.show))
app.command(cls=Command)(command(reading.compare))
app.command("hook-trace")(command(reading.hook_trace))
app.command()(command(agents.mcp))
app.command()(command(evaluating.init))
app.command()(command(evaluating.schema))
app.command(context_settings=_PASSED_ON)(command(parts.server))
app.command(context_settings=_PASSED_ON)(command(parts.worker))
app.command("scheduler")(command(parts.scheduler_))
app.command(cls=Command)(command(parts.submit))
app.command(cls=Command)(command(parts.watch))
app.command()(command(steering.status))
app.command()(command(steering.pause))
app.command()(command(steering.retry))
app.command()(command(steering.logs))
app.add_typer(token_app(command, tell), name="token")


def main() -> None:
    """The console script."""
    _open_standard_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):  # text that its encoding cannot hold is escaped, as on stderr (B11)
        sys.stdout.reconfigure(errors="backslashreplace")
    app()


def _open_standard_streams() -> None:
    """Started without stdin, stdout or stderr (`>&-`): a file of ours must not be given its number, nor its text."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
