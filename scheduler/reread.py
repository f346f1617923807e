"""What do the commands do that read an artifact: `score`, `show`, `compare`? Nothing is run."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from evalfleet.artifact import Result
from evalfleet.checks.case import LoadedCases, case_key, load_cases, load_suite
from evalfleet.checks.near import folded
from evalfleet.errors import UsageError
from evalfleet.plan import Plan
from evalfleet.quarantine import applying, in_force
from evalfleet.results import results_store
from evalfleet.tree import find_tree, read_tree_config
from scheduler.allowed import AllowedMissing
from scheduler.changes import Changes
from scheduler.compare import Baseline, Compared, FailOn, asked_baseline, baseline_of
from scheduler.differences import comparison_lines
from scheduler.score import Today, recorded, rescored
from scheduler.show import choose, show
from scheduler.summary import Summary, exit_code

if TYPE_CHECKING:
    from scheduler.evaluate import Options, Reporter
    from scheduler.judge_anew import Anew


@dataclass(frozen=True, slots=True)
class Scored:
    """An artifact scored again. `root`: the tree's folder; `today` judges single lines as the summary has them; None:
    as recorded, and nothing `changes`."""

    summary: Summary
    exit_code: int
    root: Path
    today: Today | None
    changes: Changes | None
    compared: Compared | None
    anew: Anew | None = None


def cases_of(plan: Plan, root: Path) -> LoadedCases:
    """What the files say today of a plan's cases: the tree's case files, or the suite file whose rows it plays. A
    suite's file that is gone is no problem here: its rows are."""
    rows = {case.file for case in plan.cases if any(p.scenario.given is not None for p in case.scenarios)}
    found = [load_suite(root / file, root=root) for file in sorted(rows) if (root / file).exists()]
    if len(rows) < len({case.file for case in plan.cases}):
        found.append(load_cases(root))
    return LoadedCases(
        tuple(case for loaded in found for case in loaded.cases),
        tuple(problem for loaded in found for problem in loaded.problems),
        tuple(warning for loaded in found for warning in loaded.warnings),
    )


def tree_around(tree: Path | None, *artifacts: str | None) -> Path:
    """The tree's folder. Where there is none around, and none was named, this folder: an artifact that is named by its
    place, or by a URL, can be read anywhere. Else UsageError, as of `find_tree`."""
    try:
        return find_tree(tree or Path.cwd())
    except UsageError:
        if tree is None and artifacts and all(text and ("://" in text or Path(text).exists()) for text in artifacts):
            return Path.cwd()
        raise


def _suites(plan: Plan) -> dict[str, str | None]:
    """Folded key → the suite's file where it is a row, for all that is scored."""
    return {
        folded(case_key(case.name, planned.scenario.id)): case.file if planned.scenario.given is not None else None
        for case in plan.cases
        for planned in case.scenarios
    }


def score_artifact(
    text: str,
    tree: Path | None,
    results: Path | None,
    *,
    as_recorded: bool,
    allow_flaky: bool,
    allow_missing: AllowedMissing | None = None,
    baseline: str | None = None,
    fail_on: FailOn | None = None,
    regrade: bool = False,
    record: bool = False,
    options: Options | None = None,
    reporter: Reporter | None = None,
) -> Scored:
    """Score an artifact again (S32). `regrade` and `record` make a new one, and need the last two."""
    root = find_tree(tree or Path.cwd()) if regrade or record else tree_around(tree, text)
    config = read_tree_config(root)
    folder = results or config.results_folder
    result, _ = choose(text, None, folder)
    older = asked_baseline(baseline, fail_on, results_store(folder), root, apart_from=result.name)
    apart = applying(in_force(config.quarantine, datetime.now(UTC).date()), _suites(result.plan))
    today = None if as_recorded else Today(result.plan, cases_of(result.plan, root), ask_again=regrade)
    anew = None
    if regrade or record:
        if today is None:
            raise UsageError("--as-recorded judges nothing, so there is nothing that --regrade or --record could do")
        from scheduler.judge_anew import judge_anew

        assert options is not None
        assert reporter is not None
        anew = judge_anew(result, today, config, options, reporter, regrade=regrade, recording=record, quarantine=apart)
        found = anew.rescored
    else:
        found = rescored(result, today, apart)
    summary = found.summary
    if allow_missing is not None and allow_missing.covers(summary):
        summary = replace(summary, missing_allowed=True)
    compared = None if older is None else older.against(result.plan if anew is None else anew.plan, summary, today)
    code = exit_code(
        summary,
        allow_flaky=allow_flaky,
        regressed=compared is not None and compared.is_lost,
        signal=None if anew is None else anew.signal,
    )
    return Scored(summary, code, root, today, None if today is None else found.changes, compared, anew)


def show_artifact(
    text: str | None,
    key: str | None,
    trial: int | None,
    *,
    tree: Path | None,
    results: Path | None,
    stream: TextIO,
    baseline: str | None = None,
    fail_on: FailOn | None = None,
) -> tuple[Result, Compared | None]:
    """Show an artifact, and give it; a single word that is no artifact is a scenario of the newest."""
    root = tree_around(tree, text)
    folder = results or read_tree_config(root).results_folder
    result, scenario = choose(text, key, folder)
    older = asked_baseline(baseline, fail_on, results_store(folder), root, apart_from=result.name)
    compared = None if older is None else older.against(result.plan, recorded(result))
    more = [] if compared is None else [functools.partial(comparison_lines, compared)]
    show(result, stream, scenario=scenario, trial=trial, more=more)
    return result, compared


def compare_artifacts(
    older: str, newer: str, *, tree: Path | None, results: Path | None, fail_on: FailOn | None
) -> Compared:
    """Two artifacts side by side, as they were recorded (S31)."""
    root = tree_around(tree, older, newer)
    store = results_store(results or read_tree_config(root).results_folder)
    now = baseline_of(newer, store, root, what="RESULT")
    before = baseline_of(older, store, root, apart_from=now.name, what="BASELINE")
    return Baseline(before, fail_on).against(now.plan, recorded(now))
