"""What is kept of attempt lines while they go by?

So little that an artifact of any size can be summed up: for each attempt how it ended, for each scenario and grader
their sums, and the words of the first failure alone. Lines come in any order, one for each attempt.
"""

from __future__ import annotations

import math
import statistics
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Any

from evalfleet.checks.outcome import LEFT_OUT
from evalfleet.checks.text import one_line
from evalfleet.evidence import EVIDENCE
from evalfleet.plan import Plan
from scheduler.spend import SpendCounter

_NO_LINE, _MISSING, _ELSEWHERE = 0, 1, 2
_FARTHEST = 400
"""Decimal places of a score to either side, more than a float has: one beyond is no score, and as an exact fraction it
would fill memory."""
_MOST_OF_A_REASON = 80
_CODES = {"passed": 3, "failed": 4, "error": 5}


class PlanLines:
    """The lines of a plan: what they cost, what its graders said, and how the attempts of each scenario ended."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.spend = SpendCounter(plan)
        self.graders = GraderLines()
        self._scenarios = {
            (case.name, planned.scenario.id): ScenarioLines(planned.scenario.trials)
            for case in plan.cases
            for planned in case.scenarios
            if planned.evaluation is not None
        }

    def add(self, line: Mapping[str, Any]) -> None:
        self.spend.add(line)
        if not line.get("context"):
            scenario = self._scenarios.get((line["case"], line["scenario"]))
            if scenario is not None and scenario.add(line):
                self.graders.add(line)

    def of(self, case: str, scenario: str) -> ScenarioLines:
        """Of a scored scenario."""
        return self._scenarios[case, scenario]

    def agent_notes(self) -> AgentNotes | None:
        """Of all scored trials."""
        noted = [(name, lines.note) for name, lines in self._scenarios.items() if lines.note is not None]
        if not noted:
            return None
        (case, scenario), (trial, note) = noted[0]
        return AgentNotes(sum(lines.noted for lines in self._scenarios.values()), case, scenario, trial, note)


@dataclass(frozen=True, slots=True)
class AgentNotes:
    """What is to be said of how agents were read: of how many trials, and the first of them in the plan's order."""

    trials: int
    case: str
    scenario: str
    trial: int
    note: str

    def document(self) -> dict[str, Any]:
        """The notes in `--json`."""
        first = {"case": self.case, "scenario": self.scenario, "trial": self.trial, "note": self.note}
        return {"trials": self.trials, "first": first}


class ScenarioLines:
    """The lines of one scenario, from trial 0 to `trials` - 1; any beyond are nobody's attempt."""

    __slots__ = (
        *("_durations", "_states", "_why", "lost", "note", "noted"),
        *("passed_with_failed_turn", "repeated", "score_sum", "scored"),
    )

    def __init__(self, trials: int) -> None:
        self._states = bytearray(trials)
        self._durations = array("q")
        self._why: dict[int, str] = {}
        self.lost: tuple[int, str, str | None] | None = None
        """The first trial with evidence that did not pass, its outcome, and why."""
        self.passed_with_failed_turn = 0
        """Trials that passed although a turn of theirs failed (S21)."""
        self.noted = 0
        """Trials with a note on how the agent was read, whatever became of them."""
        self.note: tuple[int, str] | None = None
        """The first of these, and what it says."""
        self.repeated: Counter[str] = Counter()
        """Tries before the one that gave a result, by why they had none (S17); a missing attempt's reason says it."""
        self.scored = 0
        self.score_sum = Fraction(0)

    def add(self, line: Mapping[str, Any]) -> bool:
        """Count a line. False if nothing of it counts: it is of no attempt, its attempt has had one, or the evaluation
        holds another run for it."""
        trial, outcome, reason = line["trial"], line["outcome"], line.get("reason")
        if not 0 <= trial < len(self._states) or self._states[trial] != _NO_LINE:
            return False
        if line.get("recorded") == "elsewhere":
            self._states[trial] = _ELSEWHERE
            return False
        if said := _note(line):
            self.noted += 1
            self.note = min(self.note or (trial, said), (trial, said))
        if outcome not in EVIDENCE:
            self._states[trial] = _MISSING
            if reason is not None:
                self._why[trial] = reason
        else:
            self._states[trial] = _CODES[outcome]
            self._measure(line)
            self.repeated.update(_repeated_tries(line))
            self.passed_with_failed_turn += outcome == "passed" and _has_failed_turn(line)
            if outcome != "passed" and (self.lost is None or trial < self.lost[0]):
                self.lost = (trial, outcome, reason)
        return True

    def has(self, trial: int) -> bool:
        """Has its line come?"""
        return self._states[trial] != _NO_LINE

    def count(self, outcome: str) -> int:
        """Attempts with evidence that is ours."""
        return self._states.count(_CODES[outcome])

    def known(self) -> list[int]:
        """Trials with evidence that is ours."""
        return [trial for trial, state in enumerate(self._states) if state > _ELSEWHERE]

    def elsewhere(self, recorded: frozenset[int] | None) -> tuple[int, ...]:
        """Trials that the evaluation holds and we have no evidence of; `recorded`: what it holds, where that is known
        (S35)."""
        return tuple(
            trial
            for trial, state in enumerate(self._states)
            if state == _ELSEWHERE or (state <= _MISSING and recorded is not None and trial in recorded)
        )

    def why(self, trial: int) -> str | None:
        """What the line of a missing attempt says."""
        return self._why.get(trial)

    def duration_ms(self) -> int | None:
        """The median."""
        return round(statistics.median(self._durations)) if self._durations else None

    def _measure(self, line: Mapping[str, Any]) -> None:
        record = line.get("trial_record")
        duration = record.get("duration_ms") if isinstance(record, Mapping) else None
        if isinstance(duration, int) and abs(duration) < 2**62:
            self._durations.append(duration)
        score = _decimal(line.get("judge_score"))
        if score is not None:
            self.scored += 1
            self.score_sum += Fraction(score)


@dataclass(frozen=True, slots=True)
class GraderSummary:
    """One grader over all trials that it was asked about (S30). `answered` of `calls` gave a decision, `passed` of
    these it passed; `score` is the mean of the `scored` answers that had one, None where there is none."""

    name: str
    calls: int
    answered: int
    passed: int
    scored: int
    score: float | None

    def document(self) -> dict[str, Any]:
        """The grader in `--json`."""
        return {
            "name": self.name,
            "calls": self.calls,
            "answered": self.answered,
            "passed": self.passed,
            "scored": self.scored,
            "score": self.score,
        }


class GraderLines:
    """The graders' answers, by name."""

    def __init__(self) -> None:
        self._counts: dict[str, list[int]] = {}  # calls, answered, passed, scored
        self._sums: dict[str, Fraction] = {}

    def add(self, line: Mapping[str, Any]) -> None:
        for answer in answers_of(line):
            if answer.get("kind") == LEFT_OUT:
                continue
            name = str(answer.get("name") or "")
            counts = self._counts.setdefault(name, [0, 0, 0, 0])
            counts[0] += 1
            if answer.get("kind") != "answered":
                continue
            counts[1] += 1
            counts[2] += answer.get("passed") is True
            score = answer.get("score")
            if isinstance(score, int | float) and not isinstance(score, bool):
                counts[3] += 1
                self._sums[name] = self._sums.get(name, Fraction(0)) + Fraction(Decimal(repr(score)))

    def summaries(self) -> tuple[GraderSummary, ...]:
        """By name."""
        return tuple(
            GraderSummary(name, calls, answered, passed, scored, float(self._sums[name] / scored) if scored else None)
            for name, (calls, answered, passed, scored) in sorted(self._counts.items())
        )


def answers_of(line: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The graders' answers that a line holds, as far as they are any."""
    graders = line.get("graders")
    for answer in graders if isinstance(graders, Sequence) and not isinstance(graders, str) else ():
        if isinstance(answer, Mapping):
            yield answer


def _has_failed_turn(line: Mapping[str, Any]) -> bool:
    record = line.get("trial_record")
    return isinstance(record, Mapping) and bool(record.get("error"))


def _note(line: Mapping[str, Any]) -> str:
    """The first note of a line's trial, "" where it has none."""
    record = line.get("trial_record")
    notes = record.get("notes") if isinstance(record, Mapping) else None
    return str(notes[0]) if isinstance(notes, list) and notes else ""


def _repeated_tries(line: Mapping[str, Any]) -> Iterator[str]:
    """Why each try but the last had no result: its code, or the sentence in artifacts that do not have the code."""
    tries = line.get("tries")
    for one in tries[:-1] if isinstance(tries, list) else ():
        if isinstance(one, Mapping) and one.get("reason"):
            yield str(one.get("code") or one_line(str(one["reason"]), _MOST_OF_A_REASON))


def _decimal(value: Any) -> Decimal | None:
    try:
        number = Decimal(value) if isinstance(value, str | int) else None
    except InvalidOperation:
        return None
    if number is None or not number.is_finite() or abs(number.adjusted()) > _FARTHEST or math.isinf(float(number)):
        return None
    return number
