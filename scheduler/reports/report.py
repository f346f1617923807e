"""What is every report made of, and what does a scenario count as in all of them?

A report says what the exit code says (S36): whoever reads the file alone must not come to another conclusion than
whoever looks at the command. So each scenario *stands* in one way, decided here and nowhere else.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from evalfleet.artifact import Result
from evalfleet.checks.comparison import Pair
from evalfleet.checks.place import Place
from evalfleet.checks.scenario import Scenario, case_key
from evalfleet.checks.text import one_line
from evalfleet.plan import Plan
from scheduler.changes import Changes
from scheduler.compare import Compared
from scheduler.gate import lost
from scheduler.score import Today
from scheduler.summary import ScenarioSummary, Summary

MOST_OF_A_SENTENCE = 2000
"""Characters; the sentences that evalfleet makes are shorter, and an old artifact may hold anything."""


class Standing(enum.Enum):
    """PASSED: nothing to do (or flaky, where that is allowed). FAILED and ERROR lose the gate; an error comes first,
    since whoever broke there is not the agent (S16). REGRESSED loses it too: it got worse than the baseline, and that
    counts (S31). INCOMPLETE: attempts are missing or not recorded yet, and can be resumed (S18). APART: it did not pass
    and does not gate, because it is in quarantine, or so many attempts may be missing."""

    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"
    REGRESSED = "regressed"
    INCOMPLETE = "incomplete"
    APART = "apart"


GATING = frozenset({Standing.FAILED, Standing.ERROR, Standing.REGRESSED, Standing.INCOMPLETE})
"""What makes the exit code another than 0."""


@dataclass(frozen=True, slots=True)
class Report:
    """A result with its evidence. `line(case, scenario, trial)` is the attempt's line as it is judged now, or None;
    `scenario(case, scenario)` what it was judged by. `base_url`: a platform on which runs can be read, or None.
    `ended`: why the command ended early, in words, or "". `changes`: what was judged anew; `compared`: the result
    beside a baseline."""

    summary: Summary
    exit_code: int
    plan: Plan
    line: Callable[[str, str, int], Mapping[str, Any] | None]
    scenario: Callable[[str, str], Scenario]
    allow_flaky: bool = False
    ended: str = ""
    changes: Changes | None = None
    compared: Compared | None = None

    @property
    def base_url(self) -> str | None:
        return self.plan.target.base_url

    def document(self) -> dict[str, Any]:
        """The one object of `--json`."""
        return result_document(self.summary, self.exit_code, self.changes, self.compared)

    def standing(self, scenario: ScenarioSummary) -> Standing:
        if scenario.quarantine is not None and not scenario.unrecorded:
            return Standing.PASSED if scenario.verdict == "pass" else Standing.APART
        if scenario.quarantine is not None:
            return Standing.INCOMPLETE
        if scenario.errors:
            return Standing.ERROR
        allowed = self.summary.missing_allowed
        if lost(scenario, allow_flaky=self.allow_flaky, allow_missing=allowed):
            return Standing.FAILED
        if self.worse(scenario) is not None:
            return Standing.REGRESSED
        if len(scenario.unrecorded) > (len(scenario.refused) if allowed else 0):
            return Standing.INCOMPLETE
        if scenario.verdict != "incomplete":
            return Standing.PASSED
        return Standing.APART if allowed and scenario.missing else Standing.INCOMPLETE

    def worse(self, scenario: ScenarioSummary) -> Pair | None:
        """How it got worse than the baseline, where the gate counts that."""
        return None if self.compared is None else self.compared.worse.get(case_key(scenario.case, scenario.scenario))

    def apart(self, scenario: ScenarioSummary) -> str:
        """Why one that stands apart does."""
        if scenario.quarantine is not None:
            return one_line(str(scenario.quarantine), MOST_OF_A_SENTENCE)
        recorded = scenario.trials - len(scenario.missing)
        return f"{recorded} of {scenario.trials} recorded; what is missing is allowed to be"

    def lines(self, scenario: ScenarioSummary) -> Iterator[tuple[int, Mapping[str, Any] | None]]:
        """(trial, its line) for every trial; one line in memory at a time."""
        for trial in range(scenario.trials):
            yield trial, self.line(scenario.case, scenario.scenario, trial)

    def file(self, case: str) -> str:
        """The case's file from the tree's root."""
        return next((planned.file for planned in self.plan.cases if planned.name == case), "")


def report_of(
    result: Result,
    summary: Summary,
    exit_code: int,
    *,
    today: Today | None = None,
    allow_flaky: bool = False,
    ended: str = "",
    changes: Changes | None = None,
    compared: Compared | None = None,
) -> Report:
    """The report of an artifact. `today` judges its lines anew, as it did for the summary; None: as recorded."""
    planned = {(case.name, p.scenario.id): p.scenario for case in result.plan.cases for p in case.scenarios}

    def line(case: str, scenario: str, trial: int) -> Mapping[str, Any] | None:
        found = result.places.attempt((case, scenario, trial))
        return found if found is None or today is None else today.judged(found)

    def scenario(case: str, id_: str) -> Scenario:
        judged_by = None if today is None else today.scenario(case, id_)
        return judged_by or planned[case, id_]

    return Report(summary, exit_code, result.plan, line, scenario, allow_flaky, ended, changes, compared)


def result_document(
    summary: Summary, exit_code: int, changes: Changes | None = None, compared: Compared | None = None
) -> dict[str, Any]:
    """The one object of `--json`, with what was judged anew and what a baseline says, where that was asked for."""
    document = summary.document(exit_code)
    document |= {} if changes is None else {"changes": changes.document()}
    return document | ({} if compared is None else {"comparison": compared.document()})


def failures(scenario: Scenario, line: Mapping[str, Any]) -> Iterator[tuple[Place, str]]:
    """(place, sentence) for each assertion that an attempt did not pass; where none of them is the reason (a timeout, a
    scenario that was not played) the scenario's own place with the reason."""
    meaning = line.get("meaning")
    by_assertion = isinstance(meaning, Mapping) and meaning.get("meaning") == "result"
    record = line.get("trial_record")
    if isinstance(record, Mapping) and record.get("not_played"):
        by_assertion = False
    wanted = {"failed": False, "error": None}.get(str(line.get("outcome")), False)
    found = False
    for finding in (line.get("findings") or ()) if by_assertion else ():
        if finding.get("passed") is wanted or finding.get("passed") is False:
            index = finding.get("index")
            known = isinstance(index, int) and 0 <= index < len(scenario.expect)
            place = scenario.expect[index].place if known else None
            found = True
            sentence = f"{finding.get('kind')}: {finding.get('sentence')}"
            yield place or scenario.place, one_line(sentence, MOST_OF_A_SENTENCE)
    if not found:
        yield scenario.place, one_line(str(line.get("reason") or "no reason was given"), MOST_OF_A_SENTENCE)
