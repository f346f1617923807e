"""What is the verdict, and what did it cost?

A pure function of the plan and its attempt lines, in any order, and of the evaluations as the server has them, where
they were read. Nothing here prints (see `scheduler.render`) or decides what is missing (I1).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any

from evalfleet.checks.verdict import (
    CaseAttempts,
    Rate,
    ScenarioTally,
    evaluation_rates,
    pass_at_1,
    pass_at_k,
    pass_hat_k,
)
from evalfleet.evidence import EVIDENCE, AttemptKey
from evalfleet.plan import Plan
from scheduler.gate import exit_code
from scheduler.spend import Spend, SpendCounter

__all__ = [
    "EvaluationSummary",
    "MissingAttempt",
    "ScenarioSummary",
    "Spend",
    "Summary",
    "exit_code",
    "overall",
    "summarize",
]

NOT_PLAYED = "not played yet"

VERDICT_OF_STATUS = {"passed": "pass", "flaky": "flaky", "failed": "fail"}
"""What a case's status on the API says as our verdict; every other status is incomplete (S29)."""


@dataclass(frozen=True, slots=True)
class MissingAttempt:
    """An attempt without a result, and why (S16)."""

    trial: int
    reason: str


@dataclass(frozen=True, slots=True)
class ScenarioSummary:
    """One scenario. `passed + failed + errors + len(missing) + len(elsewhere) == trials`.

    `elsewhere`: trials that the evaluation holds and this artifact has no evidence of; how they went is not known, and
    the verdict is the case status of the evaluation (S35). `unrecorded`: trials with evidence that the evaluation does
    not hold yet. `first_failure`: of the first trial that failed or ended in an error, in its own words; else why the
    first missing one is. `duration_ms`: median over trials with evidence. `stale`: why today's case file was not
    applied (S32). `was`: the recorded verdict, where scoring again gave another.
    """

    case: str
    scenario: str
    evaluation: int
    trials: int
    passed: int
    failed: int
    errors: int
    missing: tuple[MissingAttempt, ...]
    elsewhere: tuple[int, ...]
    unrecorded: tuple[int, ...]
    verdict: str
    first_failure: str | None
    first_failure_trial: int | None
    duration_ms: int | None
    stale: str | None = None
    was: str | None = None

    def document(self) -> dict[str, Any]:
        """The scenario in `--json`. Counts that are not known are null."""
        known = not self.elsewhere
        return {
            "case": self.case,
            "scenario": self.scenario,
            "verdict": self.verdict,
            "trials": self.trials,
            "passed": self.passed if known else None,
            "failed": self.failed if known else None,
            "errors": self.errors if known else None,
            "missing": len(self.missing),
            "first_failure": self.first_failure,
            "duration_ms": self.duration_ms,
        }


@dataclass(frozen=True, slots=True)
class EvaluationSummary:
    """One evaluation: all scored scenarios of one trials number (S10). Rates as in S30, each with what it stands on.

    `recorded` and `missing` count attempts; `scenarios` scenarios.
    """

    id: str | None
    k: int
    status: str
    scenarios: int
    recorded: int
    missing: int
    pass_at_1: Rate
    pass_at_k: Rate
    pass_hat_k: Rate
    judge_score: float | None

    def document(self) -> dict[str, Any]:
        """The evaluation in `--json`."""
        return {
            "id": self.id,
            "k": self.k,
            "status": self.status,
            "pass_at_1": self.pass_at_1.value,
            "pass_hat_k": self.pass_hat_k.value,
        }


@dataclass(frozen=True, slots=True)
class Summary:
    """A submission's result. `seconds`: wall time, where it is known. `artifact`: what a person opens."""

    submission: str
    artifact: str
    commit: str
    verdict: str
    scenarios: tuple[ScenarioSummary, ...]
    evaluations: tuple[EvaluationSummary, ...]
    spend: Spend
    context_turns: int
    seconds: float | None = None

    @property
    def missing(self) -> int:
        return sum(len(scenario.missing) for scenario in self.scenarios)

    @property
    def unrecorded(self) -> int:
        return sum(len(scenario.unrecorded) for scenario in self.scenarios)

    @property
    def attempts(self) -> int:
        return sum(scenario.trials for scenario in self.scenarios)

    def document(self, exit_code: int) -> dict[str, Any]:
        """The one object of `--json`."""
        return {
            "verdict": self.verdict,
            "exit_code": exit_code,
            "submission": self.submission,
            "artifact": self.artifact,
            "commit": self.commit,
            "spend": self.spend.document(),
            "evaluations": [evaluation.document() for evaluation in self.evaluations],
            "scenarios": [scenario.document() for scenario in self.scenarios],
        }

    def stored(self, exit_code: int) -> dict[str, Any]:
        """`summary.json`: the same object and what only a later reader needs (docs/artifact.md)."""
        document = self.document(exit_code)
        for shown, scenario in zip(document["scenarios"], self.scenarios, strict=True):
            shown["missing_attempts"] = {str(attempt.trial): attempt.reason for attempt in scenario.missing}
            shown["recorded_elsewhere"] = list(scenario.elsewhere)
        for shown, evaluation in zip(document["evaluations"], self.evaluations, strict=True):
            shown |= {
                "scenarios": evaluation.scenarios,
                "recorded": evaluation.recorded,
                "missing": evaluation.missing,
                "rates": {
                    name: {"value": rate.value, "n": rate.n, "low": rate.low, "high": rate.high}
                    for name, rate in (
                        ("pass_at_1", evaluation.pass_at_1),
                        ("pass_at_k", evaluation.pass_at_k),
                        ("pass_hat_k", evaluation.pass_hat_k),
                    )
                },
                "judge_score": evaluation.judge_score,
            }
        return {"format": 1, **document, "context_turns": self.context_turns, "seconds": self.seconds}


def summarize(
    plan: Plan,
    lines: Iterable[Mapping[str, Any]],
    *,
    artifact: str,
    evaluations: Iterable[Mapping[str, Any]] = (),
    reasons: Mapping[AttemptKey, str] | None = None,
    seconds: float | None = None,
) -> Summary:
    """The summary of a plan.

    `lines`: attempt lines in any order; for an attempt that has several, evidence counts before missing, and the first
    of equals. `evaluations`: documents of `GET /v2/evaluations/{id}`; those not given are known from the lines alone.
    `reasons`: why attempts without a line are missing. `artifact`: where a person finds it.
    """
    spend = SpendCounter()
    seen: dict[AttemptKey, _Seen] = {}
    for line in lines:
        spend.add(line)
        if not line.get("context"):
            _take(seen, line)
    documents = {str(document["id"]): document for document in evaluations}
    found = [_Evaluation(plan, index, documents) for index in range(len(plan.evaluations))]
    scenarios = []
    for case in plan.cases:
        for planned in case.scenarios:
            if planned.evaluation is not None:
                id_, trials = planned.scenario.id, planned.scenario.trials
                attempts = {n: seen[key] for n in range(trials) if (key := (case.name, id_, n)) in seen}
                why = {n: reason for n in range(trials) if (reason := (reasons or {}).get((case.name, id_, n)))}
                scenarios.append(found[planned.evaluation].scenario(case.name, id_, trials, attempts, why))
    return Summary(
        submission=plan.id,
        artifact=artifact,
        commit=plan.commit,
        verdict=overall(scenario.verdict for scenario in scenarios),
        scenarios=tuple(scenarios),
        evaluations=tuple(evaluation.summary() for evaluation in found),
        spend=spend.total(),
        context_turns=plan.context_turns(),
        seconds=seconds,
    )


def overall(verdicts: Iterable[str]) -> str:
    """`suite_verdict` for verdicts: a scenario that was recorded elsewhere has no tally."""
    words = set(verdicts) or {"incomplete"}
    return next(word for word in ("fail", "incomplete", "flaky", "pass") if word in words)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the summary keeps of a line."""

    outcome: str
    reason: str | None
    duration_ms: int | None
    score: Decimal | None
    elsewhere: bool


def _take(seen: dict[AttemptKey, _Seen], line: Mapping[str, Any]) -> None:
    key = (line["case"], line["scenario"], line["trial"])
    record = line.get("trial_record")
    duration = record.get("duration_ms") if isinstance(record, Mapping) else None
    new = _Seen(
        outcome=line["outcome"] if line["outcome"] in EVIDENCE else "missing",
        reason=line.get("reason"),
        duration_ms=duration if isinstance(duration, int) else None,
        score=_decimal(line.get("judge_score")),
        elsewhere=line.get("recorded") == "elsewhere",
    )
    known = seen.get(key)
    if known is None or (known.outcome == "missing" and new.outcome != "missing"):
        seen[key] = new if known is None or not known.elsewhere else _elsewhere(new)
    elif new.elsewhere:
        seen[key] = _elsewhere(known)


def _elsewhere(seen: _Seen) -> _Seen:
    return _Seen(seen.outcome, seen.reason, seen.duration_ms, seen.score, elsewhere=True)


def _decimal(value: Any) -> Decimal | None:
    try:
        number = Decimal(value) if isinstance(value, str | int) else None
    except InvalidOperation:
        return None
    return number if number is not None and number.is_finite() else None


@dataclass
class _Evaluation:
    """Gathers one evaluation: what the server says of it and what its scenarios add up to."""

    plan: Plan
    index: int
    documents: Mapping[str, Mapping[str, Any]]
    tallies: list[ScenarioTally] = field(default_factory=list)
    attempts: list[CaseAttempts] = field(default_factory=list)
    unknown: bool = False

    def __post_init__(self) -> None:
        self.document = self.documents.get(self.plan.evaluations[self.index].id or "", {})
        self.cases = {case.get("key"): case for case in self.document.get("cases") or ()}

    def scenario(
        self, case: str, id_: str, trials: int, attempts: Mapping[int, _Seen], why: Mapping[int, str]
    ) -> ScenarioSummary:
        known = {n: seen for n, seen in attempts.items() if seen.outcome in EVIDENCE and not seen.elsewhere}
        status, recorded = self._status(f"{case}/{id_}")
        elsewhere = tuple(
            n
            for n in range(trials)
            if n not in known
            and ((n in attempts and attempts[n].elsewhere) or (recorded is not None and n in recorded))
        )
        missing = tuple(
            MissingAttempt(n, why.get(n) or (attempts[n].reason if n in attempts else None) or NOT_PLAYED)
            for n in range(trials)
            if n not in known and n not in elsewhere
        )
        count = {word: sum(seen.outcome == word for seen in known.values()) for word in EVIDENCE}
        tally = ScenarioTally(
            passed=count["passed"], failed=count["failed"], errors=count["error"], missing=len(missing)
        )
        lost = next((n for n in sorted(known) if known[n].outcome != "passed"), None)
        absent = missing[0] if missing else None
        durations = [seen.duration_ms for seen in known.values() if seen.duration_ms is not None]
        self.unknown = self.unknown or bool(elsewhere)
        self.tallies.append(tally)
        self.attempts.append(CaseAttempts({}, {n: seen.score for n, seen in known.items()}))
        return ScenarioSummary(
            case=case,
            scenario=id_,
            evaluation=self.index,
            trials=trials,
            passed=count["passed"],
            failed=count["failed"],
            errors=count["error"],
            missing=missing,
            elsewhere=elsewhere,
            unrecorded=() if recorded is None else tuple(n for n in sorted(known) if n not in recorded),
            verdict=VERDICT_OF_STATUS.get(status, "incomplete") if elsewhere else tally.verdict,
            first_failure=known[lost].reason if lost is not None else absent.reason if absent else None,
            first_failure_trial=lost if lost is not None else absent.trial if absent else None,
            duration_ms=round(statistics.median(durations)) if durations else None,
        )

    def _status(self, key: str) -> tuple[str, frozenset[int] | None]:
        """The case's status and recorded trials as the server has them; ("", None) where it was not read."""
        case = self.cases.get(key)
        if case is None:
            return "", None
        known = "recorded_attempts" in case
        return str(case.get("status", "")), frozenset(case["recorded_attempts"] or ()) if known else None

    def summary(self) -> EvaluationSummary:
        planned = self.plan.evaluations[self.index]
        missing = sum(tally.missing for tally in self.tallies)
        rates = [rate(self.tallies) for rate in (pass_at_1, pass_at_k, pass_hat_k)]
        score = evaluation_rates(planned.k, self.attempts).judge_score
        if self.unknown:  # the server alone knows how every attempt went
            metrics = self.document.get("metrics") or {}
            known = (metrics.get("pass_at_1"), None, metrics.get("pass_hat_k"))
            rates = [Rate(value, len(self.tallies), missing, None, None) for value in known]
            score = metrics.get("judge_score")
        return EvaluationSummary(
            id=planned.id,
            k=planned.k,
            status=str(self.document.get("status", "unknown")),
            scenarios=len(self.tallies),
            recorded=len(self.tallies) * planned.k - missing,
            missing=missing,
            pass_at_1=rates[0],
            pass_at_k=rates[1],
            pass_hat_k=rates[2],
            judge_score=score,
        )
