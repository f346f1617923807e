"""Which flags do several commands share? Each one's name, variable and help are written once.

What reads a value is imported by its reader: `--help` waits for none of it. `--env-file` is read before the others and
does its work then; the commands only name it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from typer._click import Context

    from scheduler.allowed import AllowedMissing
    from scheduler.compare import FailOn


def whole(text: str | int) -> int:
    """Typer's own words for what is no number leave out what was seen."""
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a whole number") from None


def from_one(text: str | int) -> int:
    """A count of at least 1."""
    number = whole(text)
    if number < 1:
        raise typer.BadParameter(f"{number} is less than 1")
    return number


def trial_index(text: str | int) -> int:
    """A person's number of a trial as the index that programs read."""
    number = whole(text)
    if number < 1:
        raise typer.BadParameter(f"there is no trial {number}: trials count from 1")
    return number - 1


def allowed_missing(text: str | AllowedMissing) -> AllowedMissing:
    """`3` or `2.5%`."""
    from scheduler.allowed import AllowedMissing

    try:
        return text if isinstance(text, AllowedMissing) else AllowedMissing.parse(text)
    except ValueError as reason:
        raise typer.BadParameter(f"{text!r}: {reason}") from None


def env_file(file: Path | None) -> Path | None:
    """Add its variables to this process's environment, from which everything below is given its own."""
    if file is None:
        return None
    from evalfleet.errors import EvalfleetError
    from evalfleet.surroundings import settle
    from scheduler.cli.output import say
    from scheduler.env_file import add_env_file

    try:
        add_env_file(file, os.environ)
        settle()
    except EvalfleetError as error:
        say(f"evalfleet: {error.message}")
        raise typer.Exit(error.exit_code) from error
    return file


def seconds(text: str | float) -> float:
    """A time limit, spelt as in case files (S5)."""
    from evalfleet.checks.duration import seconds_of

    try:
        return text if isinstance(text, float) else seconds_of(text)
    except ValueError as reason:
        raise typer.BadParameter(f"{text!r} is no time limit: {reason}") from None


FAIL_ON_REGRESSION = "--fail-on-regression"


def fail_on(text: str) -> FailOn:
    """`any`, which is what the flag alone means, or `significant`."""
    if text == "any":
        return "any"
    if text == "significant":
        return "significant"
    raise typer.BadParameter(f"{text!r}: write {FAIL_ON_REGRESSION}, or {FAIL_ON_REGRESSION}=significant")


class Command(TyperCommand):
    """A command in which `--fail-on-regression` may stand alone, and never takes the next word as its value."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        spelt = [f"{word}=any" if word == FAIL_ON_REGRESSION else word for word in args[:end]]
        return super().parse_args(ctx, [*spelt, *args[end:]])


Baseline = Annotated[
    str | None,
    typer.Option(
        "--baseline",
        envvar="EVALFLEET_BASELINE",
        help="Compare with an older result, or with the newest one of a commit.",
        metavar="COMMIT|RESULT",
    ),
]
FailOnRegression = Annotated[
    Any,
    typer.Option(
        FAIL_ON_REGRESSION,
        envvar="EVALFLEET_FAIL_ON_REGRESSION",
        help="Exit 1 if something got worse than in the baseline; =significant: and p < 0.05.",
        parser=fail_on,
        metavar="[=significant]",
    ),
]
Select = Annotated[
    list[str] | None,
    typer.Argument(help="Case name, path, glob, or CASE/SCENARIO; none means all.", show_default=False),
]
Deselect = Annotated[
    list[str] | None,
    typer.Option(
        "--deselect",
        envvar="EVALFLEET_DESELECT",
        help="Leave these out again: the same words as SELECT; repeat it.",
        metavar="PATTERN",
        show_default=False,
    ),
]
EnvFile = Annotated[
    Path | None,
    typer.Option(
        "--env-file",
        envvar="EVALFLEET_ENV_FILE",
        help="NAME=VALUE lines for what the environment does not set.",
        metavar="FILE",
        callback=env_file,
        is_eager=True,  # the variables of the other flags may stand in it
    ),
]
Failed = Annotated[
    bool,
    typer.Option("--failed", envvar="EVALFLEET_FAILED", help="Only what did not pass when it was last played."),
]
Tree = Annotated[
    Path | None,
    typer.Option("--tree", envvar="EVALFLEET_TREE", help="The tree that holds evals/.", show_default="here"),
]
Trials = Annotated[
    int | None,
    typer.Option(
        "-k", "--trials", envvar="EVALFLEET_TRIALS", help="Trials of every scenario.", parser=whole, metavar="N"
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        envvar="EVALFLEET_TIMEOUT",
        help="The time limit of every scenario: 90, 5m, 1h30m.",
        parser=seconds,
        metavar="SECONDS",
    ),
]
Concurrency = Annotated[
    int | None,
    typer.Option(
        "-j",
        "--concurrency",
        envvar="EVALFLEET_CONCURRENCY",
        help="Open runs at once.",
        show_default="8",
        parser=whole,
        metavar="N",
    ),
]
Budget = Annotated[
    str | None,
    typer.Option(
        "--budget",
        envvar="EVALFLEET_BUDGET",
        help="Begin nothing more once so much is spent, over all resumes; exit 4.",
        metavar="AMOUNT",
    ),
]
MaxTime = Annotated[
    str | None,
    typer.Option(
        "--max-time",
        envvar="EVALFLEET_MAX_TIME",
        help="Begin nothing more after so long, as in 30m; exit 4.",
        metavar="DURATION",
    ),
]
Results = Annotated[
    Path | None,
    typer.Option("--results", envvar="EVALFLEET_RESULTS", help="Where artifacts go.", show_default="evals/results"),
]
State = Annotated[
    Path | None,
    typer.Option("--state", envvar="EVALFLEET_STATE", help="State folder.", show_default=".evalfleet in the tree"),
]
AllowFlaky = Annotated[
    bool, typer.Option("--allow-flaky", envvar="EVALFLEET_ALLOW_FLAKY", help="A flaky scenario does not fail the run.")
]
AllowMissing = Annotated[
    Any,  # an AllowedMissing or None: the class is imported when the flag is read
    typer.Option(
        "--allow-missing",
        envvar="EVALFLEET_ALLOW_MISSING",
        help="So many attempts, or P% of them, may be missing at the end.",
        parser=allowed_missing,
        metavar="N|P%",
    ),
]
ExitFirst = Annotated[
    bool,
    typer.Option("-x", "--exit-first", envvar="EVALFLEET_EXIT_FIRST", help="Stop after the first failed scenario."),
]
NoGraders = Annotated[
    bool,
    typer.Option("--no-graders", envvar="EVALFLEET_NO_GRADERS", help="Ask no grader now; a resume asks them."),
]
MaxFailures = Annotated[
    int | None,
    typer.Option(
        "--max-failures",
        envvar="EVALFLEET_MAX_FAILURES",
        help="Stop after N failed scenarios; what is missing can be resumed.",
        parser=from_one,
        metavar="N",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", envvar="EVALFLEET_JSON", help="One JSON object on stdout.")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", envvar="EVALFLEET_QUIET", help="No progress on stderr.")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", envvar="EVALFLEET_VERBOSE", help="Say what the parts do.")]
OnTarget = Annotated[
    bool, typer.Option("--target", envvar="EVALFLEET_TARGET", help="Run on the platform that [target] names.")
]
Scenarios = Annotated[
    Path | None,
    typer.Option(
        "--scenarios",
        envvar="EVALFLEET_SCENARIOS",
        help="Drafts to run: a case file, a list of scenarios, or one; - for stdin.",
    ),
]
Suite = Annotated[
    Path | None,
    typer.Option(
        "--suite", envvar="EVALFLEET_SUITE", help="Rows to run instead of the tree's cases: a .jsonl or .yaml file."
    ),
]
Commit = Annotated[
    str | None, typer.Option("--commit", envvar="EVALFLEET_COMMIT", help="With --target: the version to evaluate.")
]
OtherHarness = Annotated[
    str | None,
    typer.Option(
        "--harness",
        envvar="EVALFLEET_HARNESS",
        help="With --target: this harness, not that of [target].",
        metavar="ID",
    ),
]
OtherMachine = Annotated[
    str | None,
    typer.Option(
        "--machine",
        envvar="EVALFLEET_MACHINE",
        help="With --target: the machine that runs it.",
        metavar="ID",
    ),
]
LeaveRunning = Annotated[
    bool,
    typer.Option(
        "--leave-running",
        envvar="EVALFLEET_LEAVE_RUNNING",
        help="On Ctrl-C leave runs to the platform; resume finds them.",
    ),
]
MetricsPort = Annotated[
    int | None, typer.Option("--metrics-port", envvar="EVALFLEET_METRICS_PORT", help="Prometheus metrics.")
]
ToFleet = Annotated[
    str | None,
    typer.Option(
        "--broker",
        help="Run on the fleet of this Redis instead: submit and watch in one command.",
        show_default=False,
        metavar="URL",
    ),
]
Fresh = Annotated[bool, typer.Option("--fresh", envvar="EVALFLEET_FRESH", help="Start over, resume nothing.")]
Output = Annotated[
    list[Path] | None,
    typer.Option(
        "-o",
        "--output",
        envvar="EVALFLEET_OUTPUT",
        help="Write the result to a file, too: .json, .junit.xml or .md; again for more.",
        show_default=False,
        metavar="FILE",
    ),
]
