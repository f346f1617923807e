"""What an editor is told of a problem: where it starts and ends, and which value of the document it is (S2)."""

from __future__ import annotations

import pytest

from evalfleet.checks import CaseProblem
from tests.checks.reading import parsed, recorded, scenario

PLACED = [
    # one item of `expect`, the text that is meant, the pointer below /scenarios/0/expect
    ("{tool_caled: {name: t}}", "tool_caled", "/0/tool_caled"),
    ("{tool_called: {nam: t}}", "nam", "/0/tool_called/nam"),
    ("{max_tool_calls: {name: t, count: -1}}", "-1", "/0/max_tool_calls/count"),
    ("{no_error: true}, {result_contains: {name: t, substring: ''}}", "''", "/1/result_contains/substring"),
    ("{tool_called: {name: t, args: {a/b: 1, ~: 2}}}", "~", "/0/tool_called/args/~0"),
    ("{tool_called: {name: t, args: {a/b: 010}}}", "010", "/0/tool_called/args/a~1b"),
    ("{no_error: true, final_answer_contains: x}", "final_answer_contains", "/0/final_answer_contains"),
    ("{min_tool_calls: {name: t, count: 3}}, {max_tool_calls: {name: t, count: 2}}", "max_tool_calls", "/1/max_tool_c"),
    ("{tool_called: {}}", None, "/0/tool_called"),
]


@pytest.mark.parametrize(("item", "meant", "pointer"), PLACED, ids=[row[0] for row in PLACED])
def test_a_problem_knows_its_text_and_its_pointer(item: str, meant: str | None, pointer: str) -> None:
    (problem,) = parsed(scenario(item)).problems
    document = problem.document("error")
    assert str(document["pointer"]).startswith(f"/scenarios/0/expect{pointer}")
    assert text_at(scenario(item), problem) == meant
    assert (document["severity"], document["file"], document["line"]) == ("error", "evals/cases/tone.yaml", 4)


def text_at(source: str, problem: CaseProblem) -> str | None:
    """What stands from the place to the end of a problem within one line; None where no end is known."""
    if problem.end is None:
        return None
    line, column = problem.end
    assert line == problem.place.line
    return source.split("\n")[line - 1][problem.place.column - 1 : column - 1]


def test_the_document_is_whole_also_where_the_end_is_not_known() -> None:
    """A file that is no YAML has no document to point into."""
    (problem,) = recorded("A10.cycle.yaml").problems
    assert problem.document("error") == {
        "severity": "error",
        "file": "A10.cycle.yaml",
        "line": problem.place.line,
        "column": problem.place.column,
        "end_line": None,
        "end_column": None,
        "pointer": None,
        "message": problem.message,
        "hint": problem.hint,
        "source_line": problem.source_line,
    }


def test_a_value_that_stands_over_several_lines_ends_where_it_ends() -> None:
    late = "    user: hi\n    expect: [{no_error: true}]\n"
    text = f"scenarios:\n  - id: a\n    timeout: |-\n      five\n      minutes\n{late}"
    (problem,) = parsed(text).problems
    assert (problem.place.line, problem.end) == (3, (5, 14))


def test_a_warning_has_a_pointer_too() -> None:
    (warning,) = parsed(scenario("{hook_called: {name: tool.before}}")).warnings
    assert warning.document("warning")["pointer"] == "/scenarios/0/expect/0/hook_called/name"
    assert warning.document("warning")["severity"] == "warning"


def test_what_came_through_an_alias_points_to_where_it_stands() -> None:
    text = "scenarios:\n  - &a {id: a, user: hi, expect: [{no_error: 1}]}\n  - {<<: *a, id: b}\n"
    (problem,) = parsed(text).problems
    assert problem.pointer == "/scenarios/0/expect/0/no_error"
