"""What does a person type?

Each command reads its flags, calls one public function, renders what came back and turns errors into exit codes (S36).
stdout carries the result, stderr everything else (S37). Heavy imports stand inside the commands: `--help` and
`validate` do not wait for Celery.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec

import typer

from evalfleet import __version__
from evalfleet.errors import EvalfleetError, StorageError, UsageError
from scheduler.names import check_names
from scheduler.tokens import token_app

if TYPE_CHECKING:
    from scheduler.evaluate import Options, Result
    from scheduler.prepare import Prepared
    from scheduler.summary import Summary

P = ParamSpec("P")

app = typer.Typer(
    name="evalfleet",
    help="Play a harness' checks k times, judge every trial, record it, and say pass, flaky or fail.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _whole(text: str | int) -> int:
    """Typer's own words for what is no number leave out what was seen."""
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a whole number") from None


Select = Annotated[
    list[str] | None,
    typer.Argument(help="Case name, path, glob, or CASE/SCENARIO; none means all.", show_default=False),
]
Tree = Annotated[
    Path | None,
    typer.Option("--tree", envvar="EVALFLEET_TREE", help="The tree that holds evals/.", show_default="here"),
]
Trials = Annotated[
    int | None,
    typer.Option(
        "-k", "--trials", envvar="EVALFLEET_TRIALS", help="Trials of every scenario.", parser=_whole, metavar="N"
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
        parser=_whole,
        metavar="N",
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
AsJson = Annotated[bool, typer.Option("--json", envvar="EVALFLEET_JSON", help="One JSON object on stdout.")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", envvar="EVALFLEET_QUIET", help="No progress on stderr.")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", envvar="EVALFLEET_VERBOSE", help="Say what the parts do.")]
OnTarget = Annotated[
    bool, typer.Option("--target", envvar="EVALFLEET_TARGET", help="Run on the platform that [target] names.")
]
Scenarios = Annotated[
    Path | None,
    typer.Option("--scenarios", envvar="EVALFLEET_SCENARIOS", help="Drafts to run: a case file, or - for stdin."),
]
Commit = Annotated[
    str | None, typer.Option("--commit", envvar="EVALFLEET_COMMIT", help="With --target: the version to evaluate.")
]
LeaveRunning = Annotated[
    bool,
    typer.Option(
        "--leave-running",
        envvar="EVALFLEET_LEAVE_RUNNING",
        help="On Ctrl-C leave runs to the platform; resume finds them.",
    ),
]


def _command(body: Callable[P, int | None]) -> Callable[P, None]:
    """Errors of ours become one message on stderr and their exit code; a bug says that it is one (70)."""

    @functools.wraps(body)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            code = body(*args, **kwargs) or 0
        except EvalfleetError as error:
            _say(f"evalfleet: {error.message}")
            code = error.exit_code
        except KeyboardInterrupt:
            _say("evalfleet: interrupted")
            code = 130
        except Exception:  # noqa: BLE001  - the outermost boundary: a bug must not look like a verdict
            traceback.print_exc()
            _say("evalfleet: this is a fault of ours; please report it with the lines above")
            code = 70
        raise typer.Exit(code)

    return run


def _tell(text: str) -> None:
    """Words on stdout. One that is closed changes nothing (S36)."""
    with _stdout_may_close():
        print(text, flush=True)  # noqa: T201


@contextlib.contextmanager
def _stdout_may_close() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:  # `| head`: what follows goes nowhere, also what Python flushes at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except OSError as problem:
        raise StorageError(f"the result could not be printed: {problem.strerror}") from problem


def _say(text: str) -> None:
    """Words on stderr, broken at blanks where a terminal would break them in the middle of a word."""
    from scheduler.layout import width_of, wrap

    width = width_of(sys.stderr)
    for line in text.split("\n"):
        for piece in wrap(line, width):
            print(piece, file=sys.stderr, flush=True)  # noqa: T201


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


# -- on one machine ---------------------------------------------------------------------------------------------------


@app.command("eval")
@_command
def eval_(
    select: Select = None,
    tree: Tree = None,
    concurrency: Concurrency = None,
    trials: Trials = None,
    results: Results = None,
    state: State = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", envvar="EVALFLEET_FRESH", help="Start over, resume nothing.")
    ] = False,
    allow_flaky: AllowFlaky = False,
    target: OnTarget = False,
    commit: Commit = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", envvar="EVALFLEET_DRY_RUN", help="Say what would run.")] = False,
    as_json: AsJson = False,
    scenarios: Scenarios = None,
    leave_running: LeaveRunning = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> int:
    """Run the tree's checks and say pass, flaky or fail."""

    _log_level(verbose)
    prepared = _prepared(
        tree,
        select,
        scenarios,
        trials=trials,
        concurrency=concurrency,
        on_target=target,
        results=results,
        commit=commit,
    )
    for warning in prepared.warnings:
        _say(warning)
    if dry_run:
        return _show_plan(prepared, _options(state, results), files=False, as_json=as_json)
    from scheduler.evaluate import evaluate
    from scheduler.progress import make_reporter

    options = _options(state, results, fresh=fresh, allow_flaky=allow_flaky, leave_running=leave_running)
    result = evaluate(prepared, options, make_reporter(sys.stderr, quiet=quiet), words=select or ())
    return _show(result, as_json=as_json)


@app.command()
@_command
def validate(
    select: Select = None,
    tree: Tree = None,
    target: OnTarget = False,
    results: Results = None,
    scenarios: Scenarios = None,
    as_json: AsJson = False,
) -> int:
    """Everything that would refuse a run, without a run."""
    from scheduler.prepare import check

    found = check(
        tree or Path.cwd(),
        select or (),
        drafts=_drafts(scenarios),
        on_target=target,
        results=results,
        environment=os.environ,
    )
    if as_json:
        _tell(json.dumps(found.document(), ensure_ascii=False))
    else:
        _tell(found.render())
    return 0 if found.ok else 2


@app.command()
@_command
def plan(
    select: Select = None,
    tree: Tree = None,
    trials: Trials = None,
    concurrency: Concurrency = None,
    state: State = None,
    results: Results = None,
    target: OnTarget = False,
    commit: Commit = None,
    scenarios: Scenarios = None,
    files: Annotated[
        bool, typer.Option("--files", envvar="EVALFLEET_FILES", help="List the files that the commit is made of.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """What would run, and what is recorded already."""

    prepared = _prepared(
        tree,
        select,
        scenarios,
        trials=trials,
        concurrency=concurrency,
        on_target=target,
        results=results,
        commit=commit,
    )
    return _show_plan(prepared, _options(state, results), files=files, as_json=as_json)


@app.command()
@_command
def resume(
    submission: Annotated[str | None, typer.Argument(help="Its id, or a beginning of it.")] = None,
    tree: Tree = None,
    state: State = None,
    results: Results = None,
    allow_flaky: AllowFlaky = False,
    as_json: AsJson = False,
    leave_running: LeaveRunning = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> int:
    """Go on with an unfinished submission.

    On a finished one it shows the stored result and runs nothing.
    """
    from evalfleet.tree import find_tree, read_tree_config, tree_commit
    from scheduler.evaluate import resume as go_on
    from scheduler.evaluate import state_folder
    from scheduler.progress import make_reporter
    from scheduler.submissions import Submissions

    _log_level(verbose)
    config = read_tree_config(find_tree(tree or Path.cwd()))
    options = _options(state, results, allow_flaky=allow_flaky, leave_running=leave_running)
    known = Submissions(state_folder(config, options))
    record = known.find(submission) if submission else known.latest_unfinished()
    result = go_on(config, record, options, make_reporter(sys.stderr, quiet=quiet), commit=tree_commit(config))
    if record.status != "running":
        from scheduler.submit import ago

        started = f"{record.started_at[:19]}Z, {ago(record.started_at)}"
        _say(f"{record.id} is {record.status} (started {started}); nothing was run")
        return _print(result.summary, result.exit_code, as_json=as_json)
    return _show(result, as_json=as_json)


@app.command()
@_command
def cancel(
    submission: Annotated[str, typer.Argument(help="Its id, or a beginning of it.")],
    tree: Tree = None,
    state: State = None,
) -> int:
    """End an unfinished submission; what is recorded is kept."""
    from evalfleet.tree import find_tree, read_tree_config
    from scheduler.manage import cancel_submission

    config = read_tree_config(find_tree(tree or Path.cwd()))
    _tell(cancel_submission(config, submission, _options(state, None)))
    return 0


@app.command("list")
@_command
def list_(tree: Tree = None, state: State = None, as_json: AsJson = False) -> int:
    """The submissions started from this tree, newest first."""
    from evalfleet.tree import find_tree, read_tree_config
    from scheduler.evaluate import state_folder
    from scheduler.manage import render_submissions, submission_document
    from scheduler.submissions import Submissions

    config = read_tree_config(find_tree(tree or Path.cwd()))
    found, damaged = Submissions(state_folder(config, _options(state, None))).read()
    for sentence in damaged:
        _say(sentence)
    if as_json:
        _tell(json.dumps({"submissions": [submission_document(record) for record in found]}))
    else:
        _tell(render_submissions(found))
    return 0


@app.command()
@_command
def score(
    result: Annotated[str, typer.Argument(help="An artifact: its folder, or its name in evals/results.")],
    tree: Tree = None,
    as_recorded: Annotated[
        bool,
        typer.Option(
            "--as-recorded", envvar="EVALFLEET_AS_RECORDED", help="By the rules and cases it was recorded with."
        ),
    ] = False,
    results: Results = None,
    allow_flaky: AllowFlaky = False,
    as_json: AsJson = False,
) -> int:
    """Score an artifact by today's rules; runs nothing."""
    from scheduler.manage import score_artifact

    summary, code = score_artifact(result, tree, results, as_recorded=as_recorded, allow_flaky=allow_flaky)
    return _print(summary, code, as_json=as_json)


@app.command()
@_command
def show(
    result: Annotated[str | None, typer.Argument(help="An artifact, or CASE/SCENARIO of the newest.")] = None,
    scenario: Annotated[str | None, typer.Argument(help="CASE/SCENARIO")] = None,
    trial: Annotated[
        int | None,
        typer.Option("--trial", envvar="EVALFLEET_TRIAL", help="Which trial, from 0; default the first that failed."),
    ] = None,
    tree: Tree = None,
    results: Results = None,
) -> int:
    """Read an artifact: verdicts, then one trial's transcript."""
    from scheduler.manage import show_artifact

    show_artifact(result, scenario, trial, tree=tree, results=results, stream=sys.stdout)
    return 0


@app.command()
@_command
def init(
    tree: Annotated[Path | None, typer.Argument(help="The folder.", show_default="here")] = None,
) -> int:
    """Write a first tree: settings, a case, a grader, an agent, CI."""
    from scheduler.init import init as write_tree

    _tell(write_tree(tree or Path.cwd()).render())
    return 0


# -- the parts of a fleet ---------------------------------------------------------------------------------------------


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
)
@_command
def server(context: typer.Context) -> int:
    """The self-hosted v2 API by itself."""
    from evalfleet.server.__main__ import main as serve

    return int(serve(list(context.args)) or 0)


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
)
@_command
def worker(context: typer.Context) -> None:
    """A worker: plays, grades and records."""
    sys.stdout.flush()
    # A worker is a process of its own kind: it takes this one's place, with none of what the command line imported.
    os.execv(sys.executable, [sys.executable, "-P", "-m", "worker", *context.args])  # noqa: S606


MetricsPort = Annotated[
    int | None, typer.Option("--metrics-port", envvar="EVALFLEET_METRICS_PORT", help="Prometheus metrics.")
]


@app.command("scheduler")
@_command
def scheduler_(metrics_port: MetricsPort = None, verbose: Verbose = False) -> int:
    """Drive the submissions of a fleet until stopped."""
    from scheduler.fleet import run_scheduler

    _log_level(verbose, default="INFO")
    return run_scheduler(_settings(metrics_port))


@app.command()
@_command
def submit(
    select: Select = None,
    tree: Tree = None,
    concurrency: Concurrency = None,
    trials: Trials = None,
    state: State = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", envvar="EVALFLEET_FRESH", help="Start over, resume nothing.")
    ] = False,
    target: OnTarget = False,
    commit: Commit = None,
    scenarios: Scenarios = None,
) -> int:
    """Hand the tree's checks to a fleet; prints the submission's id."""
    from scheduler.fleet import submit as hand_over

    settings = _settings(None)
    prepared = _prepared(
        tree,
        select,
        scenarios,
        trials=trials,
        concurrency=concurrency,
        on_target=target,
        results=None,
        commit=commit,
        by_ast=True,
        server=None if target else settings.require_base_url(),
    )
    for warning in prepared.warnings:
        _say(warning)
    opened = hand_over(prepared, _options(state, None, fresh=fresh), settings, words=select or ())
    if opened.note:
        _say(opened.note)
    _tell(opened.plan.id)
    return 0


@app.command()
@_command
def watch(
    submission: Annotated[str, typer.Argument(help="Its id.")],
    allow_flaky: AllowFlaky = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> int:
    """Show how far a fleet's submission is, then its result."""
    from scheduler.progress import make_reporter
    from scheduler.watch import watch as follow

    summary, code = follow(submission, _settings(None), make_reporter(sys.stderr, quiet=quiet), allow_flaky=allow_flaky)
    return _print(summary, code, as_json=as_json)


app.add_typer(token_app(_command, _tell), name="token")


# -- rendering --------------------------------------------------------------------------------------------------------


def _options(state: Path | None, results: Path | None, **more: Any) -> Options:
    from scheduler.evaluate import Options

    return Options(state=state, results=results, environment=dict(os.environ), **more)


def _settings(metrics_port: int | None) -> Any:
    from evalfleet.settings import Settings

    environment = dict(os.environ)
    if metrics_port is not None:
        environment["EVALFLEET_METRICS_PORT"] = str(metrics_port)
    return Settings.from_env(environment)


def _prepared(tree: Path | None, select: list[str] | None, scenarios: Path | None, **asked: Any) -> Prepared:
    """What the words of `eval`, `plan` and `submit` mean, in the tree that they name."""
    from scheduler.prepare import prepare

    return prepare(tree or Path.cwd(), select or (), drafts=_drafts(scenarios), environment=os.environ, **asked)


def _drafts(place: Path | None) -> bytes | None:
    if place is None:
        return None
    try:
        return sys.stdin.buffer.read() if str(place) == "-" else place.read_bytes()
    except OSError as error:
        raise UsageError(f"--scenarios {place}: {error.strerror}") from error


def _log_level(verbose: bool, default: str = "WARNING") -> None:
    import logging

    logging.basicConfig(
        level="INFO" if verbose else default, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    logging.getLogger("httpx").setLevel("WARNING")


def _show_plan(prepared: Prepared, options: Options, *, files: bool, as_json: bool) -> int:
    from scheduler.manage import recorded_already
    from scheduler.plan import plan_document, render_plan

    if files:
        from evalfleet.tree import read_tree_version
        from scheduler.plan import render_files

        _tell(render_files(read_tree_version(prepared.config)))
        return 0
    recorded = recorded_already(prepared, options)
    if as_json:
        _tell(json.dumps(plan_document(prepared.plan, recorded)))
    else:
        _tell(render_plan(prepared.plan, recorded))
    return 0


def _show(result: Result, *, as_json: bool) -> int:
    from scheduler.render import incomplete_message

    code = _print(result.summary, result.exit_code, as_json=as_json)
    if result.ended.state == "stopped" and result.ended.reason:
        _say(f"evalfleet: stopped: {result.ended.reason}")
    if result.summary.missing or result.summary.unrecorded:
        _say(incomplete_message(result.summary))
    return code


def _print(summary: Summary, code: int, *, as_json: bool) -> int:
    from scheduler.render import print_summary

    if as_json:
        _tell(json.dumps(summary.document(code), ensure_ascii=True))
        return code
    with _stdout_may_close():
        print_summary(summary, sys.stdout)
        sys.stdout.flush()
    return code


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


if __name__ == "__main__":
    main()
