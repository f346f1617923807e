"""What does an old artifact say by today's rules and today's case files? (S32)

A pure function: nothing is run, no grader is asked. A scenario is judged anew where its turns, and those before it in
its conversation, are what was played; where they are not it is *stale* and keeps what was recorded.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from evalfleet.artifact import Result
from evalfleet.checks.case import LoadedCases
from evalfleet.checks.outcome import GraderAnswer, Judgement, Meaning, RunMeaning, judge, meaning_of
from evalfleet.checks.scenario import Scenario
from evalfleet.checks.text import trial_number
from evalfleet.checks.trial import Trial, TurnRecord, TurnSummary
from evalfleet.errors import CaseFilesInvalid
from evalfleet.evidence import AttemptKey
from evalfleet.plan import Plan, PlannedCase
from evalfleet.quarantine import Quarantine
from scheduler.changes import ChangeCounter, Changes
from scheduler.plan import SCORER
from scheduler.summary import Summary, summed_up
from scheduler.tallies import PlanLines

_STATUS = {"pass": "passed", "flaky": "flaky", "fail": "failed"}


@dataclass(frozen=True, slots=True)
class Rescored:
    """`summary`: the artifact as it is judged now; `before`: as it was recorded; `today`: who judged, None where nobody
    did."""

    summary: Summary
    before: Summary
    changes: Changes
    today: Today | None


def score(
    result: Result,
    cases: LoadedCases | None = None,
    *,
    as_recorded: bool = False,
    quarantine: Iterable[Quarantine] | None = None,
) -> Summary:
    """The summary of an artifact. `cases`: those of the tree; None judges by the cases as they were recorded.
    `quarantine`: what does not gate today; None: what did not then.

    Each scenario says what it was where its verdict changed, and why where it is stale. CaseFilesInvalid if the tree's
    case files have problems.
    """
    return rescored(result, None if as_recorded else Today(result.plan, cases), quarantine).summary


def rescored(result: Result, today: Today | None, quarantine: Iterable[Quarantine] | None = None) -> Rescored:
    """The artifact judged anew, line by line; None: as it was recorded. `quarantine` as for `score`."""
    if today is None:
        summary = recorded(result)
        return Rescored(summary, summary, Changes(), None)
    was, now, counter = PlanLines(result.plan), PlanLines(result.plan), ChangeCounter()
    for line in all_lines(result):
        judged = today.judged(line)
        was.add(line)
        now.add(judged)
        counter.add(line, judged)
    return set_against(_as_stored(result, was), _as_stored(result, now, quarantine), counter, today)


def set_against(before: Summary, after: Summary, counter: ChangeCounter, today: Today) -> Rescored:
    """What is judged now, each scenario with what it was."""
    changes = counter.changes(before, after, causes=today.causes(), stale=today.stale)
    scenarios = [
        replace(
            new,
            stale=today.stale.get((new.case, new.scenario)),
            was=old.verdict if old.verdict != new.verdict else None,
        )
        for old, new in zip(before.scenarios, after.scenarios, strict=True)
    ]
    return Rescored(replace(after, scenarios=tuple(scenarios)), before, changes, today)


def recorded(result: Result) -> Summary:
    """The summary as the lines have it, without judging anything."""
    kept = PlanLines(result.plan)
    for line in all_lines(result):
        kept.add(line)
    return _as_stored(result, kept)


class Today:
    """Judges attempt lines of a plan by the rules of this version and the cases given.

    `ask_again`: graders are asked anew, so one that was not asked then makes nothing stale. `stale`: (case, scenario) →
    why its lines keep what was recorded. Trial records that cannot be read are found while judging, and join it then.
    """

    def __init__(self, plan: Plan, cases: LoadedCases | None, *, ask_again: bool = False) -> None:
        if cases is not None and cases.problems:
            raise CaseFilesInvalid(cases.problems)
        self.stale: dict[tuple[str, str], str] = {}
        self.cases = cases
        self._plan = plan
        self._ask_again = ask_again
        self._infra_codes = plan.infra_codes
        self._scenarios: dict[tuple[str, str], Scenario] = {}
        # By scenario: the rows of a suite are cases of one name, each with one scenario of its own.
        files = {(c.name, s.id): c.scenarios for c in (() if cases is None else cases.cases) for s in c.scenarios}
        names = {name for name, _ in files}
        for case in plan.cases:
            for index, planned in enumerate(case.scenarios):
                key = (case.name, planned.scenario.id)
                if cases is None:
                    self._scenarios[key] = planned.scenario
                    continue
                there_is = case.name in names
                chosen = _counterpart(case, index, files.get(key), there_is=there_is, ask_again=ask_again)
                if isinstance(chosen, str):
                    self.stale[key] = chosen
                else:
                    own = chosen.timeout if plan.timeout is None else plan.timeout
                    self._scenarios[key] = replace(chosen, timeout=own)

    def scenario(self, case: str, scenario: str) -> Scenario | None:
        """What a scenario is judged by; None where it is stale."""
        return self._scenarios.get((case, scenario))

    def causes(self) -> dict[tuple[str, str], str]:
        """For what is judged anew: what changed since it was recorded."""
        planned = {(case.name, p.scenario.id): p.scenario for case in self._plan.cases for p in case.scenarios}
        return {key: self._cause(planned[key], scenario) for key, scenario in self._scenarios.items()}

    def _cause(self, then: Scenario, now: Scenario) -> str:
        parts = []
        if [e.document() for e in then.expect] != [e.document() for e in now.expect]:
            parts.append("its expectations changed")
        if then.timeout != now.timeout:
            parts.append("its timeout changed")
        if self._plan.scorer != SCORER:
            parts.append(f"the rules changed, from {self._plan.scorer.version} to {SCORER.version}")
        if self._ask_again and now.graders:
            parts.append("its graders were asked again")
        return "; ".join(parts)

    def judged(self, line: Mapping[str, Any]) -> Mapping[str, Any]:
        """The line with today's outcome; as it is where there is nothing to judge, or it is stale."""
        played = self.played(line)
        if played is None:
            return line
        try:
            answers = [GraderAnswer.from_json(answer) for answer in line.get("graders") or ()]
        except ValueError as problem:
            self._unreadable(line, problem)
            return line
        answers = _in_order(played.scenario, answers)
        judgement = judge(played.scenario, played.trial, played.meaning, answers)
        return judged_line(line, played, judgement)

    def played(self, line: Mapping[str, Any]) -> Played | None:
        """What there is to judge of a line, None where it stays as it is."""
        scenario = self._scenarios.get((line["case"], line["scenario"]))
        if (
            scenario is None
            or line.get("context")
            or line.get("recorded") == "elsewhere"
            or not line.get("trial_record")
        ):
            return None
        try:
            trial = Trial.from_json(line["trial_record"])
            return Played(scenario, trial, self._meaning(RunMeaning.from_json(line["meaning"]), trial, scenario))
        except ValueError as problem:
            self._unreadable(line, problem)
            return None

    def _unreadable(self, line: Mapping[str, Any], problem: ValueError) -> None:
        self.stale[line["case"], line["scenario"]] = f"trial {trial_number(line['trial'])} cannot be read: {problem}"

    def _meaning(self, recorded_meaning: RunMeaning, trial: Trial, scenario: Scenario) -> RunMeaning:
        """What the runs mean by today's timeout. What ended a run before its own end stays: it was cut off by it, and
        nobody knows how it would have gone on."""
        if recorded_meaning.meaning is not Meaning.RESULT:
            return recorded_meaning
        turns = [TurnRecord(turn.user, _run(turn), (), (), ()) for turn in trial.turns]
        return meaning_of(turns, timeout=scenario.timeout, infra_codes=self._infra_codes, not_played=trial.not_played)


@dataclass(frozen=True, slots=True)
class Played:
    """A recorded trial, and what it is judged by today."""

    scenario: Scenario
    trial: Trial
    meaning: RunMeaning


def judged_line(line: Mapping[str, Any], played: Played, judgement: Judgement) -> dict[str, Any]:
    """The line with another judgement."""
    return {
        **line,
        "outcome": judgement.outcome,
        "reason": judgement.reason,
        "meaning": played.meaning.to_json(),
        "findings": [finding.to_json() for finding in judgement.findings],
        "judge_score": judgement.judge_score,
        "judge_feedback": judgement.judge_feedback,
    }


def _counterpart(
    case: PlannedCase, index: int, today: Sequence[Scenario] | None, *, there_is: bool, ask_again: bool
) -> Scenario | str:
    """The scenario of today's file that a planned one is judged by, or why there is none. `today`: the scenarios of its
    conversation; `there_is` a case of that name."""
    planned = case.scenarios[index].scenario
    if not there_is:
        return f"there is no case {case.name} any more"
    if today is None:
        return f"there is no scenario {planned.id} in {case.name} any more"
    file = list(today)
    found = next(number for number, scenario in enumerate(file) if scenario.id == planned.id)
    scenario = file[found]
    if scenario.user != planned.user:
        return "its turns changed since"
    if [s.user for s in file[:found]] != [p.scenario.user for p in case.scenarios[:index]]:
        return "the turns before it changed since"
    unasked = Counter(g.name for g in scenario.graders) - Counter(g.name for g in planned.graders)
    if unasked and not ask_again:
        return f"{', '.join(sorted(unasked))} was not asked then"
    return scenario


def _in_order(scenario: Scenario, answers: list[GraderAnswer]) -> list[GraderAnswer]:
    """The recorded answers in the order today's scenario calls its graders; it stops at the first that is not there."""
    left = list(answers)
    ordered = []
    for grader in scenario.graders:
        answer = next((answer for answer in left if answer.name == grader.name), None)
        if answer is None:
            break
        left.remove(answer)
        ordered.append(answer)
    return ordered


def _run(turn: TurnSummary) -> dict[str, Any]:
    return {
        "id": turn.run_id,
        "status": turn.status,
        "failure": turn.failure,
        "started_at": turn.started_at,
        "completed_at": turn.completed_at,
    }


def all_lines(result: Result) -> Iterator[Mapping[str, Any]]:
    """The lines, and one for each attempt of which only the stored summary knows that it is recorded elsewhere."""
    yield from result.lines()
    yield from (line for key, line in _elsewhere(result.summary or {}) if not result.places.has(key))


def _as_stored(result: Result, kept: PlanLines, quarantine: Iterable[Quarantine] | None = None) -> Summary:
    """With what the stored summary knows and no line does: the evaluations' state, and why attempts without any line
    are missing."""
    stored = result.summary or {}
    seconds = stored.get("seconds")
    summary = summed_up(
        kept,
        artifact=result.place,
        evaluations=_evaluations(stored),
        reasons={key: reason for key, reason in _reasons(stored).items() if not result.places.has(key)},
        seconds=seconds if isinstance(seconds, int | float) else None,
        quarantine=_quarantine(result) if quarantine is None else quarantine,
    )
    return replace(summary, missing_allowed=stored.get("missing_allowed") is True)


def _quarantine(result: Result) -> Iterable[Quarantine]:
    """As it was at the end of the last command; before that, as it was planned."""
    if result.summary is None:
        return result.plan.quarantine
    found = []
    for scenario in _scenarios(result.summary):
        entry = scenario.get("quarantine")
        if isinstance(entry, Mapping):
            key = f"{scenario['case']}/{scenario.get('scenario')}"
            with contextlib.suppress(KeyError, TypeError, ValueError):  # somebody else wrote there
                found.append(Quarantine.from_json({"scenario": key, **entry}))
    return found


def _scenarios(stored: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for scenario in stored.get("scenarios") or ():
        if isinstance(scenario, Mapping) and isinstance(scenario.get("case"), str):
            yield scenario


def _elsewhere(stored: Mapping[str, Any]) -> Iterator[tuple[AttemptKey, dict[str, Any]]]:
    for scenario in _scenarios(stored):
        for trial in scenario.get("recorded_elsewhere") or ():
            key = (scenario["case"], str(scenario.get("scenario")), trial)
            names = dict(zip(("case", "scenario", "trial"), key, strict=True))
            yield key, {**names, "outcome": "missing", "recorded": "elsewhere"}


def _evaluations(stored: Mapping[str, Any]) -> list[dict[str, Any]]:
    cases = [
        {
            "key": f"{scenario['case']}/{scenario.get('scenario')}",
            "status": _STATUS.get(str(scenario.get("verdict")), ""),
        }
        for scenario in _scenarios(stored)
    ]
    return [
        {
            "id": evaluation.get("id"),
            "status": evaluation.get("status", "unknown"),
            "metrics": evaluation,
            "cases": cases,
        }
        for evaluation in stored.get("evaluations") or ()
        if isinstance(evaluation, Mapping)
    ]


def _reasons(stored: Mapping[str, Any]) -> dict[AttemptKey, str]:
    return {
        (scenario["case"], str(scenario.get("scenario")), int(trial)): str(reason)
        for scenario in _scenarios(stored)
        for trial, reason in (scenario.get("missing_attempts") or {}).items()
        if str(trial).isdecimal()
    }
