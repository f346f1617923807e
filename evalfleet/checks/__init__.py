"""The language of checks: cases, the twelve expectations, trials, outcomes, verdicts. Pure: no network, no Celery."""

from __future__ import annotations

from evalfleet.checks.case import (
    Case,
    CaseProblem,
    LoadedCases,
    Place,
    Scenario,
    case_key,
    load_cases,
    parse_case,
)
from evalfleet.checks.comparison import Comparison, Judged, compare, mcnemar, moved
from evalfleet.checks.digest import canonical, digest
from evalfleet.checks.expectation import Expectation, Finding, Grader, expectation_from_document
from evalfleet.checks.intervals import bootstrap_mean, wilson
from evalfleet.checks.matching import evaluate
from evalfleet.checks.outcome import (
    INFRA_CODES,
    STOPPING_CODES,
    GraderAnswer,
    Judgement,
    Meaning,
    RunMeaning,
    judge,
    leave_out,
    meaning_of,
    spent_seconds,
)
from evalfleet.checks.trial import HookCall, ToolCall, Trial, TurnRecord, TurnSummary, read_trial
from evalfleet.checks.verdict import (
    CaseAttempts,
    PassRate,
    Rate,
    Rates,
    ScenarioTally,
    case_status,
    evaluation_rates,
    pass_at_1,
    pass_at_k,
    pass_hat_k,
    pass_rate,
    suite_verdict,
)

__all__ = [
    "INFRA_CODES",
    "STOPPING_CODES",
    "Case",
    "CaseAttempts",
    "CaseProblem",
    "Comparison",
    "Expectation",
    "Finding",
    "Grader",
    "GraderAnswer",
    "HookCall",
    "Judged",
    "Judgement",
    "LoadedCases",
    "Meaning",
    "PassRate",
    "Place",
    "Rate",
    "Rates",
    "RunMeaning",
    "Scenario",
    "ScenarioTally",
    "ToolCall",
    "Trial",
    "TurnRecord",
    "TurnSummary",
    "bootstrap_mean",
    "canonical",
    "case_key",
    "case_status",
    "compare",
    "digest",
    "evaluate",
    "evaluation_rates",
    "expectation_from_document",
    "judge",
    "leave_out",
    "load_cases",
    "mcnemar",
    "meaning_of",
    "moved",
    "parse_case",
    "pass_at_1",
    "pass_at_k",
    "pass_hat_k",
    "pass_rate",
    "read_trial",
    "spent_seconds",
    "suite_verdict",
    "wilson",
]
