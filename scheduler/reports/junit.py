"""What do a CI server's test pages need? JUnit XML: a scenario is a testcase, its trials are in its output.

A reader that knows nothing but this file must come to the exit code's conclusion, so a testcase is red exactly where
the gate is (decision 016):

    passed                      nothing, also for a flaky one with --allow-flaky
    an attempt ended in error   <error type="error">: a grader that broke, a timeout; not the agent's wrong answer
    failed, or flaky            <failure type="failed"> or "flaky"
    worse than the baseline     <failure type="regressed"> or "weaker", with --fail-on-regression
    attempts missing            <error type="incomplete">: "skipped" is green on Jenkins, GitLab and GitHub alike
    in quarantine, not passed   <skipped>: green, as the gate is, and counted apart; it says why, with its failure
    missing, as --allow-missing <skipped> likewise

Flaky is a property too, `<property name="flaky" value="true"/>`, so that it can be counted where it is allowed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from evalfleet.checks.scenario import Scenario
from evalfleet.checks.text import one_line, trial_number
from scheduler.render import pass_rate_in_words, trials_in_words
from scheduler.reports.report import MOST_OF_A_SENTENCE, Report, Standing, failures
from scheduler.reports.xmltext import tag, text
from scheduler.summary import ScenarioSummary
from scheduler.transcript import OUTCOMES, transcript

MOST_OF_A_TRIAL = 16_000
"""Characters of one trial's transcript; the artifact has all of it."""
MOST_OF_A_SCENARIO = 48_000
MOST_REASONS = 50
MOST_IN_ALL = 8_000_000
"""Characters of transcripts in one file. What is beyond says so; verdicts and reasons are always there."""


def junit_xml(report: Report) -> Iterator[str]:
    """The file in pieces; the memory of one case at a time."""
    summary = report.summary
    room = _Room(MOST_IN_ALL)
    suites: dict[str, list[ScenarioSummary]] = {}
    for scenario in summary.scenarios:
        suites.setdefault(scenario.case, []).append(scenario)
    yield '<?xml version="1.0" encoding="UTF-8"?>\n'
    counts = _counts(report, summary.scenarios)
    time = None if summary.seconds is None else f"{summary.seconds:.3f}"
    yield f"<{tag('testsuites', {'name': report.plan.suite, **counts, 'time': time})}>\n"
    for case, scenarios in suites.items():
        yield from _suite(report, case, scenarios, room)
    yield "</testsuites>\n"


def _suite(report: Report, case: str, scenarios: list[ScenarioSummary], room: _Room) -> Iterator[str]:
    body: list[str] = []
    spent = 0
    for scenario in scenarios:
        milliseconds, piece = _testcase(report, scenario, room)
        spent += milliseconds
        body.append(piece)
    attributes: dict[str, str | int | None] = {
        "name": case,
        **_counts(report, scenarios),
        "time": f"{spent / 1000:.3f}",
        "timestamp": report.plan.created_at[:19],
        "file": report.file(case) or None,
    }
    yield f"  <{tag('testsuite', attributes)}>\n"
    yield "    <properties>\n"
    for name, value in _properties(report):
        yield f"      <{tag('property', {'name': name, 'value': value})}/>\n"
    yield "    </properties>\n"
    yield from body
    yield "  </testsuite>\n"


def _properties(report: Report) -> Iterator[tuple[str, str]]:
    yield "submission", report.summary.submission
    yield "commit", report.summary.commit
    yield "artifact", report.summary.artifact
    yield "pass_rate", pass_rate_in_words(report.summary)
    if report.ended:
        yield "ended", report.ended


def _testcase(report: Report, scenario: ScenarioSummary, room: _Room) -> tuple[int, str]:
    """(milliseconds of all its trials, the element)."""
    asked = report.scenario(scenario.case, scenario.scenario)
    milliseconds = 0
    trials: list[str] = []
    said: dict[tuple[str, str], list[int]] = {}
    left = room.take(MOST_OF_A_SCENARIO)
    for trial, line in report.lines(scenario):
        milliseconds += _duration(line)
        trials.append(_trial(scenario, trial, line))
        if line is None or line.get("outcome") == "passed":
            continue
        if line.get("outcome") != "missing":
            for at, sentence in failures(asked, line):
                said.setdefault((str(at), sentence), []).append(trial)
        piece, left = _cut(_transcript(line, scenario.trials, asked), min(left, MOST_OF_A_TRIAL), left, scenario, trial)
        trials[-1] += piece
    room.give_back(left)
    attributes: dict[str, str | int | None] = {
        "classname": scenario.case,
        "name": scenario.scenario,
        "time": f"{milliseconds / 1000:.3f}",
        "file": asked.place.file,
        "line": asked.place.line,
    }
    parts = [f"    <{tag('testcase', attributes)}>\n"]
    marks = {}
    if scenario.verdict == "flaky" or (scenario.passed and scenario.failed):
        marks["flaky"] = "true"
    if scenario.quarantine is not None:
        marks["quarantine"] = report.apart(scenario)
    if scenario.remarks:
        marks["remarks"] = "; ".join(scenario.remarks)
    if marks:
        properties = "".join(f"        <{tag('property', {'name': n, 'value': v})}/>\n" for n, v in marks.items())
        parts.append(f"      <properties>\n{properties}      </properties>\n")
    parts.append(_outcome(report, scenario, said))
    parts.append(f"      <system-out>{text(chr(10).join(trials))}</system-out>\n    </testcase>\n")
    return milliseconds, "".join(parts)


def _outcome(report: Report, scenario: ScenarioSummary, said: Mapping[tuple[str, str], list[int]]) -> str:
    standing = report.standing(scenario)
    if standing is Standing.PASSED:
        return ""
    if standing is Standing.APART:
        message = f"{report.apart(scenario)}; {_message(scenario)}"
        return f"      <{tag('skipped', {'message': message})}/>\n"
    name = "failure" if standing in (Standing.FAILED, Standing.REGRESSED) else "error"
    kind, message = standing.value, _message(scenario)
    worse = report.worse(scenario)
    if standing is Standing.REGRESSED and worse is not None:
        kind, message = worse.move, f"{worse.move}: it was {worse.before.verdict} in the baseline; {message}"
    elif standing is Standing.FAILED and scenario.verdict == "flaky":
        kind = scenario.verdict
    reasons = dict(said)
    for attempt in scenario.missing:
        reasons["missing", attempt.reason] = [*reasons.get(("missing", attempt.reason), ()), attempt.trial]
    lines = [
        f"{trials_in_words(trials)}: {at}: {one_line(sentence, MOST_OF_A_SENTENCE)}"
        for (at, sentence), trials in reasons.items()
    ]
    if len(lines) > MOST_REASONS:
        lines[MOST_REASONS:] = [f"(… and {len(lines) - MOST_REASONS} more)"]
    element = tag(name, {"message": message, "type": kind})
    return f"      <{element}>{text(chr(10).join(lines))}</{name}>\n"


def _message(scenario: ScenarioSummary) -> str:
    """`2 of 5 trials passed; trial 1: the first failure`: a list of tests shows this alone."""
    counts = [f"{scenario.passed} of {scenario.trials} trials passed"] if scenario.trials > 1 else []
    if scenario.errors and scenario.trials > 1:
        counts.append(f"{scenario.errors} ended in an error")
    if scenario.missing:
        counts.append(f"{len(scenario.missing)} of {scenario.trials} missing")
    if scenario.refused:
        first = scenario.refused[0]
        which = f"trial {trial_number(first.trial)}: {one_line(first.reason, MOST_OF_A_SENTENCE)}"
        counts.append(f"{len(scenario.refused)} of {scenario.trials} not recorded; {which}")
    if len(scenario.unrecorded) > len(scenario.refused):
        unsent = len(scenario.unrecorded) - len(scenario.refused)
        counts.append(f"{unsent} of {scenario.trials} not recorded yet: a resume records them")
    if scenario.elsewhere:
        counts = [f"{len(scenario.elsewhere)} of {scenario.trials} recorded elsewhere, no evidence here"]
    if scenario.first_failure_in_words is not None:
        counts.append(one_line(scenario.first_failure_in_words, MOST_OF_A_SENTENCE))
    return "; ".join(counts) or f"the verdict is {scenario.verdict}"


def _trial(scenario: ScenarioSummary, trial: int, line: Mapping[str, Any] | None) -> str:
    """`trial 1: PASSED 0.3s run_…`."""
    name = f"trial {trial_number(trial)}"
    if line is None:
        if trial in scenario.elsewhere:
            return f"{name}: recorded elsewhere, no evidence here"
        why = next((attempt.reason for attempt in scenario.missing if attempt.trial == trial), "not played yet")
        return f"{name}: MISSING: {one_line(why, MOST_OF_A_SENTENCE)}"
    word = OUTCOMES.get(str(line.get("outcome")), str(line.get("outcome")))
    run = f" {line['run_id']}" if line.get("run_id") else ""
    record = line.get("trial_record")
    error = record.get("error") if isinstance(record, Mapping) and line.get("outcome") == "passed" else None
    though = f" although {one_line(str(error), MOST_OF_A_SENTENCE)}" if error else ""
    return f"{name}: {word} {_duration(line) / 1000:.3f}s{run}{though}"


def _transcript(line: Mapping[str, Any], trials: int, asked: Scenario) -> Iterator[str]:
    for row in transcript(line, trials, None, asked):
        yield row.plain


def _cut(rows: Iterable[str], most: int, left: int, scenario: ScenarioSummary, trial: int) -> tuple[str, int]:
    """The rows as far as they fit into `most` characters, each on a line of its own below what is there; and what is
    left of `left`."""
    kept: list[str] = []
    used = 0
    for row in rows:
        used += len(row) + 5
        if used > most:
            show = f"evalfleet show {scenario.case}/{scenario.scenario} --trial {trial_number(trial)}"
            kept.append(f"(… cut here: `{show}` has all)")
            return "".join(f"\n    {row}".rstrip(" ") for row in kept), max(0, left - min(used, most))
        kept.append(row)
    return "".join(f"\n    {row}".rstrip(" ") for row in kept), left - used


@dataclass(slots=True)
class _Room:
    """Characters that the whole file may still take."""

    left: int

    def take(self, wanted: int) -> int:
        got = min(wanted, self.left)
        self.left -= got
        return got

    def give_back(self, rest: int) -> None:
        self.left += rest


def _counts(report: Report, scenarios: Iterable[ScenarioSummary]) -> dict[str, str | int | None]:
    standings = [report.standing(scenario) for scenario in scenarios]
    return {
        "tests": len(standings),
        "failures": standings.count(Standing.FAILED) + standings.count(Standing.REGRESSED),
        "errors": standings.count(Standing.ERROR) + standings.count(Standing.INCOMPLETE),
        "skipped": standings.count(Standing.APART),
    }


def _duration(line: Mapping[str, Any] | None) -> int:
    record = None if line is None else line.get("trial_record")
    milliseconds = record.get("duration_ms") if isinstance(record, Mapping) else None
    return max(0, milliseconds) if isinstance(milliseconds, int) else 0
