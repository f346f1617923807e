"""What does an old artifact say by today's rules and today's case files? (S32)

A pure function: nothing is run, no grader is asked. A scenario is judged anew where its turns, and those before it in
its conversation, are what was played; where they are not it is *stale* and keeps what was recorded.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

from evalfleet.artifact import Result
from evalfleet.checks.case import LoadedCases
from evalfleet.checks.outcome import GraderAnswer, Meaning, RunMeaning, judge, meaning_of
from evalfleet.checks.scenario import Scenario
from evalfleet.checks.trial import Trial, TurnRecord, TurnSummary
from evalfleet.errors import CaseFilesInvalid
from evalfleet.evidence import AttemptKey
from evalfleet.plan import Plan, PlannedCase
from evalfleet.quarantine import Quarantine
from scheduler.summary import Summary, summarize

_STATUS = {"pass": "passed", "flaky": "flaky", "fail": "failed"}


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
    before = recorded(result)
    if as_recorded:
        return before
    today = Today(result.plan, cases)
    after = _summarized(result, map(today.judged, result.lines()), quarantine)
    scenarios = [
        replace(
            new,
            stale=today.stale.get((new.case, new.scenario)),
            was=old.verdict if old.verdict != new.verdict else None,
        )
        for old, new in zip(before.scenarios, after.scenarios, strict=True)
    ]
    return replace(after, scenarios=tuple(scenarios))


def recorded(result: Result) -> Summary:
    """The summary as the lines have it, without judging anything."""
    return _summarized(result, result.lines())


class Today:
    """Judges attempt lines of a plan by the rules of this version and the cases given.

    `stale`: (case, scenario) → why its lines keep what was recorded. Trial records that cannot be read are found while
    judging, and join it then.
    """

    def __init__(self, plan: Plan, cases: LoadedCases | None) -> None:
        if cases is not None and cases.problems:
            raise CaseFilesInvalid(cases.problems)
        self.stale: dict[tuple[str, str], str] = {}
        self._infra_codes = plan.infra_codes
        self._scenarios: dict[tuple[str, str], Scenario] = {}
        files = None if cases is None else {case.name: case.scenarios for case in cases.cases}
        for case in plan.cases:
            for index, planned in enumerate(case.scenarios):
                key = (case.name, planned.scenario.id)
                if files is None:
                    self._scenarios[key] = planned.scenario
                    continue
                chosen = _counterpart(case, index, files.get(case.name))
                if isinstance(chosen, str):
                    self.stale[key] = chosen
                else:
                    own = chosen.timeout if plan.timeout is None else plan.timeout
                    self._scenarios[key] = replace(chosen, timeout=own)

    def scenario(self, case: str, scenario: str) -> Scenario | None:
        """What a scenario is judged by; None where it is stale."""
        return self._scenarios.get((case, scenario))

    def judged(self, line: Mapping[str, Any]) -> Mapping[str, Any]:
        """The line with today's outcome; as it is where there is nothing to judge, or it is stale."""
        key = (line["case"], line["scenario"])
        scenario = self._scenarios.get(key)
        if (
            scenario is None
            or line.get("context")
            or line.get("recorded") == "elsewhere"
            or not line.get("trial_record")
        ):
            return line
        try:
            trial = Trial.from_json(line["trial_record"])
            meaning = self._meaning(RunMeaning.from_json(line["meaning"]), trial, scenario)
            answers = _in_order(scenario, [GraderAnswer.from_json(answer) for answer in line.get("graders") or ()])
        except ValueError as problem:
            self.stale[key] = f"trial {line['trial']} cannot be read: {problem}"
            return line
        judgement = judge(scenario, trial, meaning, answers)
        return {
            **line,
            "outcome": judgement.outcome,
            "reason": judgement.reason,
            "meaning": meaning.to_json(),
            "findings": [finding.to_json() for finding in judgement.findings],
            "judge_score": judgement.judge_score,
            "judge_feedback": judgement.judge_feedback,
        }

    def _meaning(self, recorded_meaning: RunMeaning, trial: Trial, scenario: Scenario) -> RunMeaning:
        """What the runs mean by today's timeout. What ended a run before its own end stays: it was cut off by it, and
        nobody knows how it would have gone on."""
        if recorded_meaning.meaning is not Meaning.RESULT:
            return recorded_meaning
        turns = [TurnRecord(turn.user, _run(turn), (), (), ()) for turn in trial.turns]
        return meaning_of(turns, timeout=scenario.timeout, infra_codes=self._infra_codes, not_played=trial.not_played)


def _counterpart(case: PlannedCase, index: int, today: Iterable[Scenario] | None) -> Scenario | str:
    """The scenario of today's file that a planned one is judged by, or why there is none."""
    planned = case.scenarios[index].scenario
    if today is None:
        return f"there is no case {case.name} any more"
    file = list(today)
    found = next((number for number, scenario in enumerate(file) if scenario.id == planned.id), None)
    if found is None:
        return f"there is no scenario {planned.id} in {case.name} any more"
    scenario = file[found]
    if scenario.user != planned.user:
        return "its turns changed since"
    if [s.user for s in file[:found]] != [p.scenario.user for p in case.scenarios[:index]]:
        return "the turns before it changed since"
    unasked = Counter(g.name for g in scenario.graders) - Counter(g.name for g in planned.graders)
    if unasked:
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


def _summarized(
    result: Result, lines: Iterable[Mapping[str, Any]], quarantine: Iterable[Quarantine] | None = None
) -> Summary:
    """With what the stored summary knows and no line does: the evaluations' state, what is recorded elsewhere, and why
    attempts without any line are missing."""
    stored = result.summary or {}
    seconds = stored.get("seconds")
    written = result.places
    summary = summarize(
        result.plan,
        chain(lines, (line for key, line in _elsewhere(stored) if not written.has(key))),
        artifact=result.place,
        evaluations=_evaluations(stored),
        reasons={key: reason for key, reason in _reasons(stored).items() if not written.has(key)},
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
