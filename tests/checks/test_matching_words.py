"""How much a finding's sentence shows of what was seen, and how near it says it was (S23): every bound at its edge."""

from __future__ import annotations

from typing import Any

import pytest

from evalfleet.checks import HookCall, Trial, evaluate, expectation_from_document
from evalfleet.checks.expectation import Grader
from evalfleet.checks.matching import LOOKED_INTO, first_mismatch
from tests.checks.trials import trial_with


def said(document: dict[str, Any], trial: Trial) -> str:
    return evaluate(expectation_from_document(document), trial).sentence


def numbered(count: int) -> Trial:
    """Calls t({"n": 1}), t({"n": 2}), … with the results "1", "2", …"""
    return trial_with(made=[("t", {"n": n}, str(n)) for n in range(1, count + 1)])


@pytest.mark.parametrize(("count", "more"), [(3, ""), (4, "; and 1 more calls"), (5, "; and 2 more calls")])
def test_three_other_calls_are_shown_and_the_rest_counted(count: int, more: str) -> None:
    assert said({"tool_called": {"name": "t", "args": {"n": 0}}}, numbered(count)) == (
        '"t" was never called with {"n":0}; it was called with {"n":1} (n is 1, not 0); {"n":2} (n is 2, not 0); '
        '{"n":3} (n is 3, not 0)' + more
    )


@pytest.mark.parametrize(("count", "more"), [(3, ""), (4, "; and 1 more"), (5, "; and 2 more")])
def test_three_results_are_shown_and_the_rest_counted(count: int, more: str) -> None:
    assert said({"result_contains": {"name": "t", "substring": "x"}}, numbered(count)) == (
        'no result of "t" contains "x"; it gave "1"; "2"; "3"' + more
    )


@pytest.mark.parametrize(("letters", "more"), [("abcde", ""), ("abcdef", " and 1 more"), ("abcdefg", " and 2 more")])
def test_five_other_tools_are_named_and_the_rest_counted(letters: str, more: str) -> None:
    trial = trial_with(made=[(letter * 3, {}) for letter in letters])
    assert said({"tool_called": {"name": "zzzz"}}, trial) == (
        '"zzzz" was never called; called were "aaa", "bbb", "ccc", "ddd", "eee"' + more
    )


def test_another_tools_name_is_shown_up_to_60_characters() -> None:
    trial = trial_with(made=[("a" * 60, {}), ("b" * 61, {})])
    assert said({"tool_called": {"name": "zzzz"}}, trial) == (
        f'"zzzz" was never called; called were "{"a" * 60}", "{"b" * 40} … [1 characters] … {"b" * 20}"'
    )


@pytest.mark.parametrize(
    ("before", "found", "after", "around"),
    [
        pytest.param("abcdefghij" * 4, "XY", "klmnopqrst" * 4, None, id="forty on each side are all"),
        pytest.param(
            "abcdefghij" * 4 + "!",
            "XY",
            "?" + "k" * 40,
            ("…" + ("abcdefghij" * 4 + "!")[1:], "?" + "k" * 39 + "…"),
            id="one more",
        ),
        pytest.param("y" * 40, "x" * 220, "z" * 40, None, id="300 are shown"),
    ],
)
def test_forty_characters_on_each_side_of_what_should_not_be_there(
    before: str, found: str, after: str, around: tuple[str, str] | None
) -> None:
    left, right = around or (before, after)
    sentence = said({"final_answer_not_contains": found}, trial_with(answer=before + found + after))
    assert sentence.endswith(f', at character {len(before) + 1}: "{left}{found}{right}"')


def test_of_more_than_300_characters_around_it_the_middle_goes() -> None:
    sentence = said({"final_answer_not_contains": "x" * 221}, trial_with(answer="y" * 40 + "x" * 221 + "z" * 40))
    assert sentence.endswith(f': "{"y" * 40}{"x" * 160} … [1 characters] … {"x" * 60}{"z" * 40}"')


def test_one_character_is_one() -> None:
    assert said({"final_answer_max_chars": 0}, trial_with(answer="a")) == (
        'the final answer has 1 character, and at most 0 are allowed; it is "a"'
    )


ENDS = "it matches but for the white space at its ends"
UNICODE = "it matches but for the Unicode form: one side is composed (NFC), the other is not"


@pytest.mark.parametrize(
    ("text", "answer", "near"),
    [
        ("  Paris ", "xx Paris", ENDS),
        ("two Words", "TWO\n words", "it matches but for letter case and white space"),
        ("two words", "two\n words", "it matches but for white space or line breaks"),
        ("ß", "SS", "it matches but for letter case"),
        ("É", "E\u0301", UNICODE),
        ("Ét", "e\u0301t", "it matches but for letter case"),
        ("Paris", "Rome", ""),
    ],
)
def test_how_nearly_an_answer_contained_it(text: str, answer: str, near: str) -> None:
    sentence = said({"final_answer_contains": text}, trial_with(answer=answer))
    assert sentence.endswith(f'" ({near})' if near else '"Rome"')


@pytest.mark.parametrize(
    ("expected", "seen", "near"),
    [
        ("a", " a", ENDS),
        (" a", "a", ENDS),
        (" a", "a ", ENDS),
        ("a", "A", "it matches but for letter case"),
        ("a", "xay", ""),
        ("a", "xAy", ""),
    ],
)
def test_how_nearly_an_argument_was_it(expected: str, seen: str, near: str) -> None:
    """The whole of it, and not a part."""
    sentence = f'the value is "{seen}", not "{expected}"'
    assert first_mismatch(expected, seen) == (f"{sentence} ({near})" if near else sentence)


@pytest.mark.parametrize(
    ("expected", "seen", "sentence"),
    [
        (1, 2, "the value is 2, not 1"),
        ([1, 2, 3], [1, 5, 3], "[1] is 5, not 2"),
        ([[1]], [[2]], "[0][0] is 2, not 1"),
        ({"a": [1]}, {"a": [2]}, "a[0] is 2, not 1"),
        ({"a": [1]}, {"a": [1, 2]}, "a has 2 elements, not 1"),
        ({"k" * 80: 1}, {}, "k" * 80 + " is not there"),
        ({"k" * 81: 1}, {}, f"{'k' * 53} … [2 characters] … {'k' * 26} is not there"),
        ({"k" * 80: 1}, {"k" * 80: 2}, "k" * 80 + " is 2, not 1"),
        ({"k" * 81: 1}, {"k" * 81: 2}, f"{'k' * 53} … [2 characters] … {'k' * 26} is 2, not 1"),
        ("s" * 78, 1, f'the value is 1, not "{"s" * 78}"'),
        ("s" * 79, 1, f'the value is 1, not "{"s" * 52} … [2 characters] … {"s" * 25}"'),
        (1, "t" * 78, f'the value is "{"t" * 78}", not 1'),
        (1, "t" * 79, f'the value is "{"t" * 52} … [2 characters] … {"t" * 25}", not 1'),
    ],
)
def test_where_and_how_arguments_differ(expected: Any, seen: Any, sentence: str) -> None:
    assert first_mismatch(expected, seen) == sentence


def test_b19_a_near_miss_is_looked_for_in_a_million_characters() -> None:
    last = trial_with(answer="x" * (LOOKED_INTO - 5) + "paris")
    assert LOOKED_INTO == 1_000_000
    assert said({"final_answer_contains": "Paris"}, last).endswith(" (it matches but for letter case)")
    assert said({"final_answer_contains": "Paris"}, trial_with(answer="x" * (LOOKED_INTO - 4) + "paris")).endswith('"')


def hook(name: str, decision: str, *, source: str = "hooks/it.py", fallback: bool = False) -> HookCall:
    return HookCall("run_1", name, decision, source, 1.0, fallback)


@pytest.mark.parametrize(
    ("hooks", "sentence"),
    [
        (
            [hook("stop.done", "done", source="splox.toolkit.stop")] * 2,
            '"stop.done" was answered by the platform\'s own code, 2×; no hook file of the tree was asked',
        ),
        ([hook("stop.don", "done")], '"stop.done" was never asked; "stop.don" was, which is another name'),
        (
            [hook(letter * 3, "done") for letter in "abcdef"],
            '"stop.done" was never asked; asked were "aaa", "bbb", "ccc", "ddd", "eee"',
        ),
        (
            [hook("a" * 60, "done"), hook("b" * 61, "done")],
            f'"stop.done" was never asked; asked were "{"a" * 60}", "{"b" * 40} … [1 characters] … {"b" * 20}"',
        ),
        (
            [hook("stop.done", "failed"), *[hook("stop.done", "failed", fallback=True)] * 2],
            '"stop.done" was asked 2 times and answered none (3 failed)',
        ),
        ([hook("stop.done", "")], '"stop.done" was asked once and decided 1 without a decision'),
    ],
    ids=["the platform's", "a near name", "five are named", "60 characters", "a replay", "no decision"],
)
def test_what_became_of_a_hook(hooks: list[HookCall], sentence: str) -> None:
    """S22."""
    assert said({"hook_called": {"name": "stop.done"}}, trial_with(hooks=hooks)) == sentence


def test_a_finding_is_the_first_unless_said_and_a_graders_is_made_elsewhere() -> None:
    assert evaluate(expectation_from_document({"no_error": True}), trial_with()).index == 0
    with pytest.raises(ValueError, match=r"^a grader's finding is made from its answer, not from the trial$"):
        evaluate(Grader("quality.answers"), trial_with())
