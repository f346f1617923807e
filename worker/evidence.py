"""What does the artifact say of one attempt?

Builds the attempt line of docs/artifact.md from what was played and judged. The line is the evidence: whoever reads the
artifact later scores it again without running anything (S32).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from evalfleet.checks.outcome import GraderAnswer, Judgement, RunMeaning
from evalfleet.checks.trial import Trial, read_trial
from evalfleet.givenup import reason_of
from evalfleet.plan import Attempt, Plan
from worker.played import GaveUp, Played

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Play:
    """A played scenario on its way to a judgement; JSON-safe, this is what waits in Redis for the graders."""

    attempt: Attempt
    trial: Trial
    meaning: RunMeaning
    run_id: str | None
    chat_id: str | None
    tries: Sequence[Mapping[str, Any]]
    usage: Mapping[str, Any] | None

    @classmethod
    def of(cls, played: Played) -> Play:
        trial = read_trial(played.turns, not_played=played.not_played)
        last = played.turns[-1].run if played.turns else played.link
        return cls(
            attempt=played.attempt,
            trial=trial,
            meaning=played.meaning,
            run_id=None if last is None else str(last["id"]),
            chat_id=None if last is None else str(last["chat_id"]),
            tries=played.tries,
            usage=played.usage,
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "attempt": str(self.attempt),
            "trial_record": self.trial.to_json(),
            "meaning": self.meaning.to_json(),
            "run_id": self.run_id,
            "chat_id": self.chat_id,
            "tries": [dict(t) for t in self.tries],
            "usage": None if self.usage is None else dict(self.usage),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Play:
        return cls(
            attempt=Attempt.parse(document["attempt"]),
            trial=Trial.from_json(document["trial_record"]),
            meaning=RunMeaning.from_json(document["meaning"]),
            run_id=document["run_id"],
            chat_id=document["chat_id"],
            tries=tuple(document["tries"]),
            usage=document["usage"],
        )


def attempt_line(plan: Plan, play: Play, judgement: Judgement, answers: Sequence[GraderAnswer]) -> dict[str, Any]:
    """The whole line; `outcome` and `reason` are the judgement's, an infrastructure error's line says missing."""
    line = _head(plan, play.attempt)
    line |= {
        "outcome": judgement.outcome,
        "reason": judgement.reason,
        "run_id": play.run_id,
        "chat_id": play.chat_id,
        "meaning": play.meaning.to_json(),
        "trial_record": play.trial.to_json(),
        "findings": [finding.to_json() for finding in judgement.findings],
        "graders": [answer.to_json() for answer in answers],
        "judge_score": judgement.judge_score,
        "judge_feedback": judgement.judge_feedback,
        "tries": [dict(t) for t in play.tries],
        "recorded": "here",
        "usage": None if play.usage is None else dict(play.usage),
        "context": False,
        "at": now_text(),
    }
    return line


def context_line(plan: Plan, play: Play) -> dict[str, Any]:
    """A scenario that was played and is not scored: what was said, and no verdict (S9)."""
    case = plan.cases[play.attempt.case]
    return {
        "format": FORMAT,
        "case": case.name,
        "scenario": plan.scenario(play.attempt).id,
        "trial": play.attempt.trial,
        "evaluation": None,
        "outcome": "context",
        "reason": None,
        "run_id": play.run_id,
        "chat_id": play.chat_id,
        "meaning": play.meaning.to_json(),
        "trial_record": play.trial.to_json(),
        "findings": [],
        "graders": [],
        "judge_score": None,
        "judge_feedback": None,
        "tries": [dict(t) for t in play.tries],
        "recorded": "here",
        "usage": None,
        "context": True,
        "at": now_text(),
    }


def missing_line(plan: Plan, attempt: Attempt, gave_up: GaveUp) -> dict[str, Any]:
    """What is known of an attempt that has no result: its tries and why (S16, S17)."""
    line = _head(plan, attempt)
    reason = reason_of(plan, attempt, {str(attempt.conversation): gave_up.entry()})
    last = next((t for t in reversed(gave_up.tries) if t["run_ids"]), None)
    line |= {
        "outcome": "missing",
        "reason": reason,
        "code": gave_up.code,
        "run_id": last["run_ids"][-1] if last else None,
        "chat_id": last["chat_id"] if last else None,
        "meaning": {"meaning": "no_result", "reason": reason, "code": gave_up.code},
        "trial_record": None,
        "findings": [],
        "graders": [],
        "judge_score": None,
        "judge_feedback": None,
        "tries": list(gave_up.tries),
        "recorded": "here",
        "usage": last["usage"] if last else None,
        "context": False,
        "at": now_text(),
    }
    return line


def _head(plan: Plan, attempt: Attempt) -> dict[str, Any]:
    case = plan.cases[attempt.case]
    return {
        "format": FORMAT,
        "case": case.name,
        "scenario": plan.scenario(attempt).id,
        "trial": attempt.trial,
        "evaluation": plan.evaluation_of(attempt).id,
    }


def now_text() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
