"""The parts of a fleet, and the commands that hand it work and look on."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evalfleet.surroundings import user_environment
from scheduler.cli.flags import (
    AllowFlaky,
    AllowMissing,
    AsJson,
    Baseline,
    Budget,
    Commit,
    Concurrency,
    Deselect,
    EnvFile,
    ExitFirst,
    FailOnRegression,
    Fresh,
    MaxFailures,
    MaxTime,
    MetricsPort,
    NoGraders,
    OnTarget,
    OtherHarness,
    OtherMachine,
    Output,
    Quiet,
    Scenarios,
    Select,
    State,
    Suite,
    Timeout,
    Tree,
    Trials,
    Verbose,
    whole,
)
from scheduler.cli.output import (
    deliver,
    log_level,
    options_of,
    prepared_of,
    print_result,
    report_files,
    say,
    say_warnings,
    settings_of,
    tell,
    words_of,
)

if TYPE_CHECKING:
    from evalfleet.results import ResultsStore
    from evalfleet.settings import Settings
    from scheduler.allowed import AllowedMissing
    from scheduler.compare import Baseline as OlderResult
    from scheduler.compare import FailOn
    from scheduler.prepare import Prepared
    from scheduler.reports import ReportFiles


def server(context: typer.Context) -> int:
    """The self-hosted v2 API by itself."""
    from evalfleet.server.__main__ import main as serve

    return int(serve(list(context.args)) or 0)


def worker(context: typer.Context) -> None:
    """A worker: plays, grades and records."""
    sys.stdout.flush()
    # A worker is a process of its own kind: it takes this one's place, with none of what the command line imported.
    program = [sys.executable, "-P", "-m", "evalfleet.start", "worker", *context.args]
    os.execve(sys.executable, program, user_environment())  # noqa: S606


def scheduler_(metrics_port: MetricsPort = None, verbose: Verbose = False, _env_file: EnvFile = None) -> int:
    """Drive the submissions of a fleet until stopped."""
    from scheduler.fleet import run_scheduler

    log_level(verbose, default="INFO")
    return run_scheduler(settings_of(metrics_port))


def submit(
    select: Select = None,
    tree: Tree = None,
    concurrency: Concurrency = None,
    trials: Trials = None,
    timeout: Timeout = None,
    deselect: Deselect = None,
    weight: Annotated[
        int | None,
        typer.Option(
            "--weight",
            envvar="EVALFLEET_WEIGHT",
            help="Its part of the workers' slots, beside the weights of other submissions.",
            show_default="1",
            parser=whole,
            metavar="N",
        ),
    ] = None,
    budget: Budget = None,
    max_time: MaxTime = None,
    exit_first: ExitFirst = False,
    max_failures: MaxFailures = None,
    allow_flaky: AllowFlaky = False,
    baseline: Baseline = None,
    fail_on_regression: FailOnRegression = None,
    state: State = None,
    fresh: Fresh = False,
    no_graders: NoGraders = False,
    target: OnTarget = False,
    commit: Commit = None,
    harness: OtherHarness = None,
    machine: OtherMachine = None,
    scenarios: Scenarios = None,
    suite: Suite = None,
    _env_file: EnvFile = None,
) -> int:
    """Hand the tree's checks to a fleet; prints the submission's id."""
    settings = settings_of(None)
    prepared = prepared_of(
        tree,
        select,
        scenarios,
        suite=suite,
        trials=trials,
        timeout=timeout,
        deselect=deselect or (),
        no_graders=no_graders,
        concurrency=concurrency,
        on_target=target,
        results=None,
        commit=commit,
        harness=harness,
        machine=machine,
        budget=budget,
        max_time=max_time,
        weight=weight,
        max_failures=1 if exit_first else max_failures,
        allow_flaky=allow_flaky,
        baseline=baseline,
        fail_on=fail_on_regression,
        fleet=None if baseline is None else results_of(settings),
        by_ast=True,
        server=None if target else settings.require_base_url(),
    )
    say_warnings(prepared.warnings)
    words = words_of(select, deselect, suite=suite, trials=trials, timeout=timeout)
    tell(handed_over(prepared, state, settings, fresh=fresh, words=words))
    return 0


def results_of(settings: Settings) -> ResultsStore:
    """The fleet's results, where they answer."""
    from evalfleet.results import shared_results

    store = shared_results(settings.require_results_url())
    store.check()
    return store


def handed_over(
    prepared: Prepared, state: Path | None, settings: Settings, *, fresh: bool, words: Sequence[str]
) -> str:
    """The id of what was submitted to the fleet."""
    from scheduler.fleet import submit as hand_over

    opened = hand_over(prepared, options_of(state, None, fresh=fresh), settings, words=words)
    if opened.note:
        say(opened.note)
    return opened.plan.id


def watch(
    submission: Annotated[str, typer.Argument(help="Its id, or a beginning of it.")],
    allow_flaky: AllowFlaky = False,
    allow_missing: AllowMissing = None,
    baseline: Baseline = None,
    fail_on_regression: FailOnRegression = None,
    as_json: AsJson = False,
    output: Output = None,
    quiet: Quiet = False,
    _env_file: EnvFile = None,
) -> int:
    """Show how far a fleet's submission is, then its result."""
    from scheduler.submissions import is_id

    if not is_id(submission):  # a whole one is waited for also where the broker is away, or has lost it
        from scheduler.steer import steering

        with steering(settings_of(None)) as fleet:
            submission = fleet.find(submission)
    return watched(
        submission,
        report_files(output),
        allow_flaky=allow_flaky,
        allow_missing=allow_missing,
        baseline=baseline,
        fail_on=fail_on_regression,
        as_json=as_json,
        quiet=quiet,
    )


def watched(
    submission: str,
    files: ReportFiles | None,
    *,
    allow_flaky: bool,
    allow_missing: AllowedMissing | None,
    as_json: bool,
    quiet: bool,
    baseline: str | OlderResult | None = None,
    fail_on: FailOn | None = None,
    root: Path | None = None,
) -> int:
    """Follow a submission to its end and print its result; the exit code. `root`: the tree's folder, if any."""
    from scheduler.progress import make_reporter
    from scheduler.watch import watch as follow

    reporter = make_reporter(sys.stderr, quiet=quiet)
    summary, code, compared = follow(
        submission,
        settings_of(None),
        reporter,
        allow_flaky=allow_flaky,
        allow_missing=allow_missing,
        baseline=baseline,
        fail_on=fail_on,
        root=root,
    )
    code = print_result(summary, code, as_json=as_json, compared=compared)
    return deliver(files, summary, code, root=root, allow_flaky=allow_flaky, compared=compared)
