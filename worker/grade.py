"""How is a played scenario judged, and whose trouble is it when that fails?

The graders of a scenario run one after the other in the grader pool. The judge's trouble is not the agent's (S26): a
judge that cannot be reached leaves the attempt missing after two more gradings, its trial in the artifact; a judge that
is not configured, or refuses the key, is the operator's and stops the grading.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from evalfleet.checks.outcome import GraderAnswer, Judgement, Meaning, judge
from evalfleet.plan import Plan
from evalfleet.telemetry import GRADE_SECONDS
from worker.evidence import Play

log = logging.getLogger(__name__)

MORE_GRADES = 2
"""Gradings after the first before an attempt is left missing for want of a judge (S26)."""

Grade = Callable[[str, dict[str, Any], dict[str, Any], Play], Awaitable[GraderAnswer]]
"""(grader name, case, run, play) → its answer; makes no exception of anything a grader does."""


@dataclass(frozen=True, slots=True)
class Graded:
    """`stopped` carries the operator's trouble; else there is a judgement, whose outcome may be missing."""

    judgement: Judgement | None
    answers: tuple[GraderAnswer, ...]
    stopped: str | None = None


def needs_graders(plan: Plan, play: Play) -> bool:
    """Only a trial that has a result of its own is worth a judge's time (S12)."""
    return (
        bool(plan.scenario(play.attempt).graders)
        and play.meaning.meaning is Meaning.RESULT
        and play.trial.not_played is None
    )


def judge_now(plan: Plan, play: Play, answers: Sequence[GraderAnswer] = ()) -> Judgement:
    return judge(plan.scenario(play.attempt), play.trial, play.meaning, answers)


async def grade(plan: Plan, play: Play, call: Grade) -> Graded:
    """Run every grader of the scenario and judge the trial."""
    scenario = plan.scenario(play.attempt)
    answers: list[GraderAnswer] = []
    with GRADE_SECONDS.time():
        for grader in scenario.graders:
            answer = await call(grader.name, scenario.case_document(), play.trial.run_document(), play)
            answers.append(answer)
            if answer.kind == "stopped":
                return Graded(None, tuple(answers), answer.error or "grading was stopped")
            if answer.kind == "judge_unavailable":
                break
    unavailable = next((a for a in answers if a.kind == "judge_unavailable"), None)
    if unavailable is not None:
        reason = f"judge_unavailable: {unavailable.error}"
        return Graded(Judgement("missing", reason, (), None, None), tuple(answers))
    return Graded(judge_now(plan, play, answers), tuple(answers))
