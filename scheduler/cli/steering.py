"""The commands that look at a fleet's submission, hold it, and let it go on."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evalfleet.errors import UsageError
from evalfleet.surroundings import user_environment
from scheduler.cli.flags import AsJson, EnvFile, State, Tree
from scheduler.cli.output import options_of, say, settings_of, tell, tell_people, tree_of

if TYPE_CHECKING:
    from scheduler.allowed import AllowedMissing
    from scheduler.compare import FailOn
    from scheduler.reports import ReportFiles
    from scheduler.submissions import Submissions

OfFleet = Annotated[str, typer.Argument(help="Its id, or a beginning of it.")]


def status(submission: OfFleet, as_json: AsJson = False, _env_file: EnvFile = None) -> int:
    """How far a submission is now, and why it stands still."""
    from scheduler.manage import render_status
    from scheduler.steer import steering

    with steering(settings_of(None)) as fleet:
        found = fleet.status(fleet.find(submission))
    if as_json:
        tell(json.dumps(found.document(), ensure_ascii=True))
    else:
        tell_people(render_status(found))
    return 0


def pause(submission: OfFleet, _env_file: EnvFile = None) -> int:
    """Begin nothing more of it; what is under way ends."""
    from scheduler.steer import steering

    with steering(settings_of(None)) as fleet:
        tell(fleet.pause(fleet.find(submission)))
    return 0


def retry(
    submission: OfFleet,
    errors: Annotated[
        bool,
        typer.Option(
            "--errors", envvar="EVALFLEET_ERRORS", help="A new evaluation of the scenarios with an error, instead."
        ),
    ] = False,
    tree: Tree = None,
    state: State = None,
    _env_file: EnvFile = None,
) -> int:
    """Play what is missing of a fleet's submission that has ended."""
    from scheduler.steer import steering

    settings = settings_of(None)
    with steering(settings) as fleet:
        found = fleet.find(submission)
        if not errors:
            said = fleet.play_again(found)
            tell(said or f"nothing is missing in {found}; --errors plays its errored scenarios in a new evaluation")
            return 0
        plan, keys = fleet.errored(found)
    if not keys:
        tell(f"no scenario of {found} has a trial that ended in an error; nothing was submitted")
        return 0
    on_target = plan.target.base_url is not None
    rounds = {evaluation.k for evaluation in plan.evaluations}
    from scheduler.cli.parts import handed_over
    from scheduler.prepare import prepare

    prepared = prepare(
        tree or Path.cwd(),
        (),
        trials=rounds.pop() if len(rounds) == 1 else None,  # differing ones are the case files' own
        concurrency=plan.concurrency,
        drafts=None,
        on_target=on_target,
        results=None,
        environment=user_environment(),
        by_ast=True,
        server=None if on_target else settings.require_base_url(),
        only=keys,
        weight=plan.limits.weight,
        harness=plan.target.harness_id if on_target else None,  # it may have been submitted with --harness
        machine=plan.target.machine_id if on_target else None,
    )
    gone = keys - {prepared.plan.key_of(attempt) for attempt in prepared.plan.all_attempts()}
    if gone:
        raise UsageError(f"this tree does not hold {', '.join(sorted(gone)[:10])}, which had an error in {found}")
    opened = handed_over(prepared, state, settings, fresh=False, words=["--errors", found])
    say(f"scenarios of {found} with an error: {len(keys)}; {opened} is a new evaluation that plays all their trials")
    tell(opened)
    return 0


def logs(submission: OfFleet, as_json: AsJson = False, _env_file: EnvFile = None) -> int:
    """What schedulers and workers said about it lately."""
    from scheduler.manage import render_log
    from scheduler.steer import steering

    with steering(settings_of(None)) as fleet:
        found = fleet.find(submission)
        lines = fleet.ledger.log(found)
    if as_json:
        tell(json.dumps({"submission": found, "lines": lines}, ensure_ascii=True))
    elif lines:
        tell(render_log(lines))
    else:
        say(f"nobody has said anything about {found} for a day")
    return 0


def of_fleet(text: str, tree: Path | None, state: Path | None) -> str | None:
    """The id of the fleet's submission that `text` means; None: it is one of this folder, or nobody's."""
    settings = settings_of(None)
    if settings.broker is None or settings.results_url is None:
        return None
    from scheduler.steer import steering

    here = records_of(tree, state)
    record = None
    with contextlib.suppress(UsageError):
        record = None if here is None else here.find(text)
    with steering(settings) as fleet:
        if record is not None and record.server:
            return record.id
        on_books = [sub for sub in fleet.ledger.known() if record is None or sub == record.id]
        if record is not None:
            return record.id if on_books else None
        return fleet.find(text)


def records_of(tree: Path | None, state: Path | None) -> Submissions | None:
    """The records of this folder's submissions; None where there is no tree."""
    from evalfleet.tree import read_tree_config
    from scheduler.evaluate import state_folder
    from scheduler.submissions import Submissions

    root = tree_of(tree)
    return None if root is None else Submissions(state_folder(read_tree_config(root), options_of(state, None)))


def cancel_on_fleet(submission: str, tree: Path | None, state: Path | None) -> str:
    """End it there, and in this folder's records if it stands in them; what was done, in words."""
    from scheduler.steer import steering

    with steering(settings_of(None)) as fleet:
        status, said = fleet.cancel(submission)
    here = records_of(tree, state)
    if here is not None and any(record.id == submission and record.unfinished for record in here.all()):
        here.set_status(submission, status)
    return said


def go_on_with(
    submission: str,
    files: ReportFiles | None,
    *,
    budget: str | None,
    max_time: str | None,
    allow_flaky: bool,
    allow_missing: AllowedMissing | None,
    baseline: str | None,
    fail_on: FailOn | None,
    as_json: bool,
    quiet: bool,
) -> int:
    """Let it go on and return at once; of one that is complete show the result, and exit by its verdict (S34)."""
    from scheduler.cli.parts import watched
    from scheduler.steer import steering

    with steering(settings_of(None)) as fleet:
        said = fleet.go_on(submission, budget, max_time)
    if said is not None:
        tell(said)
        if baseline is not None or fail_on is not None:
            say(f"it is compared at its end: `evalfleet watch {submission}` takes the same flags")
        return 0
    say(f"{submission} is completed; nothing was run")
    return watched(
        submission,
        files,
        allow_flaky=allow_flaky,
        allow_missing=allow_missing,
        baseline=baseline,
        fail_on=fail_on,
        as_json=as_json,
        quiet=quiet,
    )


def refuse_on_fleet(**flags: Any) -> None:
    """UsageError for what a command that only looks on cannot do."""
    given = [f"--{name.replace('_', '-')}" for name, value in flags.items() if value not in {None, False}]
    if given:
        raise UsageError(
            f"{', '.join(given)} cannot go with --broker: its schedulers drive the submission, its results are in "
            "EVALFLEET_RESULTS_URL, and `evalfleet compare` reads them there"
        )
