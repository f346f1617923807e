"""What a file of rows may say, and what is said where it does not. Rows are cases of their own, and only data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalfleet.checks import LoadedCases, Place, Scenario
from evalfleet.checks.case import load_suite
from evalfleet.checks.suite import parse_suite
from tests.checks.documents import JSON, LETTERS, TEXT

CONTAINS = "expect: [{final_answer_contains: '${expected}'}]\n"


def read(text: str | bytes, name: str = "capitals.yaml", **files: str) -> LoadedCases:
    data = text.encode() if isinstance(text, str) else text

    def beside(other: str) -> tuple[str, bytes]:
        if other not in files:
            raise FileNotFoundError(2, "No such file or directory")
        return f"evals/suites/{other}", files[other].encode()

    return parse_suite(data, name=name.partition(".")[0], file=f"evals/suites/{name}", beside=beside)


def lines(*rows: object) -> str:
    return "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows)


def rows_of(loaded: LoadedCases) -> list[Scenario]:
    assert not loaded.problems, said(loaded)
    return [scenario for case in loaded.cases for scenario in case.scenarios]


def said(loaded: LoadedCases) -> str:
    return "\n".join(problem.render() for problem in loaded.problems)


FRANCE = {"key": "fr", "input": "Capital of France?", "expected": "Paris"}
NORWAY = {"key": "no", "user": ["Capital of Norway?", "In one word."], "expected": "Oslo"}
HEADER = {"defaults": {"trials": 3, "timeout": "1m"}, "expect": [{"final_answer_contains": "${expected}"}]}


@pytest.mark.parametrize(
    "loaded",
    [
        read(lines(HEADER, FRANCE, NORWAY), "capitals.jsonl"),
        read(
            f"defaults: {{trials: 3, timeout: 1m}}\n{CONTAINS}rows:\n- {json.dumps(FRANCE)}\n- {json.dumps(NORWAY)}\n"
        ),
        read(
            f"defaults: {{trials: 3, timeout: 1m}}\n{CONTAINS}rows: capitals.jsonl\n",
            **{"capitals.jsonl": lines(FRANCE, NORWAY)},
        ),
    ],
    ids=["the first line", "rows in YAML", "a file of rows"],
)
def test_rows_and_what_they_share_can_stand_in_three_ways(loaded: LoadedCases) -> None:
    """Each row has a chat of its own: it is a case with one scenario."""
    assert [(case.name, len(case.scenarios)) for case in loaded.cases] == [("capitals", 1), ("capitals", 1)]
    france, norway = rows_of(loaded)
    assert (france.id, france.user, france.trials, france.timeout) == ("fr", ("Capital of France?",), 3, 60.0)
    assert norway.user == ("Capital of Norway?", "In one word.")
    assert [e.document() for e in norway.expect] == [{"final_answer_contains": "Oslo"}]
    assert norway.given == {"expected": "Oslo"}


def test_a_row_has_the_place_of_its_line_and_its_assertions_that_of_the_suite() -> None:
    loaded = read(f"{CONTAINS}rows: r.jsonl\n", **{"r.jsonl": "\n" + lines(FRANCE)})
    (france,) = rows_of(loaded)
    assert france.place == Place("evals/suites/r.jsonl", 2, 1)
    assert france.expect[0].place == Place("evals/suites/capitals.yaml", 1, 11)
    assert Scenario.from_json(json.loads(json.dumps(france.to_json()))) == france
    assert Scenario.from_json(france.to_json()).expect[0].place == france.expect[0].place


def test_a_plain_list_is_rows_with_assertions_of_their_own() -> None:
    (only,) = rows_of(read("- {key: a, input: hi, expect: [{no_error: true}]}\n"))
    assert (only.id, only.trials, only.timeout, only.given) == ("a", 1, 300.0, {})


def test_a_rows_own_assertions_come_after_the_shared_ones() -> None:
    own = {**FRANCE, "expect": [{"final_answer_max_chars": 20}, {"final_answer_contains": "${expected}"}]}
    (only,) = rows_of(read(lines(HEADER, own), "a.jsonl"))
    assert [e.document() for e in only.expect] == [
        {"final_answer_contains": "Paris"},
        {"final_answer_max_chars": 20},
        {"final_answer_contains": "${expected}"},
    ], "and are data: nothing is filled into them"


def test_a_grader_gets_what_the_row_expects_and_its_metadata() -> None:
    row = {**FRANCE, "name": "France", "expected": {"city": "Paris"}, "metadata": {"level": 1}}
    (only,) = rows_of(read(lines({"expect": [{"grader": {"name": "q.a"}}]}, row), "a.jsonl"))
    assert only.case_document() == {
        "id": "fr",
        "user": ["Capital of France?"],
        "expect": [{"grader": {"name": "q.a"}}],
        "expected": {"city": "Paris"},
        "metadata": {"level": 1},
    }
    assert only.given is not None
    assert only.given["name"] == "France"
    only.case_document()["metadata"]["level"] = 2
    assert only.given["metadata"] == {"level": 1}, "a fresh copy"


# --- filling in ---

ODD = [
    "yes",
    "no",
    "null",
    "~",
    "[a, b]",
    "{a: b}",
    "a: b",
    "# x",
    "'",
    '"',
    "&a *a",
    "- x",
    "1.10",
    "${expected}",
    "%",
]


@pytest.mark.parametrize("text", ODD)
def test_what_is_filled_in_is_text_and_never_yaml(text: str) -> None:
    shared = """\
rows: r.jsonl
expect:
  - final_answer_contains: ${expected}
  - tool_called:
      name: t
      args:
        a: ${expected}
        b: <${expected}>
"""
    (only,) = rows_of(read(shared, **{"r.jsonl": lines({**FRANCE, "expected": text})}))
    assert [e.args() for e in only.expect] == [text, {"name": "t", "args": {"a": text, "b": f"<{text}>"}}]


@given(st.text(LETTERS, min_size=1, max_size=30).filter(lambda text: bool(text.strip())))
def test_any_text_of_a_row_arrives_as_it_is(text: str) -> None:
    for ascii_only in (True, False):
        row = json.dumps({"key": "a", "input": text, "expected": text}, ensure_ascii=ascii_only)
        (only,) = rows_of(read(lines(HEADER, row), "a.jsonl"))
        assert (only.user, only.expect[0].args()) == ((text,), text)


def test_a_value_that_is_nothing_but_a_column_stays_its_number() -> None:
    shared = {
        "expect": [
            {"min_tool_calls": {"name": "${tool}", "count": "${n}"}},
            {
                "tool_called": {
                    "name": "t",
                    "args": {"n": "${n}", "s": "${n} of ${x}", "flag": "${flag}", "x": "${x}"},
                }
            },
            {"final_answer_contains": "${x}"},
            {"grader": {"name": "q.a", "pass_below": "${metadata.least}"}},
            {"final_answer_not_contains": "$${n}"},
        ]
    }
    row = '{"key":"a","input":"hi","tool":"shell","n":4,"x":1.10,"flag":true,"metadata":{"least":0.5}}'
    (only,) = rows_of(read(lines(shared, row), "a.jsonl"))
    assert [e.args() for e in only.expect] == [
        {"name": "shell", "count": 4},
        {"name": "t", "args": {"n": 4, "s": "4 of 1.10", "flag": True, "x": 1.1}},
        "1.10",
        {"name": "q.a", "pass_below": 0.5},
        "${n}",
    ]


# --- keys ---


def test_a_key_is_made_of_what_the_row_says_and_stays_when_rows_move() -> None:
    bare = [{key: value for key, value in row.items() if key != "key"} for row in (FRANCE, NORWAY)]
    one = {row.id: row.user for row in rows_of(read(lines(HEADER, *bare), "a.jsonl"))}
    two = {row.id: row.user for row in rows_of(read(lines(HEADER, *reversed(bare)), "a.jsonl"))}
    assert one == two
    assert [identity.rpartition("-")[0] for identity in one] == ["capital-of-france", "capital-of-norway"]
    named = [{**row, "name": "x"} for row in bare]
    assert set(one) == {row.id for row in rows_of(read(lines(HEADER, *named), "a.jsonl"))}, "a label is no content"
    other = [{**row, "expected": "x"} for row in bare]
    assert set(one).isdisjoint(row.id for row in rows_of(read(lines(HEADER, *other), "a.jsonl")))


@given(st.lists(st.tuples(TEXT, JSON), min_size=1, max_size=6), st.randoms())
def test_the_cases_of_rows_are_the_same_in_any_order(content: list[tuple[str, Any]], random: Any) -> None:
    rows = list({json.dumps(row): {"input": row[0], "expected": row[1]} for row in content}.values())
    header = {"expect": [{"no_error": True}]}
    one = {row.id: row.content() for row in rows_of(read(lines(header, *rows), "a.jsonl"))}
    random.shuffle(rows)
    two = {row.id: row.content() for row in rows_of(read(lines(header, *rows), "a.jsonl"))}
    assert one == two
    assert len(one) == len(rows)


# --- what is refused ---

REFUSED = [
    # the lines of a .jsonl file, where it is refused, a part of what is said
    ([FRANCE], "1:1", "this row has no `expect`: nothing would be checked"),
    ([FRANCE, NORWAY], "1:1", "this row and 1 more rows have no `expect`"),
    ([HEADER], "1:1", "there is no row in this file"),
    ([], "1:1", "there is no row in this file"),
    ([HEADER, FRANCE, FRANCE], "3:9", '`key` is "fr", which is the key of the row at evals/suites/a.jsonl:2:9 too'),
    ([HEADER, FRANCE, {**FRANCE, "key": "FR"}], "3:9", '`key` is "FR", which is the key of the row'),
    ([HEADER, {"input": "a", "expected": "b"}, {"input": "a", "expected": "b"}], "3:1", "says the same as the one at"),
    ([HEADER, {**FRANCE, "key": "a/b"}], "2:9", "`/` separates the case's name"),
    ([HEADER, {"key": "a", "expected": "b"}], "2:1", "row 1 has no `input`: there is nothing to say"),
    ([HEADER, {**FRANCE, "user": "x"}], "2:67", "`input` and `user` are one thing"),
    ([HEADER, {"input": "", "expected": "b"}], "2:11", "`input` is blank"),
    ([HEADER, {"input": ["a", {}], "expected": "b"}], "2:17", "`input, turn 2` is text, and here is an empty mapping"),
    ([HEADER, {**FRANCE, "expects": []}], "2:67", 'did you mean "expect"?'),
    ([HEADER, {**FRANCE, "trials": 3}], "2:67", "put it under the suite's `defaults`"),
    ([HEADER, {**FRANCE, "machine_id": "m"}], "2:67", "names the computer to test it on"),
    ([HEADER, {**FRANCE, "no_error": True}], "2:67", "put it below `expect` as `- no_error: …`"),
    ([HEADER, {"id": "fr", "input": "a", "expected": "b"}], "2:2", "a row's own name is its `key`: rename it"),
    ([HEADER, {**FRANCE, "metadata": []}], "2:79", "`metadata` is a mapping, and here is an empty list"),
    ([HEADER, {**FRANCE, "name": ""}], "2:75", "`name` is blank"),
    ([HEADER, {**FRANCE, "expect": []}], "2:77", "`expect` of row 1 is empty"),
    ([HEADER, {**FRANCE, "expect": [{"no_err": True}]}], "2:79", 'did you mean "no_error"?'),
    ([HEADER, {**FRANCE, "expected": None}], "2:58", "`expected` is `null` (nothing), and `${expected}` at"),
    ([HEADER, {**FRANCE, "expected": ["a"]}], "2:58", "`expected` is a list of 1, and `${expected}` at"),
    ([HEADER, {**FRANCE, "expected": " "}], "2:58", "`final_answer_contains` is blank"),
    ([HEADER, FRANCE, {"input": "x"}], "3:1", "has no `expected`, which `${expected}` at evals/suites/a.jsonl:1:"),
    ([{"expect": [{"final_answer_contains": "so ${expcted}"}]}, FRANCE], "1:43", 'did you mean "expected"?'),
    ([{"expect": [{"final_answer_contain": "x"}]}, FRANCE], "1:14", 'did you mean "final_answer_contains"?'),
    ([{"expect": [{"max_tool_calls": {"name": "t", "count": "${n}"}}]}, {**FRANCE, "n": "4"}], "2:72", 'the text "4"'),
    ([{"expect": []}, FRANCE], "1:12", "`expect` of the suite is empty"),
    ([HEADER, "{"], "2:2", "not JSON: Expecting property name"),
    ([HEADER, '{"input": NaN}'], "2:1", "NaN is no JSON value"),
    ([HEADER, '{"input": "a"} {}'], "2:16", "one whole JSON value in each line"),
    ([HEADER, '{"input": "a", "input": "b"}'], "2:16", "`input` stands twice here, first at 2:2"),
    ([HEADER, "[1]"], "2:1", "row 1 is a mapping, and here is a list of 1"),
    ([HEADER, '{"input": "\\ud800"}'], "2:12", "half a character"),
    ([HEADER, "[" * 101 + "]" * 101], "2:101", "nested deeper than 100 levels"),
    ([HEADER, "[" * 20_000], "2:1", "nested deeper than 100 levels"),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "place", "message"), REFUSED, ids=[row[2] for row in REFUSED])
def test_a_row_is_refused_where_it_is_wrong(rows: list[object], place: str, message: str) -> None:
    """S2: file:line:column, the line with a caret, what to write."""
    loaded = read(lines(*rows), "a.jsonl")
    assert message in said(loaded)
    assert f"evals/suites/a.jsonl:{place}: " in said(loaded)
    assert loaded.cases == ()


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("", "1:1", "there is no row in this file"),
        ("expect: [{no_error: true}]\n", "1:1", "there are no `rows` in this suite"),
        ("rows: []\nexpect: [{no_error: true}]\n", "1:1", "there is no row in this file"),
        ("rows: r.csv\n", "1:7", "a file of rows ends in .jsonl"),
        ("rows: gone.jsonl\n", "1:7", "cannot be read: No such file or directory"),
        ("rows: []\ntrials: 3\n", "2:1", "put it under `defaults`"),
        ("scenarios: []\n", "1:1", "scenarios belong into evals/cases"),
        ("rows: []\nno_error: true\n", "2:1", "put it below `expect`"),
        ("defaults: {trials: 0}\nrows: []\n", "1:20", "it has to be 1 to 100"),
        ("- {input: a, expected: 007, expect: [{no_error: true}]}\n", "1:24", "a number with leading zeros"),
    ],
)
def test_a_suite_in_yaml_is_refused_where_it_is_wrong(text: str, place: str, message: str) -> None:
    loaded = read(text)
    assert message in said(loaded)
    assert f"evals/suites/capitals.yaml:{place}: " in said(loaded)


def test_problems_of_the_suite_and_of_its_rows_come_in_one_go() -> None:
    loaded = read("expect: [{no_err: true}]\nrows: r.jsonl\n", **{"r.jsonl": lines({"inpt": "a"}, "x")})
    assert [str(problem.place) for problem in loaded.problems] == [
        "evals/suites/capitals.yaml:1:11",
        "evals/suites/r.jsonl:1:2",
        "evals/suites/r.jsonl:2:1",
    ]


def test_a_thousand_bad_rows_do_not_fill_the_terminal() -> None:
    loaded = read(lines(HEADER, *({"input": ""} for _ in range(3000))), "a.jsonl")
    assert len(loaded.problems) == 101
    assert "more like these" in loaded.problems[-1].message


def test_a_column_that_nobody_reads_is_a_warning_once() -> None:
    loaded = read(lines(HEADER, {**FRANCE, "level": 1}, {**NORWAY, "level": 2}), "a.jsonl")
    assert len(rows_of(loaded)) == 2
    assert [str(warning.place) for warning in loaded.warnings] == ["evals/suites/a.jsonl:2:67"]
    assert "nobody reads the column `level`" in loaded.warnings[0].message


def test_what_only_says_what_must_not_happen_is_warned_of_once_for_all_rows() -> None:
    """S21."""
    header = {"expect": [{"final_answer_not_contains": "${expected}"}]}
    loaded = read(lines(header, FRANCE, NORWAY), "a.jsonl")
    assert [warning.message for warning in loaded.warnings] == ["every row says only what must not happen"]


def test_lines_end_where_json_lines_end() -> None:
    """U+2028 is a letter of a text there, and no line break."""
    loaded = read('{"expect": [{"no_error": true}]}\n{"input": "a\u2028b"}\r\n\n{"input": ""}\n', "a.jsonl")
    assert [str(problem.place) for problem in loaded.problems] == ["evals/suites/a.jsonl:4:11"]


def test_a_suite_is_found_by_its_file(tmp_path: Path) -> None:
    folder = tmp_path / "evals" / "suites"
    folder.mkdir(parents=True)
    (folder / "rows.jsonl").write_text(lines(FRANCE))
    (folder / "capitals.yaml").write_text(f"{CONTAINS}rows: rows.jsonl\n")
    loaded = load_suite(folder / "capitals.yaml", root=tmp_path)
    assert [(case.name, case.file) for case in loaded.cases] == [("capitals", "evals/suites/capitals.yaml")]
    assert loaded.cases[0].scenarios[0].place.file == "evals/suites/rows.jsonl"
    for name, message in (
        ("rows.csv", "a suite is a .jsonl or .yaml file"),
        ("gone.jsonl", "there is no such file"),
        ("draft.yaml", "drafts belong to the case `draft`"),
    ):
        assert message in said(load_suite(folder / name, root=tmp_path))
