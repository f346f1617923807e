"""How does a person read a result: a line for each scenario, the rates, what is missing and what to do about it?

stdout carries this, or `--json`, and nothing else (S37). The last line is always spend, time, artifact.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import TextIO

from rich.cells import cell_len
from rich.text import Text

from evalfleet.checks.text import trial_number
from evalfleet.checks.verdict import Rate
from scheduler.layout import clean, duration, fit, pad, width_of, wrap, write_lines
from scheduler.spend import Spend, plain
from scheduler.summary import EvaluationSummary, MissingAttempt, ScenarioSummary, Summary
from scheduler.tallies import AgentNotes, GraderSummary

STYLES = {"pass": "green", "flaky": "yellow", "fail": "bold red", "incomplete": "magenta"}
WORDS = {"pass": "PASS", "flaky": "FLAKY", "fail": "FAIL", "incomplete": "INCOMPLETE"}
ROOM_FOR_WORDS = 60
"""Cells that must be left beside the columns for a failure's words to stand there; else they go below."""
MOST_MISSING = 20
"""Scenarios that the message of exit 3 names; the others are counted."""

Section = Callable[[int | None], Iterable[Text]]
"""Lines for a width."""

_WIDEST_NAME = 40  # in a pipe: longer names are shown whole, and push their own line only
_CASE_BESIDE, _ID_BESIDE = 24, 48  # the most that names get where words stand beside them
_GAP = "  "


def print_summary(summary: Summary, stream: TextIO, more: Sequence[Section] = ()) -> None:
    """Everything about a result, on stdout. `more`: what stands before the last line."""
    write_lines(summary_lines(summary, width_of(stream), more), stream)


def summary_lines(summary: Summary, width: int | None, more: Sequence[Section] = ()) -> Iterator[Text]:
    """A line for each scenario, one for each evaluation and grader, what else there is to know, and the last line."""
    yield from scenario_lines(summary.scenarios, width)
    yield Text()
    yield _counts(summary)
    for line in rate_lines(summary):
        for index, part in enumerate(wrap(line, None if width is None else width - 5)):
            yield Text("     " * (index > 0) + part)
    for grader in summary.graders:
        yield Text(_grader(grader))
    if summary.context_turns:
        yield Text(f"{_many(summary.context_turns, 'context turn')}: played and paid for, in no rate")
    if summary.agent_notes is not None:
        parts = wrap(agent_notes(summary.agent_notes), None if width is None else width - 4)
        yield from (Text("    " * (index > 0) + part, "yellow") for index, part in enumerate(parts))
    for section in more:
        yield Text()
        yield from section(width)
    if more:
        yield Text()
    yield last_line(summary)


def scenario_lines(scenarios: Sequence[ScenarioSummary], width: int | None) -> Iterator[Text]:
    """case, scenario, verdict, how many of how many, median duration, the first failure and what else there is to know.

    Where a terminal leaves too little room for the words they stand below, indented.
    """
    rows = [_Row(scenario) for scenario in scenarios]
    word_width = max((len(row.verdict) for row in rows), default=0)
    count_width = max((len(row.count) for row in rows), default=0)
    time_width = max((len(row.time) for row in rows), default=0)
    fixed = word_width + time_width + len(_GAP) * 3 + (count_width + len(_GAP) if count_width else 0)
    case_width = _widest((row.case for row in rows), width)
    id_width = _widest((row.id for row in rows), width)
    if width is not None:
        case_width, id_width = _shared(width - fixed, case_width, id_width)
    left = None if width is None else width - fixed - case_width - id_width
    for row in rows:
        names = [row.case, row.id] if width is None else [fit(row.case, case_width), fit(row.id, id_width)]
        line = Text(f"{pad(names[0], case_width)}{_GAP}{pad(names[1], id_width)}{_GAP}")
        line.append(row.verdict.ljust(word_width), STYLES[row.scenario.verdict])
        if count_width:
            line.append(_GAP + row.count.ljust(count_width))
        line.append(_GAP + row.time.rjust(time_width), "dim")
        if not row.words:
            line.rstrip()
            yield line
        elif left is None or left >= ROOM_FOR_WORDS:
            yield from _beside(line, row.words, left)
        else:
            line.rstrip()
            yield line
            assert width is not None
            yield from (Text(f"    {part}") for part in wrap(row.words, width - 4))


def last_line(summary: Summary) -> Text:
    """Spend, time, artifact (S37)."""
    parts = [_spent(summary.spend)]
    if summary.seconds is not None:
        parts.append(duration(summary.seconds * 1000))
    return Text(_GAP.join([*parts, clean(summary.artifact)]))


def incomplete_message(summary: Summary) -> str:
    """What exit 3 says (S18): which attempts are missing and why, and the two ways on. Several lines, for stderr."""
    lines = []
    if summary.missing:
        lines.append(f"incomplete: {summary.missing} of {_many(summary.attempts, 'attempt')} missing")
        lines += _attempt_lines([(scenario, scenario.missing) for scenario in summary.scenarios])
    if summary.refused:
        lines.append(
            f"{_many(summary.refused, 'attempt')} with evidence here, refused by the server: "
            "a resume sends them once more and plays nothing again"
        )
        lines += _attempt_lines([(scenario, scenario.refused) for scenario in summary.scenarios])
    if summary.unrecorded > summary.refused:
        lines.append(
            f"{_many(summary.unrecorded - summary.refused, 'attempt')} with evidence here, not recorded on the "
            "evaluation yet: a resume records them and plays nothing again"
        )
    if summary.missing_allowed:
        return "\n".join([*lines, "  so many are allowed: the evaluation has ended with what is recorded"])
    goes_on = "plays what is missing" if summary.missing else "records what the server takes"
    lines.append(f"  evalfleet resume {summary.submission}   {goes_on}")
    lines.append(f"  evalfleet cancel {summary.submission}   ends it and keeps what is recorded")
    return "\n".join(lines)


class _Row:
    """The texts of one scenario's line."""

    def __init__(self, scenario: ScenarioSummary) -> None:
        self.scenario = scenario
        self.case = clean(scenario.case)
        self.id = clean(scenario.scenario)
        self.verdict = WORDS[scenario.verdict]
        self.count = scenario_count(scenario)
        self.time = "" if scenario.duration_ms is None else duration(scenario.duration_ms)
        self.words = clean("; ".join(_words(scenario)))


def scenario_count(scenario: ScenarioSummary) -> str:
    """`4 of 5` where attempts are missing (S18), else passed of several; nothing beside a single trial."""
    if scenario.missing:
        return f"{scenario.trials - len(scenario.missing)} of {scenario.trials}"
    if scenario.elsewhere or scenario.trials == 1:
        return ""
    return f"{scenario.passed}/{scenario.trials}"


def _words(scenario: ScenarioSummary) -> Iterator[str]:
    if scenario.first_failure_in_words is not None:
        yield scenario.first_failure_in_words
    yield from scenario.remarks
    if scenario.elsewhere:
        yield f"{trials_in_words(scenario.elsewhere)} recorded elsewhere, no evidence here"
    if scenario.quarantine is not None:
        yield str(scenario.quarantine)
    if scenario.was is not None:
        yield f"was {WORDS[scenario.was]}"
    if scenario.stale is not None:
        yield f"stale, as recorded: {scenario.stale}"


def _beside(line: Text, words: str, left: int | None) -> Iterator[Text]:
    start = line.cell_len + len(_GAP)
    parts = wrap(words, None if left is None else left - len(_GAP))
    line.append(_GAP + parts[0])
    yield line
    yield from (Text(" " * start + part) for part in parts[1:])


def _widest(names: Iterable[str], width: int | None) -> int:
    cells = (cell_len(name) for name in names)
    return max((n for n in cells if width is not None or n <= _WIDEST_NAME), default=0)


def _shared(room: int, case_width: int, id_width: int) -> tuple[int, int]:
    """What two columns of names get of `room` cells when they want more: the case at most a third, if it must."""
    if room - _CASE_BESIDE - _ID_BESIDE >= ROOM_FOR_WORDS:  # wide: one long name must not push the words below
        case_width, id_width = min(case_width, _CASE_BESIDE), min(id_width, _ID_BESIDE)
    if case_width + id_width <= room:
        return case_width, id_width
    case_width = min(case_width, max(room // 3, room - id_width, 4))
    return case_width, max(room - case_width, 4)


def _counts(summary: Summary) -> Text:
    seen = Counter(scenario.verdict for scenario in summary.scenarios)
    line = Text(f"{_many(len(summary.scenarios), 'scenario')}: ")
    parts = [(f"{seen[verdict]} {verdict}", STYLES[verdict]) for verdict in STYLES if seen[verdict]]
    for index, (text, style) in enumerate(parts):
        line.append(", " if index else "").append(text, style)
    apart = [scenario for scenario in summary.scenarios if scenario.quarantine is not None]
    if apart:
        bad = sum(scenario.verdict != "pass" for scenario in apart)
        line.append(f"; {len(apart)} in quarantine ({bad} did not pass), which gate nothing" if len(apart) > 1 else "")
        line.append(f"; 1 in quarantine ({apart[0].verdict}), which gates nothing" if len(apart) == 1 else "")
    errors = sum(scenario.errors for scenario in summary.scenarios)
    if errors:
        line.append(f"; {_many(errors, 'attempt')} ended in an error")
    crashed = sum(scenario.passed_with_failed_turn for scenario in summary.scenarios)
    if crashed:
        line.append(f"; {_many(crashed, 'attempt')} passed although a turn failed")
    return line


def agent_notes(notes: AgentNotes) -> str:
    """How many trials have a note, and the first one's: one sentence for all of them."""
    of = f"{_many(notes.trials, 'trial')}, first in {clean(notes.case)}/{clean(notes.scenario)}"
    return f"note ({of}): {clean(notes.note)}"


def rate_lines(summary: Summary) -> Iterator[str]:
    """The pass rate of all attempts, then a line for each number of trials that says more than that; each rate with its
    95 % interval and, where attempts are missing, its bounds and what it stands on (S18, S30)."""
    yield pass_rate_in_words(summary)
    for evaluation in summary.evaluations:
        if len(summary.evaluations) > 1 or evaluation.pass_at_1.value != summary.pass_rate.rate.value:
            yield _evaluation_rates(evaluation)
        elif evaluation.k > 1 or evaluation.judge_score is not None:
            yield _evaluation_rates(evaluation, alone=True)


def pass_rate_in_words(summary: Summary) -> str:
    """`pass rate 0.87: 20 of 23 attempts passed (95 % interval 0.74–0.97)`; with what is missing, and the bounds."""
    found, rate = summary.pass_rate, summary.pass_rate.rate
    missing = f"; {rate.missing} missing" if rate.missing else ""
    if found.passed is None:
        elsewhere = sum(len(scenario.elsewhere) for scenario in summary.scenarios)
        return f"pass rate unknown: {_many(elsewhere, 'attempt')} recorded elsewhere, no evidence here{missing}"
    if rate.value is None:
        return f"pass rate unknown: no attempt is recorded{missing}"
    of = f" of {_many(rate.n, 'scenario')}" if rate.n != len(summary.scenarios) else ""
    bounds = f", with them {rate.low:.2f}–{rate.high:.2f}" if rate.missing else ""
    sure = "too few files for an interval"
    if rate.interval is not None:
        sure = f"95 % interval {rate.interval[0]:.2f}–{rate.interval[1]:.2f}"
    counts = f"{found.passed:,} of {_many(found.recorded, 'attempt')}{of} passed"
    return f"pass rate {rate.value:.2f}: {counts}{missing}{bounds} ({sure})"


def _evaluation_rates(evaluation: EvaluationSummary, *, alone: bool = False) -> str:
    """`alone`: what the pass rate of all says already is left out."""
    k, of = evaluation.k, evaluation.scenarios
    if not evaluation.recorded:
        return f"k={k}  no attempt is recorded  ({_many(of, 'scenario')}, {evaluation.missing} missing)"
    parts = [f"k={k}"]
    if not alone:
        parts.append(f"pass@1 {_rate(evaluation.pass_at_1, of)}")
    if k > 1:
        parts += [f"pass@{k} {_rate(evaluation.pass_at_k, of)}", f"pass^{k} {_rate(evaluation.pass_hat_k, of)}"]
    if evaluation.judge_score is not None:
        parts.append(f"score {_score(evaluation.judge_score)}")
    missing = f", {evaluation.missing} missing" if evaluation.missing else ""
    if not alone:
        parts.append(f"({_many(of, 'scenario')}, {_many(evaluation.recorded, 'attempt')}{missing})")
    return _GAP.join(parts)


def _rate(rate: Rate, of: int) -> str:
    """`0.75 [0.60–0.80] n=3 (0.30–0.95)`: value, bounds, scenarios behind it, interval."""
    parts = ["none" if rate.value is None else f"{rate.value:.2f}"]
    if rate.missing and rate.low is not None and rate.high is not None:
        if rate.low == rate.high:  # whatever the missing give
            return f"{rate.low:.2f}"
        parts.append(f"[{rate.low:.2f}–{rate.high:.2f}]")
        if rate.n and rate.n != of:
            parts.append(f"n={rate.n}")
    if rate.interval is not None:
        parts.append(f"({rate.interval[0]:.2f}–{rate.interval[1]:.2f})")
    elif rate.n and rate.low is not None:
        parts.append("(too few)")
    return " ".join(parts)


def _grader(grader: GraderSummary) -> str:
    """How a grader decided, over all trials that it was asked about."""
    if not grader.answered:
        return f"{clean(grader.name)}: no decision in {_many(grader.calls, 'call')}"
    said = f"{clean(grader.name)}: passed {grader.passed} of {grader.answered}"
    if grader.score is not None:
        said += f", score {_score(grader.score)}" + (
            f" (n={grader.scored})" if grader.scored != grader.answered else ""
        )
    unanswered = grader.calls - grader.answered
    return said + (f", {_many(unanswered, 'call')} without a decision" if unanswered else "")


def _score(score: float) -> str:
    """`0.86`; one that two decimals would make 0, or a line of digits, as `5e-324`."""
    return f"{score:.2f}" if score == 0 or 0.005 <= abs(score) < 1e6 else f"{score:.3g}"


def _spent(spend: Spend) -> str:
    if not spend.chats and not spend.judge_calls:
        return "no spend reported"
    text = f"spent {_money(spend.amounts) or 'nothing'}, {spend.tokens:,} tokens"
    if spend.judge_calls:
        price = f", {_money(spend.judge_amounts)}" if spend.judge_amounts else ""
        text += f" (judge apart: {_many(spend.judge_calls, 'call')}, {spend.judge_tokens:,} tokens{price})"
    return text if spend.final else f"{text}, an estimate"


def _money(amounts: Mapping[str, Decimal]) -> str:
    """`0.5 EUR + 1 USD`."""
    return " + ".join(f"{plain(amount)} {currency}" for currency, amount in sorted(amounts.items()))


def _attempt_lines(found: Sequence[tuple[ScenarioSummary, Sequence[MissingAttempt]]]) -> Iterator[str]:
    """Attempts of scenarios, each with its reason; of more than MOST_MISSING scenarios how many there are."""
    named = [(scenario, attempts) for scenario, attempts in found if attempts]
    for scenario, attempts in named[:MOST_MISSING]:
        yield from _reason_lines(scenario, attempts)
    if rest := named[MOST_MISSING:]:
        attempts_left = sum(len(attempts) for _, attempts in rest)
        yield f"  and {_many(attempts_left, 'more attempt')} of {_many(len(rest), 'scenario')}"


def _reason_lines(scenario: ScenarioSummary, attempts: Iterable[MissingAttempt]) -> Iterator[str]:
    by_reason: dict[str, list[int]] = {}
    for attempt in attempts:
        by_reason.setdefault(attempt.reason, []).append(attempt.trial)
    for reason, trials in by_reason.items():
        yield f"  {clean(scenario.case)}/{clean(scenario.scenario)}  {trials_in_words(trials)}  {clean(reason)}"


def trials_in_words(trials: Iterable[int]) -> str:
    """Indices as people read them: `trial 4`, `trials 1–3, 8`."""
    runs: list[list[int]] = []
    for trial in map(trial_number, sorted(trials)):
        if runs and trial == runs[-1][-1] + 1:
            runs[-1].append(trial)
        else:
            runs.append([trial])
    shown = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)
    return f"trial{'s' if sum(map(len, runs)) > 1 else ''} {shown}"


def _many(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
