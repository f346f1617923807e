"""Text is what was written; numbers, bools and free JSON are YAML 1.2 core (S1)."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalfleet.checks.duration import seconds_of
from evalfleet.checks.expectation import FinalAnswerContains, ToolCalled
from evalfleet.checks.source import Source
from tests.checks.reading import messages, parsed, places, scenario


def said(expect: str) -> Any:
    loaded = parsed(scenario(expect))
    assert not loaded.problems, messages(loaded)
    return loaded.cases[0].scenarios[0].expect[0]


@pytest.mark.parametrize(
    "spelling",
    ["42", "1.10", "007", "0x1F", "1_000", "1e3", ".5", "no", "NO", "on", "Yes", "true", "False", "2025-01-01",
     "12:30:00", "1:30", ".inf", ".nan", "nothing", "nullable", "~x", "=", "<<", "0o17", "+1", "-0", "é", "日本語"],
)  # fmt: skip
def test_plain_text_is_taken_as_it_is_spelt(spelling: str) -> None:
    loaded = parsed(
        f"scenarios:\n  - id: {spelling}\n    user: {spelling}\n    expect: [{{final_answer_contains: {spelling}}}]\n"
    )
    assert not loaded.problems, messages(loaded)
    (only,) = loaded.cases[0].scenarios
    assert (only.id, only.user, only.expect) == (spelling, (spelling,), (FinalAnswerContains(spelling),))


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("'null'", "null"),
        ('"~"', "~"),
        ('"a\\tb\\n"', "a\tb\n"),
        ("'it''s'", "it's"),
        ("!!str 42", "42"),
        ("!!str null", "null"),
        ("a#b", "a#b"),
        ('"#5"', "#5"),
    ],
)
def test_quotes_and_the_str_tag_make_text(written: str, text: str) -> None:
    assert said(f"{{final_answer_contains: {written}}}") == FinalAnswerContains(text)


def test_a_block_is_folded_and_kept_as_yaml_says() -> None:
    loaded = parsed(
        "scenarios:\n  - id: a\n    user: |\n      one\n       two\n\n    expect:\n      - final_answer_contains: >-\n"
        "          a\n          b\n      - final_answer_contains: plain\n          goes on\n"
    )
    (only,) = loaded.cases[0].scenarios
    assert only.user == ("one\n two\n",)
    assert only.expect == (FinalAnswerContains("a b"), FinalAnswerContains("plain goes on"))


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        ("null", 'quote it: "null"'),
        ("~", 'quote it: "~"'),
        ("NULL", 'quote it: "NULL"'),
        ("#5", "`#` is a comment"),
        ("", "has no value"),
        ("!!int 3", "the tag `!!int` has no meaning here"),
        ("!secret x", "the tag `!secret` has no meaning here"),
        ("[[a]]", "here is a list of 1"),
        ("{a: b}", "here is a mapping"),
        ("note: this", "quote it"),
        ("`tick`", "quote it"),
        ("@home", "quote it"),
        ("%d", "quote it"),
        ("*all*", "quote it"),
        ("* all", "quote it"),
        ("& so", "quote it"),
        ('"half', "the quote that opens here is never closed"),
        ('"\\d"', "in double quotes"),
        ('"\\ud800"', ""),
    ],
)
def test_what_yaml_would_not_read_as_text_is_refused_with_what_to_write(written: str, hint: str) -> None:
    loaded = parsed(f"scenarios:\n  - id: a\n    expect: [{{no_error: true}}]\n    user: {written}\n")
    assert len(loaded.problems) == 1
    assert loaded.problems[0].place.line == 4
    assert hint in messages(loaded)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("true", True), ("True", True), ("FALSE", False), ("yes", "yes"), ("on", "on"), ("off", "off"), ("n", "n"),
        ("null", None), ("~", None), ("", None), ("Null", None),
        ("0", 0), ("-3", -3), ("+3", 3), ("0x1F", 31), ("0o17", 15), ("18446744073709551615", 2**64 - 1),
        ("9007199254740993", 9007199254740993),
        ("1.10", 1.1), (".5", 0.5), ("1.", 1.0), ("1e3", 1000.0), ("-2.5E-1", -0.25), ("0.7", 0.7),
        ("1_000", "1_000"), ("1:30", "1:30"), ("2025-01-01", "2025-01-01"), ("0b11", "0b11"), ("0x", "0x"),
        ('"4"', "4"), ("'true'", "true"), ("!!str 4", "4"), ("1-2", "1-2"), (".", "."),
        ("[1, [a, {b: on}]]", [1, ["a", {"b": "on"}]]),
        ("{on: on, 1: 2, true: no}", {"on": "on", "1": 2, "true": "no"}),
    ],
)  # fmt: skip
def test_args_are_yaml_1_2_core(written: str, value: Any) -> None:
    expectation = parsed(
        f"scenarios:\n  - id: a\n    user: hi\n    expect:\n      - tool_called:\n          name: t\n"
        f"          args:\n            x: {written}\n"
    )
    assert not expectation.problems, messages(expectation)
    (called,) = expectation.cases[0].scenarios[0].expect
    assert isinstance(called, ToolCalled)
    assert called.called_with == {"x": value}
    assert type((called.called_with or {})["x"]) is type(value)


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("007", "a number with leading zeros has two readings"),
        ("-01", "leading zeros"),
        ("00", "leading zeros"),
        ("01.5", "leading zeros"),
        (".inf", "JSON has no such number"),
        ("-.INF", "JSON has no such number"),
        (".nan", "JSON has no such number"),
        ("1e999", "no JSON spelling"),
        ("18446744073709551616", "beyond 64 bits"),
        ("9" * 5000, "beyond 64 bits"),
        ("!!float 3", "the tag `!!float` in `tool_called.args` has no meaning here"),
        ("{~: 1}", "a key in `tool_called.args` is text"),
        ("{[a]: 1}", "a key in `tool_called.args` is text"),
        ("!!set {a}", "the tag `!!set` has no meaning here"),
    ],
)
def test_args_without_one_meaning_in_json_are_refused(written: str, why: str) -> None:
    loaded = parsed(scenario(f"{{tool_called: {{name: t, args: {{x: {written}}}}}}}"))
    assert len(loaded.problems) == 1
    assert why in messages(loaded)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1", 1), ("90", 90), ("300s", 300), ("5m", 300), ("1h", 3600), ("1h30m", 5400), ("1h30m15s", 5415),
     ("24h", 86400), ("90m", 5400), ("1h5s", 3605)],
)  # fmt: skip
def test_a_duration_is_hours_minutes_and_seconds(text: str, seconds: int) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize(
    "text",
    ["", " ", "0", "0s", "-5s", "1.5h", "5M", "5 m", "m", "s5", "1m1h", "25h", "86401", "24h1s", "١s", "1e3", "0x10",
     "1d", "500ms", "1:30", "007", "5m ", "5m\n", "99999999999999999999s"],
)  # fmt: skip
def test_every_other_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        seconds_of(text)


@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"], ids=["no mark", "byte order mark"])
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"], ids=["LF", "CRLF", "CR"])
def test_line_ends_and_a_byte_order_mark_are_accepted_and_places_stay_right(start: bytes, newline: str) -> None:
    """S3."""
    text = "scenarios:\n  - id: a\n    user: 'two\n      words'\n    expect: [{no_error: yes}]\n"
    loaded = parsed(start + text.replace("\n", newline).encode())
    assert places(loaded) == ["5:25"]
    assert loaded.problems[0].source_line == "    expect: [{no_error: yes}]"


def test_columns_count_characters_and_the_caret_stands_below_the_right_one() -> None:
    loaded = parsed('scenarios: [{id: "日本語", user: "👩‍👩‍👧", expect: [{no_error: no}]}]')
    (problem,) = loaded.problems
    assert (problem.place.line, problem.place.column) == (1, 60)
    _, source, caret, _ = problem.render().split("\n")
    assert source.startswith('  | scenarios: [{id: "日本語"')
    assert caret.endswith("^")


def test_a_long_line_is_cut_around_the_caret() -> None:
    loaded = parsed(f'scenarios: [{{id: a, user: "{"x" * 10_000}", expect: [{{no_error: no}}], b: "{"y" * 10_000}"}}]')
    rendered = loaded.problems[0].render()
    assert "no_error: no" in rendered
    assert max(map(len, rendered.split("\n"))) < 200
    assert len(str(loaded.problems[0].document("error"))) < 1000


@given(st.text(st.sampled_from("a\n\r\x85\u2028é"), max_size=30))
def test_lines_start_where_an_editor_has_them(text: str) -> None:
    source = Source.of("f", text)
    starts = [0, *(found.end() for found in re.finditer("\r\n|[\n\r]", text))]
    assert list(source.starts) == starts
