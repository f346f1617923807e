"""S24: what counts as a grader's answer."""

from __future__ import annotations

import decimal
import fractions
import json
import types
from typing import Any

import pytest

from evalfleet.graders.inside.answers import SEEN_CHARS, WHY_CHARS, Malformed, cut, describe, read_answer
from tests.graders.trees import CASES

B09: list[tuple[Any, str]] = [tuple(row) for row in json.loads((CASES / "B09.json").read_text())]


@pytest.mark.parametrize(("value", "wanted"), B09, ids=[json.dumps(value) for value, _ in B09])
def test_b09_only_a_bool_or_a_mapping_with_a_bool_pass_is_an_answer(value: Any, wanted: str) -> None:
    if wanted == "malformed":
        with pytest.raises(Malformed, match="answered"):
            read_answer(value)
        return
    answer = read_answer(value)  # pass_below is the case's and judged by evalfleet.checks (S25)
    assert answer["pass"] is (value if isinstance(value, bool) else value["pass"])
    assert answer["score"] == (None if isinstance(value, bool) else value.get("score"))


class Reply(str):
    """As t.llm's answer: a text that is more than one. What it says of itself is not asked."""

    def __str__(self) -> str:
        raise AssertionError

    def encode(self, *_: Any) -> bytes:
        raise AssertionError


@pytest.mark.parametrize(
    ("value", "answer"),
    [
        ({"pass": True, "score": decimal.Decimal("0.7")}, (True, 0.7, None)),
        ({"pass": True, "score": fractions.Fraction(1, 2)}, (True, 0.5, None)),
        ({"pass": False, "why": 3, "more": object()}, (False, None, "3")),
        ({"pass": False, "why": None, "score": None}, (False, None, None)),
        (types.MappingProxyType({"pass": True}), (True, None, None)),
        ({"pass": True, "why": "a\ud800b"}, (True, None, "a\\ud800b")),
        ({"pass": True, "score": -85}, (True, -85.0, None)),
        ({"pass": True, "score": decimal.Decimal("1E-400")}, (True, 0.0, None)),
        ({"pass": True, "why": Reply("fine")}, (True, None, "fine")),
        ({"pass": True, "why": ["a", 1]}, (True, None, "['a', 1]")),
    ],
    ids=[
        "decimal",
        "fraction",
        "why is made text",
        "None is absent",
        "any mapping",
        "a lone surrogate is spelt out",
        "a whole number below 0",
        "a decimal that no float is near",
        "a text with a class of its own",
        "a list as why",
    ],
)
def test_a_mapping_is_read_leniently_where_nothing_can_be_mistaken(value: Any, answer: tuple[Any, ...]) -> None:
    assert tuple(read_answer(value).values()) == answer


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({"pass": True, "score": float("nan")}, "nan; wanted a finite number"),
        ({"pass": True, "score": float("inf")}, "inf"),
        ({"pass": True, "score": 10**400}, "over 256 bits"),
        ({"pass": True, "score": decimal.Decimal("sNaN")}, "Decimal; wanted a finite number"),
        ({"pass": True, "score": decimal.Decimal("-Infinity")}, "Decimal; wanted a finite number"),
        ({"pass": True, "score": 1 + 2j}, "complex"),
        (object(), "object"),
        (b"pass", "bytes"),
        (iter(()), "tuple_iterator"),
    ],
    ids=["nan", "inf", "overflow", "a NaN of Decimal", "a decimal infinity", "complex", "object", "bytes", "iterator"],
)
def test_the_sentence_names_what_was_seen(value: Any, named: str) -> None:
    with pytest.raises(Malformed, match=named):
        read_answer(value)


def test_a_bool_of_another_library_is_malformed() -> None:
    class bool_(int):
        """As numpy's: equal to True, and no bool."""

    with pytest.raises(Malformed, match="bool_"):
        read_answer({"pass": bool_(1)})


def test_f07_a_huge_why_is_cut_with_a_mark() -> None:
    why = read_answer({"pass": True, "why": "y" * 1_000_000})["why"]
    assert why == "y" * WHY_CHARS + " … (cut: 1000000 characters)"


def test_describing_never_grows_and_never_fails() -> None:
    assert len(describe("x" * 10_000_000)) < SEEN_CHARS + 60
    assert cut("abc", 3) == "abc"
