"""How does a selection of a tree's scenarios become a plan?

Scenarios are grouped by their trials, because an evaluation has one `k` (S10); everything that would make a submission
refuse later (the API's limits, A11) is refused here, before any run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

import evalfleet as package
from evalfleet.artifact import artifact_name
from evalfleet.checks.case import Case, Scenario, case_key
from evalfleet.checks.digest import digest
from evalfleet.checks.near import folded
from evalfleet.checks.text import one_line
from evalfleet.errors import UsageError
from evalfleet.plan import (
    Attempt,
    Limits,
    Plan,
    PlannedCase,
    PlannedEvaluation,
    PlannedGraders,
    PlannedScenario,
    PlannedTarget,
    Scorer,
    SuiteName,
)
from evalfleet.quarantine import Quarantine, applying, in_force
from evalfleet.tree import MAX_CONCURRENCY, TreeConfig, TreeVersion
from scheduler.pins import Pin, make_pin, submission_id
from scheduler.select import DRAFT, Selection

SCORER: Final = Scorer("evalfleet-checks", "2")
"""Who judges. The version moves only when a verdict could (S10)."""

DEFAULT_CONCURRENCY: Final = 8
MAX_CASES: Final = 2000
MAX_BODY: Final = 16 * 1024 * 1024
_ENVELOPE: Final = 64 * 1024
"""Bytes that are left for what stands around the cases of an evaluation."""


def plan_evaluations(
    selection: Selection, *, suite: str, graders: PlannedGraders | None
) -> tuple[tuple[PlannedEvaluation, ...], dict[str, int]]:
    """The evaluations, not created yet, and which of them each chosen key is recorded on.

    One for each distinct trials number, smallest first (S10); as many as `split` says where one would be too large. A
    suite's key has the name of its file in it, so that it is never compared with the tree's.
    """
    sizes: dict[int, dict[str, int]] = {}
    for case in selection.cases:
        for scenario in _chosen(selection, case):
            key = case_key(case.name, scenario.id)
            sizes.setdefault(scenario.trials, {})[key] = _size(_evaluation_case(key, scenario))
    of_rows = selection.suite
    name = suite if of_rows is None else of_rows
    root = suite if of_rows is None else f"{suite}/{of_rows}"
    tail = "/draft" if selection.draft else "/partial" if selection.partial else ""
    evaluations: list[PlannedEvaluation] = []
    index: dict[str, int] = {}
    for k in sorted(sizes):
        parts = split(sizes[k])
        for number, part in enumerate(parts, 1):
            index |= dict.fromkeys(part, len(evaluations))
            which = f"/{number}-of-{len(parts)}" if len(parts) > 1 else ""
            version = suite_version(((case.name, case.scenarios) for case in selection.cases), part, graders)
            evaluations.append(PlannedEvaluation(k, None, SuiteName(f"{root}/k{k}{tail}{which}", version, name)))
    return tuple(evaluations), index


def split(sizes: Mapping[str, int]) -> list[frozenset[str]]:
    """The keys of each evaluation of one trials number: one where it is at most 2,000 cases and 16 MiB, as the API
    takes it. Else by a digest of the key into the fewest parts of which none is larger: a case stays in its part when
    others move, come and go, as long as the number of parts is the same. `sizes`: bytes of each case.
    """
    largest = max(sizes, key=lambda key: sizes[key])
    if sizes[largest] > MAX_BODY - _ENVELOPE:
        raise UsageError(
            f"{largest} alone makes an evaluation of {sizes[largest] / 2**20:.1f} MiB; one takes "
            f"{MAX_BODY // 2**20} MiB at most: say less in its `user` and `expect`"
        )
    number = max(-(-len(sizes) // MAX_CASES), -(-sum(sizes.values()) // (MAX_BODY - _ENVELOPE)))
    places = {key: int.from_bytes(hashlib.sha256(key.encode()).digest()[:8]) for key in sizes}
    while True:
        parts: dict[int, list[str]] = {}
        for key, place in places.items():
            parts.setdefault(place % number, []).append(key)
        if all(_fits(sizes, part) for part in parts.values()):
            return [frozenset(parts[place]) for place in sorted(parts)]
        number += 1


def _fits(sizes: Mapping[str, int], part: Sequence[str]) -> bool:
    return len(part) <= MAX_CASES and sum(sizes[key] for key in part) <= MAX_BODY - _ENVELOPE


def _chosen(selection: Selection, case: Case) -> list[Scenario]:
    return [scenario for scenario in case.scenarios if case_key(case.name, scenario.id) in selection.chosen]


def suite_version(
    cases: Iterable[tuple[str, Sequence[Scenario]]], keys: Collection[str], graders: PlannedGraders | None
) -> str:
    """A digest of what decides a verdict of the scenarios with these keys: they as resolved, what their conversation
    says before them, and the grader bundle where one of them is graded. Comments and layout don't count, nor does the
    order of rows."""
    parts: list[tuple[str, Any]] = []
    graded = False
    for name, scenarios in cases:
        before = ""  # a running digest: the turns themselves would make a file of 2,000 scenarios 2,000,000 texts
        for scenario in scenarios:
            key = case_key(name, scenario.id)
            if key in keys:
                part = {"case": name, "scenario": scenario.content(), "before": before}
                if scenario.given is not None and "name" in scenario.given:
                    part["name"] = scenario.given["name"]  # no verdict hangs on it, but the evaluation holds it
                parts.append((key, part))
                graded = graded or bool(scenario.graders)
            before = digest([before, list(scenario.user)])
    ordered = [part for _, part in sorted(parts, key=lambda part: part[0])]
    return digest({"scenarios": ordered, "graders": graders.version if graded and graders is not None else None})


def build_plan(
    config: TreeConfig,
    selection: Selection,
    *,
    target: PlannedTarget,
    commit: str,
    graders: PlannedGraders | None,
    created_at: datetime,
    limits: Limits | None = None,
    concurrency: int | None = None,
    generation: int = 0,
    baseline: str | None = None,
    server: str | None = None,
    timeout: float | None = None,
    environment: Mapping[str, str] | None = None,
) -> tuple[Plan, Pin]:
    """The plan of one submission and the pin it is found again by.

    `commit` 40 hex digits; `timeout` the seconds that replaced the scenarios' own, if any; `graders` is the bundle,
    None where no case calls a grader; `environment` is where the values of `[harness] pin_env` are read. UsageError for
    a concurrency out of range and for what the API would refuse. The evaluations have no ids yet
    (`Plan.with_evaluations`).
    """
    open_runs = concurrency if concurrency is not None else config.eval.concurrency or DEFAULT_CONCURRENCY
    if not 1 <= open_runs <= MAX_CONCURRENCY:
        raise UsageError(f"--concurrency must be a whole number from 1 to {MAX_CONCURRENCY}, not {open_runs}")
    evaluations, index = plan_evaluations(selection, suite=config.eval.suite, graders=graders)
    pin = make_pin(
        config,
        target=target,
        commit=commit,
        evaluations=evaluations,
        scorer=SCORER,
        baseline=baseline,
        server=server,
        environment=environment or {},
    )
    plan = Plan(
        id="",
        pin=pin.digest,
        generation=0,
        created_at="",
        evalfleet=package.__version__,
        suite=selection.suite or config.eval.suite,
        artifact="",
        target=target,
        commit=commit,
        concurrency=open_runs,
        limits=limits or Limits(),
        scorer=SCORER,
        infra_codes=() if config.harness is None else config.harness.infra_codes,
        evaluations=evaluations,
        cases=tuple(_planned_case(case, index) for case in selection.cases),
        graders=graders,
        timeout=timeout,
        quarantine=_in_quarantine(config, selection, created_at),
    )
    return at_generation(plan, generation, created_at), pin


def _in_quarantine(config: TreeConfig, selection: Selection, at: datetime) -> tuple[Quarantine, ...]:
    """What does not gate today, of what is chosen."""
    chosen = {
        folded(key): case.file if scenario.given is not None else None
        for case in selection.cases
        for scenario in case.scenarios
        if (key := case_key(case.name, scenario.id)) in selection.chosen
    }
    return applying(in_force(config.quarantine, at.astimezone(UTC).date()), chosen)


def at_generation(plan: Plan, generation: int, created_at: datetime) -> Plan:
    """The same work as a submission of its own: another generation, id and artifact, and evaluations to be created."""
    submission = submission_id(plan.pin, generation)
    return replace(
        plan,
        id=submission,
        generation=generation,
        created_at=created_at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        artifact=artifact_name(created_at, submission),
        evaluations=tuple(replace(evaluation, id=None) for evaluation in plan.evaluations),
    )


def _planned_case(case: Case, index: Mapping[str, int]) -> PlannedCase:
    """Scenarios after the last chosen one are never played, so they are not in the plan."""
    planned = [PlannedScenario(scenario, index.get(case_key(case.name, scenario.id))) for scenario in case.scenarios]
    while planned and planned[-1].evaluation is None:
        planned.pop()
    return PlannedCase(case.name, case.file, tuple(planned))


def _size(document: Any) -> int:
    return len(json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")) + 1


def evaluation_body(plan: Plan, group: int, *, baseline: str | None = None) -> dict[str, Any]:
    """What `POST /v2/evaluations` is sent for one group: the cases' input and expected as snapshots. A pure function of
    what the pin holds, for a create that is tried again has to say the same."""
    evaluation = plan.evaluations[group]
    cases = [
        _evaluation_case(case_key(case.name, planned.scenario.id), planned.scenario)
        for case in plan.cases
        for planned in case.scenarios
        if planned.evaluation == group
    ]
    if any(case.scenarios[0].scenario.given is not None for case in plan.cases):
        cases.sort(key=lambda case: str(case["key"]))  # rows may lie otherwise when the same command goes on (S34)
    body: dict[str, Any] = {
        "harness_id": plan.target.harness_id,
        "harness_commit": plan.commit,
        "suite": {
            "key": evaluation.suite.key,
            "version": evaluation.suite.version,
            "name": evaluation.suite.name,
        },
        "scorer": {"id": plan.scorer.id, "version": plan.scorer.version},
        "k": evaluation.k,
        "cases": cases,
    }
    if baseline is not None:
        body["baseline_harness_commit"] = baseline
    return body


def _evaluation_case(key: str, scenario: Scenario) -> dict[str, Any]:
    """A case of `POST /v2/evaluations`; of a suite's row with what the row gives."""
    document, given = scenario.case_document(), scenario.given or {}
    asked, wanted = {"user": document["user"]}, {"expect": document["expect"]}
    return {
        "key": key,
        "name": given.get("name", scenario.id),
        "input": {**asked, "metadata": given["metadata"]} if "metadata" in given else asked,
        "expected": {**wanted, "expected": given["expected"]} if "expected" in given else wanted,
    }


def plan_document(plan: Plan, recorded: Collection[Attempt] = ()) -> dict[str, Any]:
    """What `plan --json` prints: the plan without what only a start gives it, and what it takes."""
    document = plan.to_json()
    for name in ("id", "generation", "created_at", "artifact", "pin", "limits"):
        del document[name]
    attempts = set(plan.all_attempts())
    return {
        **document,
        "attempts": len(attempts),
        "recorded": len(attempts & set(recorded)),
        "conversations": sum(1 for _ in plan.conversations()),
        "turns": plan.turns(),
        "context_turns": plan.context_turns(),
    }


def render_plan(plan: Plan, recorded: Collection[Attempt] = ()) -> str:
    """What would run, for a person: a line for each scenario, then what it takes; `recorded` is done already."""
    attempts = list(plan.all_attempts())
    done = set(attempts) & set(recorded)
    rows = [("case/scenario", "trials", "turns", "recorded")]
    for index, case in enumerate(plan.cases):
        for position, planned in enumerate(case.scenarios):
            scenario = planned.scenario
            name = one_line(case_key(case.name, scenario.id), 80)
            turns = str(len(scenario.user))
            if planned.evaluation is None:
                rows.append((name, "context", turns, "not scored"))
                continue
            have = sum(Attempt(index, position, trial) in done for trial in range(scenario.trials))
            rows.append((name, str(scenario.trials), turns, f"{have} of {scenario.trials}"))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [
        f"{row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]:>{widths[3]}}".rstrip()
        for row in rows
    ]
    scored = len({(attempt.case, attempt.scenario) for attempt in attempts})
    conversations = sum(1 for _ in plan.conversations())
    where = "here" if plan.target.base_url is None else plan.target.name
    files = [case for case in plan.cases if case.name != DRAFT]
    drafts = " and a draft" if len(files) < len(plan.cases) else ""
    context = plan.context_turns()
    asked = [_count(len(files), "case") + drafts, _count(scored, "scenario"), _count(len(attempts), "attempt")]
    paid = [_count(conversations, "conversation"), _count(plan.turns(), "turn")]
    if context:
        paid.append(f"{context} of them context: paid for, played before a scored scenario, never scored")
    evaluations = [
        f"{evaluation.suite.key} ({_count(len(plan.keys_of(group)), 'scenario')})"
        for group, evaluation in enumerate(plan.evaluations)
    ]
    lines += [
        "",
        f"suite {plan.suite}, harness {plan.target.harness} at {plan.commit[:12]}, run {where}",
        ", ".join([*asked, f"{len(done)} of them recorded already"]),
        ", ".join(paid),
        "evaluations: " + ", ".join(evaluations),
        f"at most {_count(plan.concurrency, 'open run')} at once",
    ]
    return "\n".join(lines)


def render_files(version: TreeVersion) -> str:
    """What `plan --files` shows: every harness file, those that differ from git HEAD marked, and what the commit is."""
    gone = [path for path in version.changed if path not in version.files]
    lines = [f"{one_line(path, 300)}{_mark(version, path)}" for path in sorted({*version.files, *gone})]
    what = "git HEAD" if not version.reason else f"a digest over these files, because {version.reason}"
    return "\n".join([*lines, "", f"commit {version.commit}: {what}"])


def _mark(version: TreeVersion, path: str) -> str:
    if version.head is None or path not in version.changed:
        return ""
    return "  (changed)" if version.changed[path] else "  (gone)"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
