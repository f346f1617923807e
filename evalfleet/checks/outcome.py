"""What does a terminal run mean, and is the attempt passed, failed, error or missing?

Two pure functions. `meaning_of` decides from the run and its journal by the platform's clock, so that whoever finds the
run again decides the same (S12, S17). `judge` puts the assertions and the graders' answers together (S16, S21–S26).
"""

from __future__ import annotations

import enum
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from decimal import Decimal
from fractions import Fraction
from typing import Any

from evalfleet.checks.expectation import Finding, Grader
from evalfleet.checks.matching import evaluate
from evalfleet.checks.scenario import Scenario
from evalfleet.checks.text import json_safe, one_line, plain_number
from evalfleet.checks.trial import Trial, TurnRecord, failure_sentence, once, run_seconds

HARNESS_CHANGED = "harness_changed"

INFRA_CODES = frozenset(
    {
        "server_lost",
        "usage_window_exceeded",
        "out_of_funds",
        "rate_limited",
        "internal_error",
        "upstream_unavailable",
        "agent_not_started",
        "agent_unauthorized",
        HARNESS_CHANGED,
    }
)
"""Failure codes of a run that are trouble of ours or the platform's, never the agent's (S17). `agent_not_started` is
our own server's: the operator's program could not be run at all, so the agent has had no say. `agent_unauthorized` is
a key that the agent's endpoint refuses: the operator's, too. `harness_changed`: its files were not those of the commit
while it was played (S33)."""

STOPPING_CODES = frozenset({"out_of_funds", "usage_window_exceeded", "agent_unauthorized", HARNESS_CHANGED})
"""Of these, the ones after which every further launch would fail too: the evaluation stops (S17)."""

TERMINAL = frozenset({"succeeded", "failed", "cancelled"})

LEFT_OUT = "left_out"
"""The kind of an answer that nobody asked for, and the code of an attempt that is missing for want of it."""

FEEDBACK_LINE = 500
"""Characters of one grader's line in `judge_feedback`."""

FEEDBACK = 4000
"""Characters of `judge_feedback` in all."""


class Meaning(enum.Enum):
    """RESULT: judged by its content. TIMEOUT and WAITING: an error of the attempt. NO_RESULT: tried again, then
    missing."""

    RESULT = "result"
    TIMEOUT = "timeout"
    WAITING = "waiting"
    NO_RESULT = "no_result"


@dataclass(frozen=True, slots=True)
class RunMeaning:
    """`reason`: the sentence, empty for a plain result. `code`: the run's failure code, or ours (`cancelled`,
    `not_terminal`, `not_played`)."""

    meaning: Meaning
    reason: str
    code: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"meaning": self.meaning.value, "reason": self.reason, "code": self.code}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> RunMeaning:
        """The meaning of our own document. ValueError, with the reason, if it is none."""
        try:
            return cls(Meaning(document["meaning"]), document["reason"], document.get("code", ""))
        except (KeyError, TypeError) as error:
            raise ValueError(f"this is not the document of a meaning: {error!r}") from error


def spent_seconds(turns: Sequence[TurnRecord]) -> float:
    """Σ(completed_at − started_at) over the turns: queueing, our back-off and grading don't count (S12)."""
    return sum(run_seconds(turn.run) for turn in turns)


def meaning_of(
    turns: Sequence[TurnRecord],
    *,
    timeout: float,
    infra_codes: Collection[str] = (),
    not_played: str | None = None,
) -> RunMeaning:
    """What the scenario's own turns, as far as they were played, mean together (S12, S17).

    `timeout` in seconds, `infra_codes` those of `[harness]` beside INFRA_CODES. `not_played`: the agent ended the
    conversation before (S8), so that having no turn is a result of the agent's. In this order: not terminal → no
    result; played by other files than the commit's → no result (S33); a turn failed with an infrastructure code → no
    result, however long it took (its times are then not the agent's: decision 031); spent ≥ timeout → timeout; then the
    first turn that did not succeed decides.
    """
    if not turns:
        if not_played is not None:
            return RunMeaning(Meaning.RESULT, "", "not_played")
        return RunMeaning(Meaning.NO_RESULT, "no run was started", "not_terminal")
    for number, turn in enumerate(turns):
        if turn.run.get("status") not in TERMINAL:
            return RunMeaning(Meaning.NO_RESULT, _said(turns, number), "not_terminal")
    for turn in turns:
        if (failure := _failure_of(turn)).get("code") == HARNESS_CHANGED:
            return RunMeaning(Meaning.NO_RESULT, str(failure.get("message")), HARNESS_CHANGED)
    for number, turn in enumerate(turns):
        if turn.run.get("status") == "failed" and (code := _failure_code(turn)) in INFRA_CODES | set(infra_codes):
            return RunMeaning(Meaning.NO_RESULT, _said(turns, number), code)
    spent = spent_seconds(turns)
    if spent >= timeout:
        in_turns = f" in {len(turns)} turns" if len(turns) > 1 else ""
        said = f"timed out: {_seconds(spent)} spent{in_turns}, and the timeout is {_seconds(timeout)}"
        return RunMeaning(Meaning.TIMEOUT, said, "timeout")
    result = RunMeaning(Meaning.RESULT, "")
    for number, turn in enumerate(turns):
        if turn.run.get("status") == "cancelled":
            if _asks_a_person(turn):
                said = "it asked a person and waited; nobody answers in an evaluation"
                return RunMeaning(Meaning.WAITING, said, "waiting")
            return RunMeaning(Meaning.NO_RESULT, _said(turns, number), "cancelled")
        if turn.run.get("status") == "failed" and not result.reason:
            result = RunMeaning(Meaning.RESULT, _said(turns, number), _failure_code(turn))
    return result


@dataclass(frozen=True, slots=True)
class GraderAnswer:
    """What came back from one call of a grader.

    `kind`: `answered` (then `passed` is a bool) | `error` (the grader raised, hung, crashed or answered unreadably:
    S24) | `judge_unavailable` (the judge's trouble, S26: the attempt is missing) | `stopped` (no judge configured, or
    its key refused: grading stops) | `left_out` (nobody asked it: `--no-graders`). `error` is a sentence unless
    answered. `log`: its stdout and stderr, cut. `llm_amount`: money as a decimal string, in
    `llm_currency`; both None where no price is known, or where there were several currencies, which are never added.
    """

    name: str
    kind: str
    passed: bool | None = None
    score: float | None = None
    why: str | None = None
    error: str | None = None
    log: str = ""
    duration_ms: int = 0
    llm_calls: int = 0
    llm_tokens: int = 0
    llm_amount: str | None = None
    llm_currency: str | None = None

    def to_json(self) -> dict[str, Any]:
        """JSON that every writer accepts: lone surrogates in a judge's words become U+FFFD (B11)."""
        document: dict[str, Any] = json_safe(asdict(self))
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> GraderAnswer:
        """The answer of our own document. ValueError, with the reason, if it is none."""
        known = {item.name for item in fields(cls)}
        try:
            return cls(**{key: value for key, value in document.items() if key in known})
        except (TypeError, AttributeError) as error:
            raise ValueError(f"this is not the document of a grader's answer: {error!r}") from error


@dataclass(frozen=True, slots=True)
class Judgement:
    """The attempt's outcome with its reason, and what every assertion found, in file order.

    `outcome`: `passed` | `failed` | `error` | `missing` (S16). `judge_score`: a plain decimal, the mean of the
    graders' scores (S25). `judge_feedback`: a line for each grader; for an error the reason.
    """

    outcome: str
    reason: str | None
    findings: tuple[Finding, ...]
    judge_score: str | None
    judge_feedback: str | None

    @property
    def verdict(self) -> str | None:
        """On the wire: an error is `failed`, a missing attempt is never recorded."""
        return {"passed": "passed", "failed": "failed", "error": "failed"}.get(self.outcome)


def judge(scenario: Scenario, trial: Trial, meaning: RunMeaning, answers: Sequence[GraderAnswer]) -> Judgement:
    """The judgement of one attempt. `answers` in the order of `scenario.graders`; fewer than those: not graded yet,
    which is missing.

    In this order: without a result of the run there is nothing to judge, which is missing, or an error where the run
    timed out or waited for a person. An assertion that failed decides, whatever the graders could not say: none of
    them could have saved the attempt (S23). Where the others hold or are open, a judge that is away leaves the attempt
    missing, a grader that broke is an error, and one that was left out leaves it missing; never passed.
    """
    if meaning.meaning is Meaning.NO_RESULT:
        return Judgement("missing", meaning.reason, _undecided(scenario, meaning.reason), None, None)
    if meaning.meaning is not Meaning.RESULT:
        findings = _findings(scenario, trial, {}, ungraded=f"not graded: {meaning.reason}")
        return Judgement("error", meaning.reason, findings, None, _cut(meaning.reason))
    if trial.not_played is not None:
        return Judgement("failed", trial.not_played, _undecided(scenario, trial.not_played), None, None)
    paired = dict(zip(_grader_places(scenario), answers, strict=False))
    findings = _findings(scenario, trial, paired, ungraded="it has not been graded yet")
    failed = next((finding for finding in findings if finding.passed is False), None)
    if failed is not None:
        score, feedback = _score(scenario, answers), _feedback(scenario, answers)
        return Judgement("failed", _with_error(failed, trial), findings, score, feedback)
    missing = _why_missing(scenario, findings, paired)
    if missing is not None:
        return Judgement("missing", missing, findings, None, None)
    left_out = {index: answer for index, answer in paired.items() if answer.kind == LEFT_OUT}
    broken = next((f for f in findings if f.passed is None and f.index not in left_out), None)
    if broken is not None:
        reason = _with_error(broken, trial)
        return Judgement("error", reason, findings, None, _cut(reason))
    if left_out:
        return Judgement("missing", _not_asked(left_out.values()), findings, None, None)
    score, feedback = _score(scenario, answers), _feedback(scenario, answers)
    if trial.error is not None and all(expectation.negative for expectation in scenario.expect):
        reason = f"{trial.error} (the scenario says only what must not happen, which does not pass a turn that failed)"
        return Judgement("failed", reason, findings, score, feedback)
    return Judgement("passed", None, findings, score, feedback)


def _with_error(finding: Finding, trial: Trial) -> str:
    """What decided, and beside it that the run itself failed: else a crash reads as a missing tool call, or as a
    grader that cannot read an answer."""
    if trial.error is None or trial.error in finding.sentence:
        return finding.sentence
    return f"{finding.sentence} ({one_line(trial.error, FEEDBACK_LINE)})"


def leave_out(scenario: Scenario) -> list[GraderAnswer]:
    """What stands in the place of the graders' answers where nobody asked them."""
    return [GraderAnswer(grader.name, LEFT_OUT, error="left out (--no-graders)") for grader in scenario.graders]


def _not_asked(answers: Iterable[GraderAnswer]) -> str:
    names = [answer.name for answer in answers]
    what = "1 grader was" if len(names) == 1 else f"{len(names)} graders were"
    return f"not judged: {what} left out ({one_line(', '.join(names), FEEDBACK_LINE)})"


def _grader_places(scenario: Scenario) -> list[int]:
    return [index for index, expectation in enumerate(scenario.expect) if isinstance(expectation, Grader)]


def _findings(
    scenario: Scenario, trial: Trial, paired: Mapping[int, GraderAnswer], *, ungraded: str
) -> tuple[Finding, ...]:
    """One for each expectation, in file order."""
    found: list[Finding] = []
    for index, expectation in enumerate(scenario.expect):
        if not isinstance(expectation, Grader):
            found.append(evaluate(expectation, trial, index=index))
        elif index not in paired:
            found.append(Finding(index, expectation.kind, None, f"{expectation.name}: {ungraded}"))
        else:
            found.append(Finding(index, expectation.kind, *_graded(expectation, paired[index])))
    return tuple(found)


def _undecided(scenario: Scenario, reason: str) -> tuple[Finding, ...]:
    return tuple(
        Finding(index, expectation.kind, None, f"not judged: {reason}")
        for index, expectation in enumerate(scenario.expect)
    )


def _why_missing(scenario: Scenario, findings: Sequence[Finding], paired: Mapping[int, GraderAnswer]) -> str | None:
    """The first grader without a judge's word (S26), or without any answer yet, in its sentence."""
    for number, index in enumerate(_grader_places(scenario)):
        answer = paired.get(index)
        if answer is None or answer.name != scenario.graders[number].name:
            return findings[index].sentence
        if answer.kind == "judge_unavailable":
            return f"judge_unavailable: {findings[index].sentence}"
        if answer.kind == "stopped":
            return findings[index].sentence
    return None


def _graded(expectation: Grader, answer: GraderAnswer) -> tuple[bool | None, str]:
    """The finding of a grader's answer: its own `pass` has to hold, and `pass_below` too (S25)."""
    name = expectation.name
    if answer.name != name:
        return None, f"{name}: the answer that came is one of {one_line(answer.name, 80)}"
    if answer.kind != "answered" or answer.passed is None:
        return None, f"{name}: {one_line(answer.error or answer.kind, FEEDBACK_LINE)}"
    said = f": {one_line(answer.why, 300)}" if answer.why else ""
    score = "" if answer.score is None else f" with the score {plain_number(answer.score)}"
    if not answer.passed:
        return False, f"{name} failed it{score}{said}"
    below = expectation.pass_below
    if below is not None:
        if answer.score is None:
            return False, f"{name} passed it, but gave no score, and pass_below is {plain_number(below)}{said}"
        if answer.score < below:
            return False, f"{name} gave {plain_number(answer.score)}, below {plain_number(below)}{said}"
    return True, f"{name} passed it{score}{said}"


def _score(scenario: Scenario, answers: Sequence[GraderAnswer]) -> str | None:
    """The mean of the scores that its graders gave, as a plain decimal (S25): exact, or to 17 digits at least where it
    has no end (1 / 3)."""
    pairs = zip(scenario.graders, answers, strict=False)
    own = [answer for grader, answer in pairs if answer.name == grader.name and answer.kind == "answered"]
    scores = [Fraction(Decimal(repr(answer.score))) for answer in own if answer.score is not None]
    if not scores:
        return None
    mean = sum(scores, Fraction(0)) / len(scores)
    places = _places(mean.denominator)
    if places is None:
        places = max(0, 16 - math.floor(math.log10(abs(mean.numerator)) - math.log10(mean.denominator)))
    digits = str(abs(round(mean * 10**places))).rjust(places + 1, "0")
    text = f"{digits[: len(digits) - places]}.{digits[len(digits) - places :]}".rstrip("0").rstrip(".")
    return f"-{text}" if mean < 0 and text != "0" else text


def _places(denominator: int) -> int | None:
    """How many decimal places a fraction in lowest terms has; None: it has no end."""
    twos = (denominator & -denominator).bit_length() - 1
    rest, fives = denominator >> twos, 0
    while rest % 5 == 0:
        rest, fives = rest // 5, fives + 1
    return max(twos, fives) if rest == 1 else None


def _feedback(scenario: Scenario, answers: Sequence[GraderAnswer]) -> str | None:
    """One line for each grader: its name, what it decided, its score, why; or why it decided nothing."""
    lines = []
    for grader, answer in zip(scenario.graders, answers, strict=False):
        if answer.kind == LEFT_OUT:
            continue
        decided, sentence = _graded(grader, answer)
        if decided is None:
            lines.append(one_line(sentence, FEEDBACK_LINE))
            continue
        parts = [grader.name, "passed" if answer.passed else "failed"]
        parts += [plain_number(answer.score)] if answer.score is not None else []
        parts += [answer.why] if answer.why else []
        lines.append(one_line(": ".join(parts), FEEDBACK_LINE))
    return _cut("\n".join(lines)) if lines else None


def _cut(feedback: str) -> str:
    lines = (one_line(line, FEEDBACK) for line in feedback.split("\n"))
    text = "\n".join(lines)
    return text if len(text) <= FEEDBACK else text[: FEEDBACK - 1] + "…"


def _said(turns: Sequence[TurnRecord], number: int) -> str:
    """The sentence about the turn with this number (from 0)."""
    where = f"turn {number + 1} of {len(turns)}" if len(turns) > 1 else "the run"
    return f"{where} {failure_sentence(turns[number].run)}"


def _failure_of(turn: TurnRecord) -> Mapping[str, Any]:
    failure = turn.run.get("failure")
    return failure if isinstance(failure, Mapping) else {}


def _failure_code(turn: TurnRecord) -> str:
    """The code of a failed run, or "". Its `retryable` says nothing here: trying an agent's own failure again would
    hide that the agent is flaky (S17)."""
    return str(_failure_of(turn).get("code") or "")


def _asks_a_person(turn: TurnRecord) -> bool:
    """More `interaction.created` than `interaction.answered` after them."""
    open_asks = 0
    for event in once(turn.events):
        if event.get("type") == "interaction.created":
            open_asks += 1
        elif event.get("type") == "interaction.answered":
            open_asks = max(open_asks - 1, 0)
    return open_asks > 0


def _seconds(seconds: float) -> str:
    return f"{plain_number(round(seconds, 1))} s"
