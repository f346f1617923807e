"""What the commands print for people, on a terminal and elsewhere (S37)."""

from __future__ import annotations

import os
import pty
from collections.abc import Iterator
from contextlib import closing
from typing import TextIO

import pytest

from scheduler.cli.output import say_warnings, show_result, tell, tell_people
from scheduler.dispatch import Ended
from scheduler.evaluate import Result
from scheduler.summary import summarize
from tests.scheduler.samples import line, plan, scenario

PLACE = "evals/my results/20261130T124500Z-01234567"


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[TextIO, TextIO]]:
    """The terminal of a program, 40 columns wide, and its other end."""
    ours, theirs = pty.openpty()
    monkeypatch.setenv("COLUMNS", "40")
    with closing(os.fdopen(theirs, "w")) as stream, closing(os.fdopen(ours)) as other:
        yield stream, other


def test_what_is_told_to_people_breaks_at_blanks_and_json_never_does(
    monkeypatch: pytest.MonkeyPatch, terminal: tuple[TextIO, TextIO], capsys: pytest.CaptureFixture[str]
) -> None:
    text = "3 conversations, 9 turns, 1 of them context: paid for\nevaluations: checks/k2"
    tell_people(text)
    assert capsys.readouterr().out == f"{text}\n", "in a pipe every line stays whole"
    stream, other = terminal
    monkeypatch.setattr("sys.stdout", stream)
    tell_people(text)
    tell(text)
    shown = [other.readline().strip() for _ in range(5)]
    assert shown == [
        "3 conversations, 9 turns, 1 of them",
        "context: paid for",
        "evaluations: checks/k2",
        *text.split("\n"),
    ]


@pytest.mark.parametrize("outcome", ["passed", "failed"])
def test_a_person_is_told_which_command_says_why(
    monkeypatch: pytest.MonkeyPatch,
    terminal: tuple[TextIO, TextIO],
    capsys: pytest.CaptureFixture[str],
    outcome: str,
) -> None:
    asked = plan({"tone": [scenario("a")]})
    summary = summarize(asked, [line("a", 0, outcome)], artifact=PLACE)
    result = Result(summary, int(outcome == "failed"), Ended("completed"), asked)
    show_result(result, as_json=False)
    assert capsys.readouterr().err == "", "a log is spared it"
    stream, other = terminal
    monkeypatch.setattr("sys.stderr", stream)
    show_result(result, as_json=False)
    print("the end", file=stream, flush=True)
    shown = " ".join(line.strip() for line in iter(other.readline, "the end\n"))
    assert shown == (f"why: evalfleet show '{PLACE}'" if outcome == "failed" else "")


@pytest.mark.parametrize(
    ("number", "last"),
    [
        (0, ""),
        (3, "warning: 3"),
        (4, "and 1 more warning: `evalfleet validate` shows all of them"),
        (200, "and 197 more warnings: `evalfleet validate` shows all of them"),
    ],
)
def test_before_a_run_the_first_warnings_of_a_tree_are_said_and_the_others_counted(
    number: int, last: str, capsys: pytest.CaptureFixture[str]
) -> None:
    say_warnings([f"warning: {n}" for n in range(1, number + 1)])
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"warning: {n}" for n in range(1, min(number, 3) + 1)] + ([last] if number > 3 else [])
