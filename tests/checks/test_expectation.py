"""The twelve as values: what is no document of one, what no grader's name, and findings on their way through JSON."""

from __future__ import annotations

import re
from typing import Any

import pytest

from evalfleet.checks.expectation import (
    Finding,
    NoError,
    ToolCalled,
    expectation_from_document,
    grader_name_fault,
)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("quality.answers", None),
        ("X.answers", None),
        ("no-python name.answers", '"no-python name" is not the name of a file in evals/graders/'),
        ("quality", "a grader is named <file>.<function>; there is no dot in it"),
        (".answers", "a grader is named <file>.<function>; there is no file before the dot"),
        ("quality.", "a grader is named <file>.<function>; there is no function after the dot"),
        ("a.b.c", 'the name is read to the first dot, and the function "b.c" cannot have a dot in it'),
        ("quality.is it", '"is it" is not a name that a Python function can have'),
        ("quality._hidden", '"_hidden" is private; a grader is a public function'),
        ("../quality.answers", "a grader is named <file>.<function>; there is no file before the dot"),
        ("a/b.answers", '"a/b" is not the name of a file in evals/graders/'),
        ("a\\b.answers", '"a\\b" is not the name of a file in evals/graders/'),
        ("a\x00.answers", '"a\x00" is not the name of a file in evals/graders/'),
    ],
)
def test_a14_what_is_no_graders_name_says_why(name: str, fault: str | None) -> None:
    assert grader_name_fault(name) == fault


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ({}, "an assertion is a mapping with one key, not 0"),
        ({"no_error": True, "tool_called": {}}, "an assertion is a mapping with one key, not 2"),
        ({"no_errors": True}, '"no_errors" is not an assertion'),
        ({"tool_called": "t"}, "tool_called takes a mapping, not 't'"),
        ({"tool_called": {"name": "t", "z": 1, "b": 2}}, "tool_called has no key 'b'"),
        ({"tool_called": {"args": {}}}, "tool_called has no 'name'"),
        ({"tool_called": {"name": ""}}, "tool_called.name cannot be ''"),
        ({"tool_called": {"name": 5}}, "tool_called.name cannot be 5"),
        ({"tool_called": {"name": "t", "args": []}}, "tool_called.args cannot be []"),
        ({"max_tool_calls": {"name": "t", "count": "3"}}, "max_tool_calls.count cannot be '3'"),
        ({"max_tool_calls": {"name": "t", "count": True}}, "max_tool_calls.count cannot be True"),
        ({"max_tool_calls": {"name": "t", "count": -1}}, "max_tool_calls.count cannot be -1"),
        ({"max_tool_calls": {"name": "t", "count": 1.0}}, "max_tool_calls.count cannot be 1.0"),
        ({"final_answer_contains": ""}, "final_answer_contains cannot be ''"),
        ({"no_error": False}, "no_error cannot be False"),
        ({"no_error": 1}, "no_error cannot be 1"),
        ({"grader": {"name": "q.a", "pass_below": "0.7"}}, "grader.pass_below cannot be '0.7'"),
        ({"grader": {"name": "q.a", "pass_below": True}}, "grader.pass_below cannot be True"),
        ({"grader": {"name": "q.a", "pass_below": float("inf")}}, "grader.pass_below cannot be inf"),
        ({"grader": {"name": "q.a", "pass_below": 10**400}}, f"grader.pass_below cannot be {10**400}"),
    ],
    ids=str,
)
def test_what_is_no_document_of_an_assertion_says_why(document: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(why)}$"):
        expectation_from_document(document)


def test_least_counts_and_thresholds_are_taken() -> None:
    for document in ({"max_tool_calls": {"name": "t", "count": 0}}, {"grader": {"name": "q.a", "pass_below": 1}}):
        assert expectation_from_document(document).document() == document
    assert expectation_from_document({"no_error": True}) == NoError()


def test_an_assertion_with_arguments_can_stand_in_a_set() -> None:
    one, same, other = (ToolCalled("t", {"a": n}) for n in (1, 1, 2))
    assert len({one, same, other}) == 2


def test_a_finding_comes_back_from_json_as_it_was() -> None:
    finding = Finding(3, "no_error", None, "not judged")
    document = {"index": 3, "kind": "no_error", "passed": None, "sentence": "not judged"}
    assert finding.to_json() == document
    assert Finding.from_json(document) == finding
    for missing in document:
        with pytest.raises(ValueError, match=r"^this is not the document of a finding: KeyError"):
            Finding.from_json({key: value for key, value in document.items() if key != missing})
