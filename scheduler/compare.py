"""What does a result say beside an older one: the sides, the baseline that a person names, the gate? (S31)

From artifacts alone: nothing is run, no server is asked. The comparing itself is `evalfleet.checks.comparison`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

from evalfleet.artifact import (
    Result,
    find,
    is_url,
    list_results,
    open_artifact,
    open_result,
    read_plan,
)
from evalfleet.checks.case import Scenario, case_key
from evalfleet.checks.comparison import REGRESSED, WEAKER, Comparison, Judged, Pair, compare
from evalfleet.errors import StorageError, UsageError
from evalfleet.gitrepo import open_repo
from evalfleet.plan import Plan, PlannedBaseline
from evalfleet.results import ARTIFACT_NAME, ResultsStore
from scheduler.score import Today, recorded, rescored
from scheduler.show import is_result
from scheduler.summary import Summary

FailOn = Literal["any", "significant"]
"""Which regressions lose the gate."""


@dataclass(frozen=True)
class Compared:
    """A result beside its baseline. `place`, `commit` and `scorer` are the baseline's; `note` says what makes the two
    less comparable than they look, or is empty."""

    comparison: Comparison
    place: str
    commit: str
    note: str = ""
    fail_on: FailOn | None = None
    quarantine: frozenset[str] = frozenset()
    """Case keys that do not gate."""

    @property
    def is_lost(self) -> bool:
        """Does the gate count it, and is it a regression?"""
        if self.fail_on is None:
            return False
        gating = replace(self.comparison, pairs=tuple(p for p in self.comparison.pairs if p.key not in self.quarantine))
        return gating.is_regression(significant=self.fail_on == "significant")

    @functools.cached_property
    def worse(self) -> Mapping[str, Pair]:
        """Case key → how it got worse, where the gate counts that."""
        pairs = self.comparison.pairs if self.is_lost else ()
        return {pair.key: pair for pair in pairs if pair.move in (REGRESSED, WEAKER)}

    def document(self) -> dict[str, Any]:
        """`comparison` in `--json`."""
        return {
            "baseline": {"artifact": self.place, "commit": self.commit},
            "note": self.note or None,
            **self.comparison.document(),
        }


@dataclass(frozen=True, slots=True)
class Baseline:
    """The older side, and whether the gate counts what got worse."""

    result: Result
    fail_on: FailOn | None = None

    @property
    def commit(self) -> str:
        return self.result.plan.commit

    def against(self, plan: Plan, summary: Summary, today: Today | None = None) -> Compared:
        """A newer result beside it. `today`: who judged that one anew; the same rules and cases then judge this side,
        too, so that only what the agent did is compared.

        UsageError: not one scenario is on both sides with equal content and number of trials, so nothing was compared.
        """
        mine = None if today is None else Today(self.result.plan, today.cases)
        before = rescored(self.result, mine).summary if mine is not None else recorded(self.result)
        comparison = self._beside(judged(self.result.plan, before, mine), plan, judged(plan, summary, today))
        if not comparison.pairs:
            raise UsageError(_nothing_paired(self.result.place, comparison))
        apart = frozenset(case_key(s.case, s.scenario) for s in summary.scenarios if s.quarantine is not None)
        note = _note(self.result, plan, mine)
        return Compared(comparison, self.result.place, self.commit, note, self.fail_on, apart)

    def planned(self, store: ResultsStore) -> PlannedBaseline:
        """As a plan of this results store carries it."""
        result = self.result
        place = result.place if is_url(result.place) else str(Path(result.place).resolve())
        here = result.store.shown(result.name) == store.shown(result.name)
        return PlannedBaseline(self.commit, result.name if here else place, self.fail_on)

    def check(self, plan: Plan) -> None:
        """UsageError, before anything runs, where nothing of a plan will find its pair."""
        here = {key: Judged("incomplete", s.trials, content) for key, s, content in _contents(plan, None)}
        there = {key: Judged("incomplete", s.trials, content) for key, s, content in _contents(self.result.plan, None)}
        comparison = self._beside(there, plan, here)
        if not comparison.pairs:
            raise UsageError(_nothing_paired(self.result.place, comparison))

    def _beside(self, before: Mapping[str, Judged], plan: Plan, now: Mapping[str, Judged]) -> Comparison:
        return compare(before, now, all_before=self.result.plan.is_whole, all_now=plan.is_whole)


def judged(plan: Plan, summary: Summary, today: Today | None = None) -> dict[str, Judged]:
    """The scenarios of a result by case key, each with the content that decided its verdict."""
    rows = {case_key(row.case, row.scenario): row for row in summary.scenarios}
    sides = {}
    for key, scenario, content in _contents(plan, today):
        row = rows[key]
        passed = None if row.elsewhere else row.passed
        sides[key] = Judged(row.verdict, scenario.trials, content, passed, row.first_failure)
    return sides


def asked_baseline(
    text: str | None, fail_on: FailOn | None, store: ResultsStore, root: Path, *, apart_from: str | None = None
) -> Baseline | None:
    """What `--baseline` and `--fail-on-regression` ask for. UsageError where there is no such baseline."""
    if text is None and fail_on is not None:
        raise UsageError("--fail-on-regression needs something to compare with: --baseline COMMIT|RESULT")
    return None if text is None else Baseline(baseline_of(text, store, root, apart_from=apart_from), fail_on)


def planned_baseline(
    plan: Plan,
    store: ResultsStore,
    fail_on: FailOn | None,
    warn: Callable[[str], None],
    *,
    anywhere: bool = False,
) -> Baseline | None:
    """What a submission was started with, for a command that names none itself. `anywhere`: a place outside of `store`
    is opened, too, which a plan that others may have written must not make us do.

    One that cannot be opened is a warning, and UsageError where the gate counts regressions; so is a `fail_on` that has
    nothing to count.
    """
    planned = plan.baseline
    if planned is None:
        return asked_baseline(None, fail_on, store, Path())
    counts = fail_on or cast("FailOn | None", planned.fail_on)
    try:
        return Baseline(_opened(planned.artifact, store, anywhere=anywhere), counts)
    except (UsageError, StorageError) as gone:
        reason = f"the baseline of {plan.id} cannot be read, --baseline RESULT names another: {gone.message}"
        if counts is not None:
            raise UsageError(reason) from gone
        warn(reason)
        return None


def _opened(artifact: str, store: ResultsStore, *, anywhere: bool) -> Result:
    if ARTIFACT_NAME.fullmatch(artifact) and store.exists(f"{artifact}/suite.json"):
        return open_artifact(store, artifact)
    if anywhere:
        return open_result(artifact)
    raise UsageError(f"{artifact} is not in {store.shown()}")


def baseline_of(
    text: str, store: ResultsStore, root: Path, *, apart_from: str | None = None, what: str = "--baseline"
) -> Result:
    """The artifact that `--baseline COMMIT|RESULT` names: folder, URL, name or submission of the results folder, or the
    newest complete artifact of a commit (hex digits, or anything that git knows).

    `apart_from`: the artifact that is compared with it. `what`: how the word is called in its error. UsageError where
    there is none.
    """
    if is_result(text):
        return open_result(text)
    name = find(store, text)
    if name is not None:
        return open_artifact(store, name)
    commit = _commit(text, root)
    for name in list_results(store):
        if commit is not None and name != apart_from and _is_of(store, name, commit):
            opened = open_artifact(store, name)
            if (opened.summary or {}).get("verdict") not in (None, "incomplete"):
                return opened
    if commit is None:
        raise UsageError(
            f"{what} {text}: neither a result nor a commit; give a folder of {store.shown()}, or a commit that has "
            "a result there"
        )
    other = "other " if apart_from else ""
    raise UsageError(
        f"{what} {text}: {store.shown()} holds no {other}complete result of commit {commit[:12]}; check it out and "
        "run `evalfleet eval`, or name a result"
    )


def _commit(text: str, root: Path) -> str | None:
    """The commit as artifacts have it; a beginning of one stays what it is where git does not know it."""
    repo = open_repo(root)
    known = None if repo is None or text.startswith("-") else repo.commit_of(text)
    return known or (text.lower() if re.fullmatch(r"[0-9a-fA-F]{7,40}", text) else None)


def _is_of(store: ResultsStore, name: str, commit: str) -> bool:
    try:
        return store.exists(f"{name}/suite.json") and read_plan(store, name).commit.startswith(commit)
    except StorageError:  # another evalfleet's, or damaged
        return False


def _contents(plan: Plan, today: Today | None) -> list[tuple[str, Scenario, Mapping[str, Any]]]:
    """(key, the scenario, what decides its verdict) for every scored one, as `S10` counts a suite's version: how it is
    spelt does not count, what was said before it in its conversation does."""
    found: list[tuple[str, Scenario, Mapping[str, Any]]] = []
    for case in plan.cases:
        for number, planned in enumerate(case.scenarios):
            if planned.evaluation is None:
                continue
            by = (today.scenario(case.name, planned.scenario.id) if today is not None else None) or planned.scenario
            content = {
                "turns": list(by.user),
                "turns before it": [list(earlier.scenario.user) for earlier in case.scenarios[:number]],
                "expectations": [expectation.document() for expectation in by.expect],
                "timeout": by.timeout,
                "graders": plan.graders.version if by.graders and plan.graders is not None else None,
            }
            found.append((case_key(case.name, planned.scenario.id), planned.scenario, content))
    return found


def _nothing_paired(place: str, comparison: Comparison) -> str:
    counts = [
        (len(comparison.changed), "changed since"),
        (len(comparison.other_k), "with another number of trials"),
        (len(comparison.new), "new"),
        (len(comparison.removed), "removed"),
        (len(comparison.not_selected), "not selected"),
    ]
    said = ", ".join(f"{number} {what}" for number, what in counts if number)
    return (
        f"nothing to compare with {place}: no scenario is in both with the same content and number of trials ({said})"
    )


def _note(baseline: Result, plan: Plan, today: Today | None) -> str:
    if today is not None or baseline.plan.scorer == plan.scorer:
        return ""
    return (
        f"they were judged by different rules ({baseline.plan.scorer.version} and {plan.scorer.version}): "
        f"`evalfleet score RESULT --baseline {baseline.place}` judges both by today's"
    )
