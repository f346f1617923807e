"""The commands that check a tree on this machine: `eval`, and what prepares it, goes on with it and ends it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

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
    Failed,
    FailOnRegression,
    Fresh,
    LeaveRunning,
    MaxFailures,
    MaxTime,
    NoGraders,
    OnTarget,
    OtherHarness,
    OtherMachine,
    Output,
    Quiet,
    Results,
    Scenarios,
    Select,
    State,
    Suite,
    Timeout,
    ToFleet,
    Tree,
    Trials,
    Verbose,
)
from scheduler.cli.output import (
    deliver,
    drafts_of,
    log_level,
    mark_problems,
    options_of,
    prepared_of,
    print_result,
    report_files,
    say,
    say_warnings,
    settings_of,
    show_plan,
    show_result,
    tell,
    words_of,
)
from scheduler.cli.steering import of_fleet


def eval_(
    select: Select = None,
    tree: Tree = None,
    concurrency: Concurrency = None,
    trials: Trials = None,
    timeout: Timeout = None,
    failed: Failed = False,
    deselect: Deselect = None,
    budget: Budget = None,
    max_time: MaxTime = None,
    results: Results = None,
    state: State = None,
    fresh: Fresh = False,
    allow_flaky: AllowFlaky = False,
    allow_missing: AllowMissing = None,
    exit_first: ExitFirst = False,
    max_failures: MaxFailures = None,
    baseline: Baseline = None,
    fail_on_regression: FailOnRegression = None,
    no_graders: NoGraders = False,
    target: OnTarget = False,
    commit: Commit = None,
    harness: OtherHarness = None,
    machine: OtherMachine = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", envvar="EVALFLEET_DRY_RUN", help="Say what would run.")] = False,
    as_json: AsJson = False,
    output: Output = None,
    scenarios: Scenarios = None,
    suite: Suite = None,
    leave_running: LeaveRunning = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    broker: ToFleet = None,
    _env_file: EnvFile = None,
) -> int:
    """Run the tree's checks and say pass, flaky or fail."""

    log_level(verbose)
    files = report_files(output)
    most_failures = 1 if exit_first else max_failures
    server = fleet = None
    if broker is not None:
        from scheduler.cli.steering import refuse_on_fleet

        refuse_on_fleet(leave_running=leave_running, results=results)
        from scheduler.cli.parts import results_of

        os.environ["EVALFLEET_BROKER_URL"] = broker  # as --env-file would: everything below reads it there
        server = None if target else settings_of(None).require_base_url()
        fleet = None if baseline is None else results_of(settings_of(None))
    prepared = prepared_of(
        tree,
        select,
        scenarios,
        suite=suite,
        failed=failed,
        state=state,
        as_json=as_json,
        trials=trials,
        timeout=timeout,
        deselect=deselect or (),
        no_graders=no_graders,
        concurrency=concurrency,
        on_target=target,
        results=results,
        commit=commit,
        harness=harness,
        machine=machine,
        budget=budget,
        max_time=max_time,
        baseline=baseline,
        fail_on=fail_on_regression,
        max_failures=None if broker is None else most_failures,
        allow_flaky=allow_flaky,
        by_ast=broker is not None,
        server=server,
        fleet=fleet,
    )
    say_warnings(prepared.warnings)
    if files is not None:
        files.outside_of_harness(prepared.config)
    if dry_run:
        return show_plan(prepared, options_of(state, results), files=False, as_json=as_json)
    words = words_of(select, deselect, failed=failed, suite=suite, trials=trials, timeout=timeout)
    if broker is not None:
        from scheduler.cli.parts import handed_over, watched

        return watched(
            handed_over(prepared, state, settings_of(None), fresh=fresh, words=words),
            files,
            allow_flaky=allow_flaky,
            allow_missing=allow_missing,
            as_json=as_json,
            quiet=quiet,
            baseline=prepared.baseline,
            root=prepared.config.root,
        )
    from scheduler.evaluate import evaluate
    from scheduler.progress import make_reporter

    options = options_of(
        state,
        results,
        fresh=fresh,
        allow_flaky=allow_flaky,
        leave_running=leave_running,
        max_failures=most_failures,
        allow_missing=allow_missing,
    )
    result = evaluate(prepared, options, make_reporter(sys.stderr, quiet=quiet), words=words)
    code = show_result(result, as_json=as_json)
    return deliver(
        files,
        result.summary,
        code,
        root=prepared.config.root,
        allow_flaky=allow_flaky,
        ended=result.ended_early,
        compared=result.compared,
    )


def validate(
    select: Select = None,
    tree: Tree = None,
    deselect: Deselect = None,
    target: OnTarget = False,
    results: Results = None,
    scenarios: Scenarios = None,
    suite: Suite = None,
    as_json: AsJson = False,
    _env_file: EnvFile = None,
) -> int:
    """Everything that would refuse a run, without a run."""
    from scheduler.prepare import check

    found = check(
        tree or Path.cwd(),
        select or (),
        deselect=deselect or (),
        drafts=drafts_of(scenarios, suite),
        suite=suite,
        on_target=target,
        results=results,
        environment=user_environment(),
    )
    if as_json:
        tell(json.dumps(found.document(), ensure_ascii=False))
    else:
        tell(found.render())
    mark_problems(found.problems, found.root)
    return 0 if found.ok else 2


def plan(
    select: Select = None,
    tree: Tree = None,
    trials: Trials = None,
    timeout: Timeout = None,
    failed: Failed = False,
    deselect: Deselect = None,
    concurrency: Concurrency = None,
    state: State = None,
    results: Results = None,
    target: OnTarget = False,
    commit: Commit = None,
    harness: OtherHarness = None,
    machine: OtherMachine = None,
    scenarios: Scenarios = None,
    suite: Suite = None,
    files: Annotated[
        bool, typer.Option("--files", envvar="EVALFLEET_FILES", help="List the files that the commit is made of.")
    ] = False,
    as_json: AsJson = False,
    _env_file: EnvFile = None,
) -> int:
    """What would run, and what is recorded already."""

    prepared = prepared_of(
        tree,
        select,
        scenarios,
        suite=suite,
        failed=failed,
        state=state,
        as_json=as_json,
        trials=trials,
        timeout=timeout,
        deselect=deselect or (),
        concurrency=concurrency,
        on_target=target,
        results=results,
        commit=commit,
        harness=harness,
        machine=machine,
    )
    return show_plan(prepared, options_of(state, results), files=files, as_json=as_json)


def resume(
    submission: Annotated[str | None, typer.Argument(help="Its id, or a beginning of it.")] = None,
    tree: Tree = None,
    state: State = None,
    results: Results = None,
    budget: Budget = None,
    max_time: MaxTime = None,
    allow_flaky: AllowFlaky = False,
    allow_missing: AllowMissing = None,
    exit_first: ExitFirst = False,
    max_failures: MaxFailures = None,
    baseline: Baseline = None,
    fail_on_regression: FailOnRegression = None,
    as_json: AsJson = False,
    output: Output = None,
    leave_running: LeaveRunning = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    _env_file: EnvFile = None,
) -> int:
    """Go on with an unfinished submission.

    On a finished one it shows the stored result and runs nothing.
    """
    from evalfleet.results import results_store
    from evalfleet.tree import find_tree, read_tree_config, tree_commit
    from scheduler.compare import asked_baseline
    from scheduler.evaluate import resume as go_on
    from scheduler.evaluate import state_folder
    from scheduler.progress import make_reporter
    from scheduler.submissions import Submissions

    log_level(verbose)
    files = report_files(output)
    if submission is not None and (found := of_fleet(submission, tree, state)):
        from scheduler.cli.steering import go_on_with

        return go_on_with(
            found,
            files,
            budget=budget,
            max_time=max_time,
            allow_flaky=allow_flaky,
            allow_missing=allow_missing,
            baseline=baseline,
            fail_on=fail_on_regression,
            as_json=as_json,
            quiet=quiet,
        )
    config = read_tree_config(find_tree(tree or Path.cwd()))
    if files is not None:
        files.outside_of_harness(config)
    folder = results_store(results or config.results_folder)
    options = options_of(
        state,
        results,
        allow_flaky=allow_flaky,
        leave_running=leave_running,
        max_failures=1 if exit_first else max_failures,
        budget=budget,
        max_time=max_time,
        baseline=None if baseline is None else asked_baseline(baseline, fail_on_regression, folder, config.root),
        fail_on=fail_on_regression,
        allow_missing=allow_missing,
    )
    known = Submissions(state_folder(config, options))
    record = known.find(submission) if submission else known.latest_unfinished()
    result = go_on(config, record, options, make_reporter(sys.stderr, quiet=quiet), commit=tree_commit(config))
    if record.status != "running":
        from scheduler.submit import ago

        started = f"{record.started_at[:19]}Z, {ago(record.started_at)}"
        say(f"{record.id} is {record.status} (started {started}); nothing was run")
        code = print_result(result.summary, result.exit_code, as_json=as_json, compared=result.compared)
    else:
        code = show_result(result, as_json=as_json)
    return deliver(
        files,
        result.summary,
        code,
        root=config.root,
        allow_flaky=allow_flaky,
        ended=result.ended_early,
        compared=result.compared,
    )


def cancel(
    submission: Annotated[str, typer.Argument(help="Its id, or a beginning of it.")],
    tree: Tree = None,
    state: State = None,
    _env_file: EnvFile = None,
) -> int:
    """End an unfinished submission; what is recorded is kept."""
    from evalfleet.tree import find_tree, read_tree_config
    from scheduler.manage import cancel_submission

    if found := of_fleet(submission, tree, state):
        from scheduler.cli.steering import cancel_on_fleet

        tell(cancel_on_fleet(found, tree, state))
        return 0
    config = read_tree_config(find_tree(tree or Path.cwd()))
    tell(cancel_submission(config, submission, options_of(state, None)))
    return 0


def schema() -> int:
    """The JSON Schema of case files, for editors."""
    from evalfleet.checks.editor_schema import case_schema

    tell(json.dumps(case_schema(), indent=2, ensure_ascii=False))
    return 0


def init(
    tree: Annotated[Path | None, typer.Argument(help="The folder.", show_default="here")] = None,
) -> int:
    """Write a first tree: settings, a case, a grader, an agent, CI."""
    from scheduler.init import init as write_tree

    tell(write_tree(tree or Path.cwd()).render())
    return 0
