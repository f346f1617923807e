"""How does GitHub Actions show a failure at the line of the case file that asked for it?

By workflow commands on stderr: GitHub reads them from both streams, and stdout carries the result alone (S37). Each
assertion that failed is one annotation at its own line, and what did not pass without gating is a warning. GitHub shows
ten errors of a step and drops the others without a word, so no more are written, one of each scenario before a second
of any, and a notice says how many there are.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from pathlib import Path

from evalfleet.checks.place import CaseProblem, Place
from evalfleet.checks.text import one_line, trial_number
from evalfleet.errors import StorageError
from scheduler.reports.markdown import markdown
from scheduler.reports.report import GATING, Report, Standing, failures
from scheduler.summary import ScenarioSummary

MOST = 10
"""Annotations of one kind that GitHub shows of one step."""
MOST_OF_A_SENTENCE = 1000
MOST_SEEN = 200
"""Scenarios that are looked at for their places; the rest is counted by scenario."""


def in_actions(environment: Mapping[str, str]) -> bool:
    return environment.get("GITHUB_ACTIONS") == "true"


@dataclass(frozen=True, slots=True)
class Annotation:
    """`place.file` is a path from the repository's root, or "" where it is no file of it."""

    title: str
    message: str
    file: str
    line: int
    column: int

    def command(self, kind: str = "error") -> str:
        """`::error file=…,line=…,col=…,title=…::…` on one line."""
        place = {"file": self.file, "line": self.line, "col": self.column} if self.file else {}
        properties = ",".join(f"{key}={_property(str(value))}" for key, value in {**place, "title": self.title}.items())
        return f"::{kind} {properties}::{_data(self.message)}"


def commands(report: Report, root: Path | None, environment: Mapping[str, str]) -> Iterator[str]:
    """What to write on stderr, a line each. `root`: the tree's folder."""
    apart = [s for s in report.summary.scenarios if report.standing(s) is Standing.APART]
    for scenario in apart[:MOST]:
        for annotation in islice(_annotations(report, scenario, root, environment), 1):
            yield replace(annotation, message=f"{report.apart(scenario)}; {annotation.message}").command("warning")
    open_ones = [s for s in report.summary.scenarios if report.standing(s) in GATING]
    found = [list(_annotations(report, scenario, root, environment)) for scenario in open_ones[:MOST_SEEN]]
    in_turn = [annotation for row in zip_longest(*found) for annotation in row if annotation is not None]
    for annotation in in_turn[:MOST]:
        yield annotation.command()
    more = len(in_turn) - MOST + max(0, len(open_ones) - MOST_SEEN)
    if more > 0:
        text = (
            f"{more} more failures are not shown here: GitHub shows {MOST} of a step. {len(open_ones)} scenarios did "
        )
        yield f"::notice title=evalfleet::{_data(text + f'not pass; {report.summary.artifact} has all of them')}"


def problem_commands(problems: Sequence[object], root: Path | None, environment: Mapping[str, str]) -> Iterator[str]:
    """The same for case files that are refused: each problem at its character. What has no place in a case file is told
    by the message alone."""
    placed = [problem for problem in problems if isinstance(problem, CaseProblem)]
    for problem in placed[:MOST]:
        place = problem.place
        message = one_line(f"{problem.message}; {problem.hint}".removesuffix("; "), MOST_OF_A_SENTENCE)
        yield Annotation("case file", message, _file(place, root, environment), place.line, place.column).command()
    if len(placed) > MOST:
        more = len(placed) - MOST
        yield f"::notice title=evalfleet::{more} more problems are not shown here; the log has all of them"


def step_summary(report: Report, environment: Mapping[str, str]) -> None:
    """Add the Markdown page to the step's summary, if there is one. StorageError if it cannot be written."""
    place = environment.get("GITHUB_STEP_SUMMARY")
    if not in_actions(environment) or not place:
        return
    try:
        with Path(place).open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write("".join(markdown(report)) + "\n")
    except OSError as problem:
        raise StorageError(f"GITHUB_STEP_SUMMARY {place}: {problem.strerror}") from problem


def _annotations(
    report: Report, scenario: ScenarioSummary, root: Path | None, environment: Mapping[str, str]
) -> Iterator[Annotation]:
    """One for each assertion that some trial did not pass, in file order, with the first trial's sentence."""
    asked = report.scenario(scenario.case, scenario.scenario)
    seen: dict[Place, tuple[int | None, str]] = {}
    times: dict[Place, int] = {}
    for trial, line in report.lines(scenario):
        if line is None or line.get("outcome") in ("passed", "missing"):
            continue
        for place, sentence in failures(asked, line):
            seen.setdefault(place, (trial, sentence))
            times[place] = times.get(place, 0) + 1
    worse = report.worse(scenario)
    if worse is not None and not seen:
        said = f"{worse.move}: it was {worse.before.verdict} in the baseline, and is {scenario.verdict}"
        seen[asked.place] = (None, said)
    title = one_line(f"{scenario.case}/{scenario.scenario}", 250)
    if not seen:  # attempts are missing, or recorded elsewhere
        seen[asked.place] = (None, scenario.first_failure_in_words or f"it is {scenario.verdict}")
    for place, (first, sentence) in sorted(seen.items(), key=lambda item: (item[0].line, item[0].column)):
        which = f"trial {trial_number(first)}: " if scenario.trials > 1 and first is not None else ""
        of = f" (so in {times[place]} of {scenario.trials} trials)" if times.get(place, 0) > 1 else ""
        message = f"{which}{one_line(sentence, MOST_OF_A_SENTENCE)}{of}"
        yield Annotation(title, message, _file(place, root, environment), place.line, place.column)


def _file(place: Place, root: Path | None, environment: Mapping[str, str]) -> str:
    """From the repository's root, as GitHub wants it; "" for what is no file there (drafts)."""
    if root is None:
        return place.file
    file = root / place.file
    if not file.is_file():
        return ""
    workspace = environment.get("GITHUB_WORKSPACE")
    path = os.path.relpath(file.resolve(), Path(workspace).resolve()) if workspace else place.file
    return "" if path.startswith("..") else Path(path).as_posix()


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
