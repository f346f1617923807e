"""How does an artifact that was judged anew become one of its own, beside the old one? (S32)

The old artifact is never changed. The new one has the same runs and trials, the scenarios and graders that it was
judged by, and an id of its own, so that nothing goes on with it by mistake. Its lines are written as they are judged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import evalfleet
from evalfleet.artifact import Result, append_segment, artifact_name, find, read_plan, write_plan
from evalfleet.contract.ids import public_id
from evalfleet.places import Places
from evalfleet.plan import Plan, PlannedCase, PlannedEvaluation, PlannedGraders
from evalfleet.results import FolderResults
from scheduler.plan import SCORER, suite_version
from scheduler.score import Today
from scheduler.submit import GRADERS_FILE

SEGMENT = 500
"""Lines of one segment."""


def plan_anew(source: Plan, today: Today, *, now: datetime, graders: PlannedGraders | None, again: str = "") -> Plan:
    """The plan of the new artifact, its evaluations not created yet. `graders`: those whose answers count.

    Its id is a pure function of the old submission and of what judges it, so that a command that died is gone on with;
    `again` makes it another one, where graders are asked again and may answer otherwise.
    """
    cases = tuple(_case(case, today) for case in source.cases)
    rows = [(case.name, [p.scenario for p in case.scenarios]) for case in cases]
    evaluations = tuple(
        PlannedEvaluation(e.k, None, replace(e.suite, version=suite_version(rows, source.keys_of(index), graders)))
        for index, e in enumerate(source.evaluations)
    )
    parts = [source.id, SCORER.id, SCORER.version, *(e.suite.version for e in evaluations), again]
    summed = hashlib.sha256("\0".join(["judged anew", *parts]).encode("utf-8")).digest()
    id_ = public_id("sub", UUID(bytes=summed[:16]))
    return replace(
        source,
        id=id_,
        created_at=now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        evalfleet=evalfleet.__version__,
        artifact=artifact_name(now, id_),
        scorer=SCORER,
        evaluations=evaluations,
        cases=cases,
        graders=graders,
        rescored_from=source.rescored_from or source.id,
        signature=None,
    )


def _case(case: PlannedCase, today: Today) -> PlannedCase:
    """Each scenario as it is judged now, with the trials that were played; a stale one as it was."""
    return replace(
        case,
        scenarios=tuple(
            replace(p, scenario=replace(by, trials=p.scenario.trials))
            if (by := today.scenario(case.name, p.scenario.id)) is not None
            else p
            for p in case.scenarios
        ),
    )


def as_ours(line: Mapping[str, Any]) -> Mapping[str, Any]:
    """A trial that was played here is a trial, also where the old evaluation holds another run for its attempt."""
    return {**line, "recorded": "here"} if line.get("recorded") == "elsewhere" and line.get("trial_record") else line


class NewArtifact:
    """The new artifact while it is written. A context manager; what is not written yet is written at its end."""

    def __init__(self, store: FolderResults, plan: Plan, written: Places | None = None) -> None:
        self.store = store
        self.plan = plan
        self._ids = [evaluation.id for evaluation in plan.evaluations]
        self._evaluation = {(case.name, p.scenario.id): p.evaluation for case in plan.cases for p in case.scenarios}
        self._written = written
        self._lines: list[dict[str, Any]] = []

    @classmethod
    def of(cls, store: FolderResults, plan: Plan, source: Result, bundle: bytes | None = None) -> NewArtifact:
        """Made, or found again where a command died. `bundle`: the graders; None: the old artifact's."""
        known = find(store, plan.id)
        if known is not None:
            earlier = read_plan(store, known)
            plan = replace(plan, artifact=known, created_at=earlier.created_at)
            return cls(store, plan, Places(store, known))
        write_plan(store, plan)
        old = f"{source.name}/{GRADERS_FILE}"
        if bundle is None and plan.graders is not None and source.store.exists(old):
            bundle = source.store.read_bytes(old)
        if bundle is not None:
            store.write_bytes_exclusive(f"{plan.artifact}/{GRADERS_FILE}", bundle)
        return cls(store, plan)

    def __enter__(self) -> NewArtifact:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._flush()

    def add(self, line: Mapping[str, Any]) -> None:
        if self._written is not None and self._written.has((line["case"], line["scenario"], line["trial"])):
            return
        index = self._evaluation.get((line["case"], line["scenario"]))
        evaluation = None if index is None or line.get("context") else self._ids[index]
        self._lines.append({**line, "evaluation": evaluation})
        if len(self._lines) >= SEGMENT:
            self._flush()

    def _flush(self) -> None:
        lines, self._lines = self._lines, []
        append_segment(self.store, self.plan.artifact, lines)
