"""How is a played scenario judged, and whose trouble is it when that fails?

The graders of a scenario run one after the other in the grader pool. The judge's trouble is not the agent's (S26): a
judge that cannot be reached leaves the attempt missing after two more gradings, its trial in the artifact; a judge that
is not configured, or refuses the key, is the operator's and stops the grading. Neither keeps back an attempt that an
assertion has decided: that one is failed without a judge (S23). A judge that is there and answers nothing within a
grader's 30 s is an error of that grader.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from evalfleet.checks.outcome import GraderAnswer, Judgement, Meaning, RunMeaning, judge
from evalfleet.checks.scenario import Scenario
from evalfleet.checks.text import json_safe
from evalfleet.checks.trial import Trial
from evalfleet.telemetry import GRADE_SECONDS

MORE_GRADES = 2
"""Gradings after the first before an attempt is left missing for want of a judge (S26)."""

Grade = Callable[[str, dict[str, Any], dict[str, Any], dict[str, Any]], Awaitable[GraderAnswer]]
"""(grader name, case, run, about) → its answer; makes no exception of anything a grader does."""


@dataclass(frozen=True, slots=True)
class Graded:
    """`stopped` carries the operator's trouble; else there is a judgement, whose outcome may be missing."""

    judgement: Judgement | None
    answers: tuple[GraderAnswer, ...]
    stopped: str | None = None

    @property
    def judge_answered(self) -> bool:
        """Did the judge answer what it was asked? Then a row of gradings without it has ended (S26)."""
        return any(answer.llm_calls for answer in self.answers) and not any(map(_has_no_judge, self.answers))


def needs_graders(scenario: Scenario, trial: Trial, meaning: RunMeaning) -> bool:
    """Only a trial that has a result of its own is worth a judge's time (S12)."""
    return bool(scenario.graders) and meaning.meaning is Meaning.RESULT and trial.not_played is None


def about(trial: Trial) -> dict[str, Any]:
    """What `t` knows of the trial (S27): `{"run_id", "history"}`. The scenario's turns as the platform gives them,
    `{"tag", "role", "text"}`, oldest first; a turn without an answer has the user's part only. A text that is None is
    the run's final answer, which the grader has already: it may be of megabytes, and travels once."""
    history: list[dict[str, Any]] = []
    for number, turn in enumerate(trial.turns):
        history.append({"tag": f"{number}.user", "role": "user", "text": turn.user})
        if turn.answer is not None:
            last = number == len(trial.turns) - 1 and turn.answer == trial.final_answer
            history.append({"tag": f"{number}.assistant", "role": "assistant", "text": None if last else turn.answer})
    document: dict[str, Any] = json_safe({"run_id": trial.turns[-1].run_id if trial.turns else "", "history": history})
    return document


async def grade(scenario: Scenario, trial: Trial, meaning: RunMeaning, call: Grade) -> Graded:
    """Run every grader of the scenario and judge the trial."""
    answers: list[GraderAnswer] = []
    with GRADE_SECONDS.time():
        for grader in scenario.graders:
            answer = await call(grader.name, scenario.case_document(), trial.run_document(), about(trial))
            answers.append(answer)
            if _has_no_judge(answer):
                break
    judgement = judge(scenario, trial, meaning, answers)
    stopped = next((answer for answer in answers if answer.kind == "stopped"), None)
    if judgement.outcome == "missing" and stopped is not None:
        return Graded(None, tuple(answers), stopped.error or "grading was stopped")
    return Graded(judgement, tuple(answers))


def _has_no_judge(answer: GraderAnswer) -> bool:
    return answer.kind in ("judge_unavailable", "stopped")
