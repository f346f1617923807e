"""What is the verdict, and what did it cost?

A pure function of the plan and its attempt lines, in any order, and of the evaluations as the server has them, where
they were read. Nothing here prints (see `scheduler.render`) or decides what is missing (I1).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from evalfleet.checks.case import case_key
from evalfleet.checks.near import folded
from evalfleet.checks.text import trial_number
from evalfleet.checks.verdict import (
    PassRate,
    Rate,
    ScenarioTally,
    pass_at_1,
    pass_at_k,
    pass_hat_k,
    pass_rate,
)
from evalfleet.evidence import AttemptKey
from evalfleet.plan import Plan
from evalfleet.quarantine import Quarantine, by_key
from scheduler.gate import exit_code
from scheduler.spend import Spend
from scheduler.tallies import AgentNotes, GraderSummary, PlanLines, ScenarioLines

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
    applied (S32). `was`: the recorded verdict, where scoring again gave another. `quarantine`: why it does not gate.
    `passed_with_failed_turn`: trials (S21). `repeated_tries`: tries before those that gave the results, by why they had
    none (S17).
    `refused`: those of `unrecorded` that the server refuses to record, and why.
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
    quarantine: Quarantine | None = None
    refused: tuple[MissingAttempt, ...] = ()
    passed_with_failed_turn: int = 0
    repeated_tries: Mapping[str, int] = field(default_factory=dict)
    first_failure_outcome: str | None = None

    @property
    def first_failure_in_words(self) -> str | None:
        """`first_failure`, with the number of its trial where there are several, and with its outcome where that is
        another than failed: `trial 2: error: timed out`."""
        if self.first_failure is None:
            return None
        trial = self.first_failure_trial if self.trials > 1 else None
        number = "" if trial is None else f"trial {trial_number(trial)}: "
        outcome = f"{self.first_failure_outcome}: " if self.first_failure_outcome in ("error", "missing") else ""
        return f"{number}{outcome}{self.first_failure}"

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a verdict does not show, in words: a crash that the assertions let pass, tries that were repeated."""
        found = []
        if self.passed_with_failed_turn:
            of = f"{self.passed_with_failed_turn} of {self.trials} trials " if self.trials > 1 else ""
            found.append(f"{of}passed although a turn failed")
        if self.repeated_tries:
            count = sum(self.repeated_tries.values())
            why = ", ".join(f"{number} {reason}" for reason, number in self.repeated_tries.items())
            found.append(f"{'1 try' if count == 1 else f'{count} tries'} repeated ({why})")
        return tuple(found)

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
            "unrecorded": len(self.unrecorded),
            "passed_with_failed_turn": self.passed_with_failed_turn,
            "repeated_tries": dict(self.repeated_tries),
            "first_failure": self.first_failure,
            "duration_ms": self.duration_ms,
            "quarantine": None if self.quarantine is None else self.quarantine.document(),
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
            "judge_score": self.judge_score,
            "scenarios": self.scenarios,
            "recorded": self.recorded,
            "missing": self.missing,
            "rates": {
                "pass_at_1": self.pass_at_1.document(),
                "pass_at_k": self.pass_at_k.document(),
                "pass_hat_k": self.pass_hat_k.document(),
            },
        }


@dataclass(frozen=True, slots=True)
class Summary:
    """A submission's result. `seconds`: wall time, where it is known. `artifact`: what a person opens.
    `missing_allowed`: what is missing was given up on purpose (`--allow-missing`, S18)."""

    submission: str
    artifact: str
    commit: str
    verdict: str
    scenarios: tuple[ScenarioSummary, ...]
    evaluations: tuple[EvaluationSummary, ...]
    pass_rate: PassRate
    spend: Spend
    context_turns: int
    seconds: float | None = None
    graders: tuple[GraderSummary, ...] = ()
    missing_allowed: bool = False
    agent_notes: AgentNotes | None = None

    @property
    def missing(self) -> int:
        return sum(len(scenario.missing) for scenario in self.scenarios)

    @property
    def unrecorded(self) -> int:
        return sum(len(scenario.unrecorded) for scenario in self.scenarios)

    @property
    def refused(self) -> int:
        return sum(len(scenario.refused) for scenario in self.scenarios)

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
            "pass_rate": self.pass_rate.document(),
            "evaluations": [evaluation.document() for evaluation in self.evaluations],
            "graders": [grader.document() for grader in self.graders],
            "scenarios": [scenario.document() for scenario in self.scenarios],
            "agent_notes": None if self.agent_notes is None else self.agent_notes.document(),
        }

    def stored(self, exit_code: int) -> dict[str, Any]:
        """`summary.json`: the same object and what only a later reader needs (docs/artifact.md)."""
        document = self.document(exit_code)
        for shown, scenario in zip(document["scenarios"], self.scenarios, strict=True):
            shown["missing_attempts"] = {str(attempt.trial): attempt.reason for attempt in scenario.missing}
            shown["recorded_elsewhere"] = list(scenario.elsewhere)
            shown["refused_attempts"] = {str(attempt.trial): attempt.reason for attempt in scenario.refused}
        known = {"context_turns": self.context_turns, "seconds": self.seconds, "missing_allowed": self.missing_allowed}
        return {"format": 1, **document, **known}


def summarize(
    plan: Plan,
    lines: Iterable[Mapping[str, Any]],
    *,
    artifact: str,
    evaluations: Iterable[Mapping[str, Any]] = (),
    reasons: Mapping[AttemptKey, str] | None = None,
    refused: Mapping[AttemptKey, str] | None = None,
    seconds: float | None = None,
    quarantine: Iterable[Quarantine] | None = None,
) -> Summary:
    """The summary of a plan.

    `lines`: attempt lines in any order, one for each attempt, as `Result.lines` has them; memory does not grow with
    them. `evaluations`: documents of `GET /v2/evaluations/{id}`; those not given are known from the lines alone.
    `reasons`: why attempts without a line are missing; `refused`: why the server does not record those that have one.
    `artifact`: where a person finds it. `quarantine`: what does not gate; by default what the plan says.
    """
    kept = PlanLines(plan)
    for line in lines:
        kept.add(line)
    return summed_up(
        kept,
        artifact=artifact,
        evaluations=evaluations,
        reasons=reasons,
        refused=refused,
        seconds=seconds,
        quarantine=quarantine,
    )


def summed_up(
    kept: PlanLines,
    *,
    artifact: str,
    evaluations: Iterable[Mapping[str, Any]] = (),
    reasons: Mapping[AttemptKey, str] | None = None,
    refused: Mapping[AttemptKey, str] | None = None,
    seconds: float | None = None,
    quarantine: Iterable[Quarantine] | None = None,
) -> Summary:
    """The same for whoever has seen the lines go by."""
    plan = kept.plan
    documents = {str(document["id"]): document for document in evaluations}
    found = [_Evaluation(plan, index, documents) for index in range(len(plan.evaluations))]
    apart = by_key(plan.quarantine if quarantine is None else quarantine)
    scenarios = []
    for number, case in enumerate(plan.cases):
        for planned in case.scenarios:
            if planned.evaluation is not None:
                id_, trials = planned.scenario.id, planned.scenario.trials
                why = {n: reason for n in range(trials) if (reason := (reasons or {}).get((case.name, id_, n)))}
                lines = kept.of(case.name, id_)
                summed = found[planned.evaluation].scenario(number, case.name, id_, trials, lines, why)
                at = ((n, (refused or {}).get((case.name, id_, n))) for n in summed.unrecorded)
                turned_down = tuple(MissingAttempt(n, reason) for n, reason in at if reason is not None)
                quarantined = apart.get(folded(case_key(case.name, id_)))
                scenarios.append(replace(summed, quarantine=quarantined, refused=turned_down))
    return Summary(
        submission=plan.id,
        artifact=artifact,
        commit=plan.commit,
        verdict=overall(scenarios),
        scenarios=tuple(scenarios),
        evaluations=tuple(evaluation.summary() for evaluation in found),
        pass_rate=_pass_rate(found),
        spend=kept.spend.total(),
        context_turns=plan.context_turns(),
        seconds=seconds,
        graders=kept.graders.summaries(),
        agent_notes=kept.agent_notes(),
    )


def overall(scenarios: Sequence[ScenarioSummary]) -> str:
    """`suite_verdict` for summaries: a scenario that was recorded elsewhere has no tally. What is in quarantine counts
    for nothing; where all is, nothing can be lost."""
    words = {scenario.verdict for scenario in scenarios if scenario.quarantine is None}
    words = words or {"pass" if scenarios else "incomplete"}
    return next(word for word in ("fail", "incomplete", "flaky", "pass") if word in words)


def _pass_rate(evaluations: Sequence[_Evaluation]) -> PassRate:
    """Over all attempts of all evaluations; without a value where one of them is not known here (S35)."""
    tallies = [tally for evaluation in evaluations for tally in evaluation.tallies]
    found = pass_rate(tallies, [file for evaluation in evaluations for file in evaluation.files])
    if not any(evaluation.unknown for evaluation in evaluations):
        return found
    recorded = sum(evaluation.recorded() for evaluation in evaluations)
    return PassRate(None, recorded, Rate(None, len(tallies), found.rate.missing, None, None))


@dataclass
class _Evaluation:
    """Gathers one evaluation: what the server says of it and what its scenarios add up to."""

    plan: Plan
    index: int
    documents: Mapping[str, Mapping[str, Any]]
    tallies: list[ScenarioTally] = field(default_factory=list)
    files: list[int] = field(default_factory=list)
    scored: int = 0
    score_sum: Fraction = Fraction(0)
    unknown: bool = False

    def __post_init__(self) -> None:
        self.document = self.documents.get(self.plan.evaluations[self.index].id or "", {})
        self.cases = {case.get("key"): case for case in self.document.get("cases") or ()}

    def scenario(
        self, number: int, case: str, id_: str, trials: int, lines: ScenarioLines, why: Mapping[int, str]
    ) -> ScenarioSummary:
        status, recorded = self._status(f"{case}/{id_}")
        known = lines.known()
        elsewhere = lines.elsewhere(recorded)
        absent = sorted({*range(trials)} - {*known, *elsewhere})
        missing = tuple(MissingAttempt(n, why.get(n) or lines.why(n) or NOT_PLAYED) for n in absent)
        tally = ScenarioTally(lines.count("passed"), lines.count("failed"), lines.count("error"), len(missing))
        absence = (missing[0].trial, "missing", missing[0].reason) if missing else (None, None, None)
        first_trial, first_outcome, first_reason = lines.lost or absence
        self.unknown = self.unknown or bool(elsewhere)
        self.tallies.append(tally)
        self.files.append(number)
        self.scored += lines.scored
        self.score_sum += lines.score_sum
        return ScenarioSummary(
            case=case,
            scenario=id_,
            evaluation=self.index,
            trials=trials,
            passed=tally.passed,
            failed=tally.failed,
            errors=tally.errors,
            missing=missing,
            elsewhere=elsewhere,
            unrecorded=() if recorded is None else tuple(n for n in known if n not in recorded),
            verdict=VERDICT_OF_STATUS.get(status, "incomplete") if elsewhere else tally.verdict,
            first_failure=first_reason,
            first_failure_trial=first_trial,
            first_failure_outcome=first_outcome,
            duration_ms=lines.duration_ms(),
            passed_with_failed_turn=lines.passed_with_failed_turn,
            repeated_tries=dict(lines.repeated.most_common()),
        )

    def _status(self, key: str) -> tuple[str, frozenset[int] | None]:
        """The case's status and recorded trials as the server has them; ("", None) where it was not read."""
        case = self.cases.get(key)
        if case is None:
            return "", None
        known = "recorded_attempts" in case
        return str(case.get("status", "")), frozenset(case["recorded_attempts"] or ()) if known else None

    def missing(self) -> int:
        return sum(tally.missing for tally in self.tallies)

    def recorded(self) -> int:
        """Attempts, those recorded elsewhere among them."""
        return len(self.tallies) * self.plan.evaluations[self.index].k - self.missing()

    def summary(self) -> EvaluationSummary:
        planned = self.plan.evaluations[self.index]
        missing = self.missing()
        rates = [pass_at_1(self.tallies, self.files), pass_at_k(self.tallies), pass_hat_k(self.tallies)]
        score = float(self.score_sum / self.scored) if self.scored else None
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
            recorded=self.recorded(),
            missing=missing,
            pass_at_1=rates[0],
            pass_at_k=rates[1],
            pass_hat_k=rates[2],
            judge_score=score,
        )
