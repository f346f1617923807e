"""The commands that read what was found: nothing is run, nothing is changed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from scheduler.cli.flags import (
    AllowFlaky,
    AllowMissing,
    AsJson,
    Baseline,
    EnvFile,
    FailOnRegression,
    OnTarget,
    Output,
    Quiet,
    Results,
    State,
    Tree,
    trial_index,
)
from scheduler.cli.output import (
    deliver,
    options_of,
    print_result,
    report_files,
    say,
    settings_of,
    stdout_may_close,
    tell,
)


def list_(tree: Tree = None, state: State = None, as_json: AsJson = False, _env_file: EnvFile = None) -> int:
    """Submissions: of this tree, and of the fleet."""
    from evalfleet.tree import find_tree, read_tree_config
    from scheduler.cli.output import tree_of
    from scheduler.evaluate import state_folder
    from scheduler.manage import Listed, listed, render_fleet, render_submissions
    from scheduler.submissions import Submissions

    settings = settings_of(None)
    found: list[Listed] | None = None
    is_fleets = settings.broker is not None and settings.results_url is not None
    if not is_fleets or tree is not None or state is not None or tree_of(None) is not None:
        config = read_tree_config(find_tree(tree or Path.cwd()))
        records, damaged = Submissions(state_folder(config, options_of(state, None))).read()
        found = listed(config, records)
        for sentence in damaged:
            say(sentence)
    rows = None
    if is_fleets:
        from scheduler.steer import steering

        with steering(settings) as fleet:
            rows = fleet.rows()
    if as_json:
        fleets = None if rows is None else [row.document() for row in rows]
        tell(json.dumps({"submissions": [each.document() for each in found or ()], "fleet": fleets}))
        return 0
    parts = [] if found is None else [render_submissions(found)]
    parts += [] if rows is None else [render_fleet(rows, str(settings.broker))]
    tell("\n\n".join(parts))
    return 0


def score(
    result: Annotated[str, typer.Argument(help="An artifact: its folder, or its name in evals/results.")],
    tree: Tree = None,
    as_recorded: Annotated[
        bool,
        typer.Option(
            "--as-recorded", envvar="EVALFLEET_AS_RECORDED", help="By the rules and cases it was recorded with."
        ),
    ] = False,
    regrade: Annotated[
        bool,
        typer.Option("--regrade", envvar="EVALFLEET_REGRADE", help="Run today's graders over the stored trials."),
    ] = False,
    record: Annotated[
        bool,
        typer.Option(
            "--record", envvar="EVALFLEET_RECORD", help="Put the verdicts on a new evaluation, with the same runs."
        ),
    ] = False,
    results: Results = None,
    state: State = None,
    baseline: Baseline = None,
    fail_on_regression: FailOnRegression = None,
    allow_flaky: AllowFlaky = False,
    allow_missing: AllowMissing = None,
    as_json: AsJson = False,
    output: Output = None,
    quiet: Quiet = False,
) -> int:
    """Score an artifact by today's rules; no agent runs."""
    from scheduler.progress import make_reporter
    from scheduler.reread import score_artifact

    files = report_files(output)
    scored = score_artifact(
        result,
        tree,
        results,
        as_recorded=as_recorded,
        allow_flaky=allow_flaky,
        allow_missing=allow_missing,
        baseline=baseline,
        fail_on=fail_on_regression,
        regrade=regrade,
        record=record,
        options=options_of(state, results, allow_flaky=allow_flaky),
        reporter=make_reporter(sys.stderr, quiet=quiet),
    )
    code = print_result(
        scored.summary,
        scored.exit_code,
        as_json=as_json,
        changes=scored.changes,
        compared=scored.compared,
        recorded_on=() if scored.anew is None else scored.anew.evaluations,
    )
    if scored.anew is not None and scored.anew.stopped:
        say(f"evalfleet: {scored.anew.stopped}")
    return deliver(
        files,
        scored.summary,
        code,
        root=scored.root,
        today=scored.today if scored.anew is None else None,  # the new artifact holds what was judged
        allow_flaky=allow_flaky,
        changes=scored.changes,
        compared=scored.compared,
    )


def show(
    result: Annotated[str | None, typer.Argument(help="An artifact, or CASE/SCENARIO of the newest.")] = None,
    scenario: Annotated[str | None, typer.Argument(help="CASE/SCENARIO")] = None,
    trial: Annotated[
        int | None,
        typer.Option(
            "--trial",
            envvar="EVALFLEET_TRIAL",
            help="Which trial, from 1; default the first that did not pass.",
            parser=trial_index,
            metavar="N",
        ),
    ] = None,
    tree: Tree = None,
    results: Results = None,
    baseline: Baseline = None,
    fail_on_regression: FailOnRegression = None,
    output: Output = None,
) -> int:
    """Read an artifact: verdicts, then one trial's transcript."""
    from scheduler.reread import show_artifact

    files = report_files(output)
    opened, compared = show_artifact(
        result,
        scenario,
        trial,
        tree=tree,
        results=results,
        stream=sys.stdout,
        baseline=baseline,
        fail_on=fail_on_regression,
    )
    if files is not None:
        from scheduler.reports import report_of
        from scheduler.score import recorded
        from scheduler.summary import exit_code

        summary, lost = recorded(opened), compared is not None and compared.is_lost
        files.write(report_of(opened, summary, exit_code(summary, regressed=lost), compared=compared))
    return 1 if compared is not None and compared.is_lost else 0


def compare(
    baseline: Annotated[str, typer.Argument(help="The older artifact, or a commit: its newest complete one.")],
    result: Annotated[str, typer.Argument(help="The artifact beside it, likewise.")],
    tree: Tree = None,
    results: Results = None,
    fail_on_regression: FailOnRegression = None,
    as_json: AsJson = False,
) -> int:
    """What got better and what worse from one artifact to another."""
    from scheduler.differences import comparison_lines
    from scheduler.layout import width_of, write_lines
    from scheduler.reread import compare_artifacts

    compared = compare_artifacts(baseline, result, tree=tree, results=results, fail_on=fail_on_regression)
    code = 1 if compared.is_lost else 0
    if as_json:
        tell(json.dumps({"exit_code": code, **compared.document()}))
        return code
    with stdout_may_close():
        write_lines(comparison_lines(compared, width_of(sys.stdout)), sys.stdout)
    return code


def hook_trace(
    run: Annotated[
        str | None, typer.Argument(help="A run's id, or CASE/SCENARIO of an artifact; none: the newest run.")
    ] = None,
    result: Annotated[
        str | None,
        typer.Option(
            "--result", envvar="EVALFLEET_RESULT", help="Read this artifact, not the server.", metavar="RESULT"
        ),
    ] = None,
    trial: Annotated[
        int | None,
        typer.Option(
            "--trial",
            envvar="EVALFLEET_TRIAL",
            help="With CASE/SCENARIO: which trial, from 1; default all.",
            parser=trial_index,
            metavar="N",
        ),
    ] = None,
    tree: Tree = None,
    target: OnTarget = False,
    results: Results = None,
    state: State = None,
    as_json: AsJson = False,
) -> int:
    """Was each hook point reached, did it decide, or fail?"""
    from evalfleet.tree import read_tree_config
    from scheduler.hook_trace import artifact_of, trace_artifact, trace_run
    from scheduler.layout import width_of, write_lines
    from scheduler.reread import tree_around

    config = read_tree_config(tree_around(tree, result))
    if result is not None or trial is not None or (run is not None and "/" in run):
        trace = trace_artifact(artifact_of(result, config, results), run, trial)
    else:
        trace = trace_run(run, config, options_of(state, results), on_target=target)
    if as_json:
        tell(json.dumps(trace.document()))
    else:
        say(trace.of)
        with stdout_may_close():
            write_lines(trace.lines(width_of(sys.stdout)), sys.stdout)
    return 0
