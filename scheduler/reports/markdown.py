"""What does a person need who opens a CI job and nothing else? A page of GitHub Markdown, for a step summary.

What did not pass comes first, each with its first failure; then what it looked like, for the first few; what passed is
folded away. All of it is bounded: GitHub takes no summary over 1 MiB. What agents said is shown as text, never as
Markdown, HTML, a mention or a link.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from evalfleet.checks.text import one_line, trial_number
from scheduler.differences import comparison_lines
from scheduler.layout import duration, paragraphs
from scheduler.render import WORDS, agent_notes, last_line, rate_lines, scenario_count
from scheduler.reports.report import Report, Standing, failures
from scheduler.summary import ScenarioSummary

MOST_ROWS = 200
"""Rows of each of the two tables."""
MOST_TOLD = 20
"""Scenarios of which the page shows a trial."""
MOST_FAILURES = 10
MOST_OF_A_SENTENCE = 400
MOST_OF_A_NOTE = 1000
MOST_OF_AN_ANSWER = 1500
MOST_OF_A_COMPARISON = 20_000

_SIGNS = {
    Standing.PASSED: "✅",
    Standing.FAILED: "❌",
    Standing.REGRESSED: "📉",
    Standing.ERROR: "💥",
    Standing.INCOMPLETE: "⏳",
    Standing.APART: "➖",
}
_ORDER = (Standing.ERROR, Standing.FAILED, Standing.REGRESSED, Standing.INCOMPLETE)
_SPECIAL = re.compile(r"[\\`*\[\]<>|~$&]|(?<![^\W_])_|_(?![^\W_])")
"""What would become something else in a line of GitHub Markdown; a `_` inside a word does not."""
_LINKING = re.compile(r"(?<!\w)@(?=\w)|(?<=:)//|\bwww\.")


def markdown(report: Report) -> Iterator[str]:
    """The page in pieces."""
    summary = report.summary
    yield f"## {_head_sign(report)} evalfleet: {summary.verdict}\n\n"
    yield f"{_counts(report)}\n\n"
    if report.ended:
        yield f"Ended early: {escaped(report.ended)}\n\n"
    open_ones = [s for s in summary.scenarios if report.standing(s) is not Standing.PASSED]
    if open_ones:
        yield from _table(report, open_ones, words=True)
        yield from _told(report, open_ones)
    if report.compared is not None:
        lines = [line.plain for line in comparison_lines(report.compared, None)]
        yield f"{fenced(chr(10).join(lines), MOST_OF_A_COMPARISON)}\n\n"
    passed = [s for s in summary.scenarios if report.standing(s) is Standing.PASSED]
    if passed:
        yield f"<details><summary>{len(passed):,} passed</summary>\n\n"
        yield from _table(report, passed, words=any(s.verdict != "pass" or s.remarks for s in passed))
        yield "</details>\n\n"
    for line in rate_lines(summary):
        yield f"- {escaped(line)}\n"
    if summary.agent_notes is not None:
        yield f"- {escaped(agent_notes(summary.agent_notes), MOST_OF_A_NOTE)}\n"
    yield f"- commit {code(summary.commit[:12])}, submission {code(summary.submission)}\n"
    yield f"- {escaped(last_line(summary).plain)}\n"
    if (summary.missing or summary.unrecorded) and not summary.missing_allowed:
        yield f"\n{code(f'evalfleet resume {summary.submission}')} plays what is missing; "
        yield f"{code(f'evalfleet cancel {summary.submission}')} ends it and keeps what is recorded.\n"


def escaped(text: str, most: int = MOST_OF_A_SENTENCE) -> str:
    """Somebody's sentence as one line of Markdown that shows exactly its characters. A comment inside `@name` and
    `https://` keeps GitHub from making a mention or a link of it."""
    shown = _SPECIAL.sub(lambda found: "\\" + found[0], one_line(text, most))
    return _LINKING.sub(lambda found: f"{found[0][:1]}<!-- -->{found[0][1:]}", shown)


def code(text: str) -> str:
    """Somebody's text as one line of code, by references: in a table a `|` ends the cell even in code."""
    shown = html.escape(one_line(text, MOST_OF_A_SENTENCE), quote=False)
    shown = re.sub(r"[|`*~$@\[\]\\]|(?<![^\W_])_|_(?![^\W_])|:(?=//)|\bw(?=ww\.)", _reference, shown)
    return f"<code>{shown}</code>"


def _reference(found: re.Match[str]) -> str:
    return f"&#{ord(found[0])};"


def fenced(text: str, most: int) -> str:
    """A block of code that the text cannot end: its fence is longer than any run of backticks in it."""
    lines = paragraphs(text, most)
    longest = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([f"{fence}text", *lines, fence])


def _head_sign(report: Report) -> str:
    standings = {report.standing(scenario) for scenario in report.summary.scenarios} or {Standing.INCOMPLETE}
    return next(_SIGNS[standing] for standing in (*_ORDER, Standing.PASSED, Standing.APART) if standing in standings)


def _counts(report: Report) -> str:
    summary = report.summary
    seen = Counter(scenario.verdict for scenario in summary.scenarios)
    parts = [f"{seen[verdict]:,} {verdict}" for verdict in WORDS if seen[verdict]]
    scenarios = f"{len(summary.scenarios):,} scenario{'' if len(summary.scenarios) == 1 else 's'}"
    return f"**{scenarios}: {', '.join(parts)}**; exit code {report.exit_code}"


def _table(report: Report, scenarios: list[ScenarioSummary], *, words: bool) -> Iterator[str]:
    yield "| | scenario | trials | time |" + (" first failure |" if words else "") + "\n"
    yield "| --- | --- | --- | ---: |" + (" --- |" if words else "") + "\n"
    for scenario in scenarios[:MOST_ROWS]:
        sign = _SIGNS[report.standing(scenario)]
        time = "" if scenario.duration_ms is None else duration(scenario.duration_ms)
        name = code(f"{scenario.case}/{scenario.scenario}")
        yield f"| {sign} {WORDS[scenario.verdict]} | {name} | {scenario_count(scenario)} | {time} |"
        apart = f"{report.apart(scenario)}; " if report.standing(scenario) is Standing.APART else ""
        yield f" {escaped(apart + _words(scenario))} |\n" if words else "\n"
    if len(scenarios) > MOST_ROWS:
        yield f"\n… and {len(scenarios) - MOST_ROWS:,} more; {code('evalfleet show')} lists all.\n"
    yield "\n"


def _words(scenario: ScenarioSummary) -> str:
    """The first failure, and what the verdict does not show."""
    said = (
        [] if scenario.first_failure is not None or not scenario.elsewhere else ["recorded elsewhere, no evidence here"]
    )
    if scenario.first_failure_in_words is not None:
        said = [scenario.first_failure_in_words]
    return "; ".join([*said, *scenario.remarks])


def _told(report: Report, scenarios: list[ScenarioSummary]) -> Iterator[str]:
    """The first trial that failed of the first scenarios: every assertion that it did not pass, and its answer."""
    told = 0
    for scenario in scenarios:
        trial = scenario.first_failure_trial
        line = None if trial is None else report.line(scenario.case, scenario.scenario, trial)
        if trial is None or line is None or line.get("outcome") == "missing":
            continue
        if told == MOST_TOLD:
            yield f"{code('evalfleet show CASE/SCENARIO')} shows the others.\n\n"
            return
        told += 1
        name = code(f"{scenario.case}/{scenario.scenario}")
        of = f" trial {trial_number(trial)} of {scenario.trials}" if scenario.trials > 1 else ""
        yield f"<details><summary>{name}{of}</summary>\n\n"
        yield from _trial(report, scenario, line)
        show = f"evalfleet show {scenario.case}/{scenario.scenario} --trial {trial_number(trial)}"
        yield f"Run {_run(report, line)} · {code(show)}\n\n</details>\n\n"


def _trial(report: Report, scenario: ScenarioSummary, line: Mapping[str, Any]) -> Iterator[str]:
    found = list(failures(report.scenario(scenario.case, scenario.scenario), line))
    for place, sentence in found[:MOST_FAILURES]:
        yield f"- {code(str(place))} {escaped(sentence)}\n"
    if len(found) > MOST_FAILURES:
        yield f"- … and {len(found) - MOST_FAILURES} more\n"
    record = line.get("trial_record")
    answer = record.get("final_answer") if isinstance(record, Mapping) else None
    yield "\nThere is no final answer.\n\n" if answer is None else f"\n{fenced(str(answer), MOST_OF_AN_ANSWER)}\n\n"


def _run(report: Report, line: Mapping[str, Any]) -> str:
    run = str(line.get("run_id") or "")
    if not run:
        return "(none)"
    if report.base_url is None:
        return code(run)
    return f"[{code(run)}]({report.base_url.rstrip('/')}/v2/runs/{quote(run, safe='')})"
