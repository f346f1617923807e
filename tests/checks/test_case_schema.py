"""What a case file may say, and what is said where it does not (S2–S5, S21, S22)."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from evalfleet.checks import Case, LoadedCases, Place, Scenario, expectation_from_document, nodes, parse_case
from evalfleet.checks.reading import MAX_PROBLEMS
from tests.checks.documents import SCENARIO
from tests.checks.reading import CASES, messages, parsed, places, recorded, scenario

OK = "    expect: [{no_error: true}]\n"

REFUSED = [
    # what is written, where it is refused, a part of what is said
    ("", "1:1", "there is no scenario in this file"),
    ("# only a comment\n", "1:1", "there is no scenario in this file"),
    ("--- ~\n", "1:5", "there is no scenario in this file"),
    ("- id: a\n", "1:1", "a case file is a mapping with `scenarios`, and here is a list of 1"),
    ("hello\n", "1:1", 'here is the text "hello"'),
    ("defaults: {trials: 1}\n", "1:1", "there is no `scenarios` in this file"),
    ("scenario: []\n", "1:1", 'did you mean "scenarios"?'),
    ("scenarios:\n", "1:11", "`scenarios` is a list, and here is nothing"),
    ("scenarios: {a: b}\n", "1:12", "start each item with `- `"),
    ("scenarios: [hello]\n", "1:13", "scenario 1 is a mapping"),
    ("trials: 3\nscenarios: [{id: a, user: b, expect: [{no_error: true}]}]\n", "1:1", "put it under `defaults`"),
    ("no_error: true\nscenarios: [{id: a, user: b, expect: [{no_error: true}]}]\n", "1:1", "put it below `expect`"),
    ("defaults: 3\nscenarios: [{id: a, user: b, expect: [{no_error: true}]}]\n", "1:11", "`defaults` is a mapping"),
    ("defaults: {user: x}\nscenarios: [{id: a, user: b, expect: [{no_error: true}]}]\n", "1:12", "it has no default"),
    ("defaults: {timeouts: 5m}\nscenarios: [{id: a, user: b, expect: [{no_error: true}]}]\n", "1:12", '"timeout"?'),
    ("scenarios:\n  - user: hi\n" + OK, "2:5", "scenario 1 has no `id`"),
    ("scenarios:\n  - id: a\n" + OK, "2:5", 'scenario "a" has no `user`'),
    ("scenarios:\n  - id: a\n    user: hi\n", "2:5", "has no `expect`: nothing would be checked"),
    ("scenarios:\n  - id: a\n    usr: hi\n" + OK, "3:5", 'did you mean "user"?'),
    ("scenarios:\n  - id: a\n    user: hi\n    no_error: true\n" + OK, "4:5", "put it below `expect` as"),
    ("scenarios:\n  - id: a\n    user: hi\n    defaults: {}\n" + OK, "4:5", "stands at the top of the file"),
    ("scenarios:\n  - id: a\n    user: hi\n    machine_id: m\n" + OK, "4:5", "names the computer to test it on"),
    ("scenarios:\n  - id: a\n    user: hi\n    trials: true\n" + OK, "4:13", "here is the bool true"),
    ("scenarios:\n  - id: a\n    user: hi\n    trials: 101\n" + OK, "4:13", "it has to be 1 to 100"),
    ("scenarios:\n  - id: a\n    user: hi\n    trials: '3'\n" + OK, "4:13", 'here is the text "3"'),
    ("scenarios:\n  - id: a\n    user: hi\n    timeout: 25h\n" + OK, "4:14", "it has to be 1s to 24h"),
    ("scenarios:\n  - id: a\n    user: hi\n    timeout: [5m]\n" + OK, "4:14", "`timeout` is a time"),
    ("scenarios:\n  - id: a\n    user: ['  ']\n" + OK, "3:12", '`user, turn 1` is blank: "  "'),
    ('scenarios:\n  - id: "a\\tb"\n    user: hi\n' + OK, "2:9", "a name is one line without control characters"),
    ("scenarios:\n\t- id: a\n", "2:1", "tab at 2:1: use spaces"),
    ("scenarios:\n  - id:\ta\n    user: hi\n" + OK, "2:8", "tab at 2:8: use spaces"),
    ("scenarios:\n  - id: a\n    user: a\tb\n" + OK, "3:12", "tab at 3:12: use spaces"),
    ("scenarios: [{id: a,\tuser: hi, expect: [{no_error: true}]}]\n", "1:20", "tab at 1:20: use spaces"),
    ("scenarios: []\n---\nscenarios: []\n", "2:1", "a second document starts here"),
    ("scenarios: !list []\n", "1:12", "the tag `!list` has no meaning here"),
    ("scenarios:\n  - id: a\n   user: hi\n", "3:4", "look at the indent"),
    ("scenarios: [{id: a, user: 'x' y}]\n", "1:31", "must be quoted here"),
    ("scenarios:\n  - {id: a, user: hi, expect: [{no_error: true}], <<: 3}\n", "2:55", "`<<` merges mappings"),
    ("a: &a {}\n<<: *a\n<<: *a\nscenarios: []\n", "3:1", "`<<` stands twice here"),
    ("scenarios: []\n# caf\xe9 \x07\n", "2:8", "the character U+0007 must not stand in a YAML file"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "place", "said"), REFUSED, ids=[row[2] for row in REFUSED])
def test_a_file_is_refused_where_it_is_wrong(text: str, place: str, said: str) -> None:
    """S2: file:line:column, the line, the key, the value seen, what to write."""
    loaded = parsed(text)
    assert place in places(loaded), messages(loaded)
    assert said in messages(loaded)
    assert loaded.cases == ()


ITEMS = [
    # one item of `expect`, the column (the list starts in column 14), a part of what is said
    ("no_error", 14, "write `- no_error: true`"),
    ("tool_called", 14, "write `- tool_called: …`"),
    ("{}", 14, "this list item asserts nothing"),
    ("[]", 14, "an assertion is one key with its value, and here is an empty list"),
    ("{no_error: true, final_answer_contains: x}", 31, "two assertions in one list item: `no_error` and `final_"),
    ("{tool_called: , name: t}", 30, "`name` stands beside `tool_called`, not inside it"),
    ("{tool_caled: {name: t}}", 15, 'did you mean "tool_called"?'),
    ("{toolCalled: {name: t}}", 15, 'did you mean "tool_called"?'),
    ("{answers: x}", 15, "the assertions are: tool_called, "),
    ("{trials: 3}", 15, "it is a key of the scenario: put it beside `expect`"),
    ("{agent: x}", 15, "`agent` describes a throwaway harness to test"),
    ("{tool_called: shell__run}", 28, "write `tool_called: {name: shell__run}`"),
    ("{tool_called: {}}", 28, "`tool_called` has no `name`"),
    ("{tool_called: {nam: t}}", 29, 'did you mean "name"?'),
    ("{tool_called: {tool: t}}", 29, "(tool_called takes: name, args)"),
    ("{tool_called: {name: t, args: [1]}}", 44, "`tool_called.args` is a mapping of argument to value"),
    ("{tool_called: {name: t, args: {a: 1, a: 2}}}", 51, "`a` stands twice here, first at 4:45"),
    ("{min_tool_calls: {name: t}}", 31, "`min_tool_calls` has no `count`"),
    ("{min_tool_calls: {name: t, count: 0}}", 48, "is 0, which always holds"),
    ("{max_tool_calls: {name: t, count: -1}}", 48, "is -1; it has to be at least 0"),
    ("{max_tool_calls: {name: t, count: 1.5}}", 48, "is a whole number, and here is the number 1.5"),
    ("{max_tool_calls: {name: t, count: 010}}", 48, "a number with leading zeros has two readings"),
    ("{tool_order: {first: t, then: t}}", 44, "a first call is not before itself"),
    ("{tool_order: {first: t}}", 27, "`tool_order` has no `then`"),
    ("{result_contains: {name: t, substring: ''}}", 53, "`result_contains.substring` is blank"),
    ("{final_answer_max_chars: many}", 39, 'is a whole number, and here is the text "many"'),
    ("{no_error: false}", 25, "`no_error: false` asserts nothing"),
    ("{no_error: yes}", 25, 'is `true` or `false`, and here is the text "yes"'),
    ("{no_error: 1}", 25, "here is the number 1"),
    ("{hook_called: tools.before}", 28, "write `hook_called: {name: tools.before, decision: deny}`"),
    ("{hook_called: {name: tools.before, decision: }}", 59, "`hook_called.decision` has no value"),
    ("{grader: quality.answers}", 23, "write `grader: {name: quality.answers, pass_below: 0.7}`"),
    ("{grader: {name: quality}}", 30, "there is no dot in it"),
    ("{grader: {name: quality.}}", 30, "there is no function after the dot"),
    ("{grader: {name: quality._x}}", 30, "a grader is a public function"),
    ("{grader: {name: quality.a-b}}", 30, "is not a name that a Python function can have"),
    ("{grader: {name: ../quality.a}}", 30, "there is no file before the dot"),
    ("{grader: {name: a/b.c}}", 30, "is not the name of a file in evals/graders/"),
    ("{grader: {name: quality.answers, pass_below: '0.7'}}", 59, 'is a number, and here is the text "0.7"'),
    ("{grader: {name: quality.answers, pass_below: .inf}}", 59, "JSON has no such number"),
    ("{min_tool_calls: {name: t, count: 3}}, {max_tool_calls: {name: t, count: 2}}", 54, "no trial can pass"),
]  # fmt: skip


@pytest.mark.parametrize(("item", "column", "said"), ITEMS, ids=[row[0] for row in ITEMS])
def test_an_assertion_is_refused_where_it_is_wrong(item: str, column: int, said: str) -> None:
    loaded = parsed(scenario(item))
    assert places(loaded) == [f"4:{column}"], messages(loaded)
    assert said in messages(loaded)


TWELVE: list[dict[str, Any]] = [
    {"tool_called": {"name": "t"}},
    {"tool_called": {"name": "t", "args": {}}},
    {"tool_called": {"name": "t", "args": {"a": [1, None, {"b": True}]}}},
    {"tool_not_called": {"name": "t"}},
    {"tool_order": {"first": "a", "then": "b"}},
    {"min_tool_calls": {"name": "t", "count": 1}},
    {"max_tool_calls": {"name": "t", "count": 0}},
    {"result_contains": {"name": "t", "substring": "x"}},
    {"final_answer_contains": "x"},
    {"final_answer_not_contains": "x"},
    {"final_answer_max_chars": 120},
    {"hook_called": {"name": "tools.before"}},
    {"hook_called": {"name": "tools.before", "decision": "deny"}},
    {"no_error": True},
    {"grader": {"name": "quality.answers"}},
    {"grader": {"name": "quality.answers", "pass_below": 0.7}},
]


@pytest.mark.parametrize("document", TWELVE, ids=json.dumps)
def test_each_of_the_twelve_is_read_and_written_again(document: dict[str, Any]) -> None:
    loaded = parsed(scenario(f"{json.dumps(document)}, {{no_error: true}}"))
    assert not loaded.problems, messages(loaded)
    expectation = loaded.cases[0].scenarios[0].expect[0]
    assert expectation.document() == document
    assert expectation == expectation_from_document(document)
    assert expectation.place == Place("evals/cases/tone.yaml", 4, 15)


def test_the_seeds_example_is_a_case() -> None:
    loaded = parsed(
        "# evals/cases/tone.yaml\n"
        "defaults: {trials: 3, timeout: 300s}\n\n"
        "scenarios:\n"
        "  - id: answers-in-one-line\n"
        "    user: What is the capital of France?\n"
        "    expect:\n"
        "      - final_answer_contains: Paris\n"
        "      - final_answer_max_chars: 120\n"
        "      - no_error: true\n\n"
        "  - id: uses-the-shell-rather-than-guessing\n"
        "    user:\n"
        "      - List the files in the home directory.\n"
        "      - Now count them.\n"
        "    trials: 5\n"
        "    expect:\n"
        "      - tool_called: {name: shell__run}\n"
        "      - min_tool_calls: {name: shell__run, count: 2}\n"
        "      - grader: {name: quality.answers, pass_below: 0.7}\n"
    )
    assert not loaded.problems
    assert not loaded.warnings
    first, second = loaded.cases[0].scenarios
    assert (first.trials, first.timeout, second.trials, second.timeout) == (3, 300.0, 5, 300.0)
    assert second.user == ("List the files in the home directory.", "Now count them.")
    assert loaded.grader_places() == (("quality.answers", Place("evals/cases/tone.yaml", 20, 9)),)


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ("{tool_not_called: {name: t}}", "says only what must not happen"),
        ("{final_answer_max_chars: 9}, {final_answer_not_contains: x}", "says only what must not happen"),
        ("{grader: {name: q.a}}, {grader: {name: q.b}}", 'a" is judged by graders alone'),
        ("{grader: {name: q.a}}, {tool_not_called: {name: t}}", "is judged by graders, and what must not happen"),
        ("{hook_called: {name: tool.before}}", 'did you mean "tools.before"?'),
        ("{hook_called: {name: tools.before, decision: denied}}", 'did you mean "deny"?'),
        ("{hook_called: {name: mine}}", "known are: context.build, "),
        ('{final_answer_contains: " Paris"}', "the white space at its start counts"),
        ('{result_contains: {name: t, substring: "x "}}', "the white space at its end counts"),
    ],
)
def test_what_is_only_suspicious_is_a_warning(item: str, said: str) -> None:
    """S21, S22, A15."""
    loaded = parsed(scenario(item))
    text = "\n".join(warning.render() for warning in loaded.warnings)
    assert said in text
    assert "4:" in text or "2:5" in text


def test_s21_beside_a_positive_assertion_a_grader_is_no_warning() -> None:
    assert not parsed(scenario("{grader: {name: q.a}}, {no_error: true}")).warnings


def test_text_that_a_comment_cuts_off_is_a_warning() -> None:
    """S1: `#5` is a comment, and nobody sees that the rest was never sent."""
    loaded = parsed("scenarios:\n  - id: a\n    user: Look at issue #5, please\n" + OK)
    assert loaded.cases[0].scenarios[0].user == ("Look at issue",)
    assert [str(warning.place) for warning in loaded.warnings] == ["evals/cases/tone.yaml:3:11"]
    assert "ends before `#5,`" in loaded.warnings[0].message


def test_ordinary_files_have_no_warnings() -> None:
    loaded = parsed(scenario("{tool_not_called: {name: t}}, {no_error: true}, {final_answer_contains: x} # note"))
    assert loaded.warnings == ()


def test_all_problems_of_a_file_come_in_one_go_in_order() -> None:
    loaded = parsed("scenarios:\n" + "".join(f"  - {{id: {n}, user: '', expect: []}}\n" for n in range(3)))
    assert places(loaded) == ["2:19", "2:31", "3:19", "3:31", "4:19", "4:31"]


def test_a_hopeless_file_does_not_fill_the_terminal() -> None:
    for scenarios, said in ((200, "and 500 more problems"), (15_000, "and at least 901 more problems")):
        loaded = parsed("scenarios:\n" + "".join(f"  - {{user: '', expect: {n}}}\n" for n in range(scenarios)))
        assert len(loaded.problems) == MAX_PROBLEMS + 1
        assert said in loaded.problems[-1].message, loaded.problems[-1].message


@pytest.mark.parametrize("name", sorted(path.name for path in CASES.glob("A*.yaml")))
def test_the_parser_in_python_reads_the_same_as_the_one_in_c(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyYAML without libyaml is common (no wheel for the platform)."""
    fast = recorded(name)
    monkeypatch.setattr(nodes, "_LOADER", yaml.SafeLoader)
    slow = recorded(name)
    assert slow.cases == fast.cases
    assert [problem.message for problem in slow.problems] == [problem.message for problem in fast.problems]


SCRAPS = [*"abc:-[]{}#&*!|>'\"%@`,?~ \n\t", "  ", "- ", ": ", "&a ", "*a", "<<: ", "---\n"]
WORDS = ["scenarios:", "expect:", "id:", "user:", "no_error: true"]


@given(st.lists(st.sampled_from(SCRAPS + WORDS), max_size=60))
@example(["---\n", " "])
def test_whatever_a_file_holds_nothing_is_raised(parts: list[str]) -> None:
    loaded = parsed("".join(parts))
    assert loaded.cases or loaded.problems
    messages(loaded)


@given(SCENARIO)
def test_a_scenario_written_as_json_is_read_as_it_was_written(document: dict[str, Any]) -> None:
    """JSON is YAML: what any program writes with a JSON writer is a case file."""
    loaded = parsed(json.dumps({"scenarios": [document]}, ensure_ascii=False))
    assert not loaded.problems, messages(loaded)
    (only,) = loaded.cases[0].scenarios
    assert only.case_document() == {key: document[key] for key in ("id", "user", "expect")}
    assert (only.trials, only.timeout) == (document["trials"], float(document["timeout"]))


@given(SCENARIO)
def test_a_stored_scenario_comes_back_as_it_was(document: dict[str, Any]) -> None:
    case = parsed(json.dumps({"scenarios": [document]}, ensure_ascii=False)).cases[0]
    stored = Case.from_json(json.loads(json.dumps(case.to_json())))
    assert stored == case
    for before, after in zip(case.scenarios, stored.scenarios, strict=True):
        assert [item.place for item in after.expect] == [item.place for item in before.expect]
        assert None not in [item.place for item in after.expect]


WHOLE: dict[str, Any] = {
    "id": "a", "user": ["hi"], "expect": [{"no_error": True}], "trials": 1, "timeout": 300.0, "place": ["f", 1, 1],
    "expect_places": [[2, 9]],
}  # fmt: skip


def test_a_plan_that_knows_no_places_of_assertions_is_read_too() -> None:
    """Older artifacts have none, and their scenarios are pointed at instead."""
    old = Scenario.from_json({key: value for key, value in WHOLE.items() if key != "expect_places"})
    assert old == Scenario.from_json(WHOLE)
    assert [item.place for item in old.expect] == [None]


@pytest.mark.parametrize(
    "change",
    [
        {"id": ""}, {"id": 1}, {"user": []}, {"user": "hi"}, {"user": [1]}, {"expect": []}, {"expect": [1]},
        {"expect": [{}]}, {"expect": [{"x": 1}]}, {"expect": [{"no_error": False}]}, {"expect": [{"tool_called": 1}]},
        {"expect": [{"tool_called": {"name": "t", "x": 1}}]}, {"expect": [{"tool_called": {}}]}, {"trials": 0},
        {"trials": True}, {"trials": 101}, {"timeout": 0}, {"timeout": "5m"}, {"timeout": 10**400}, {"place": ["f"]},
        {"place": [1, 1, 1]},
        {"expect": [{"grader": {"name": "a.b", "pass_below": True}}]}, {"place": ["f", 1, 1], "expect_places": [[1]]},
        {"place": ["f", 1, 1], "expect_places": [1, 2]}, {"place": ["f", 1, 1], "expect_places": [["1", 1]]},
    ],
    ids=json.dumps,
)  # fmt: skip
def test_a_document_that_is_no_scenario_is_refused_with_a_reason(change: dict[str, Any]) -> None:
    assert Scenario.from_json(WHOLE).to_json() == WHOLE
    with pytest.raises(ValueError):
        Scenario.from_json({**WHOLE, **change})
    with pytest.raises(ValueError):
        Scenario.from_json({key: value for key, value in WHOLE.items() if key not in change})


def drafted(text: str) -> LoadedCases:
    return parse_case(text.encode(), name="draft", file="--scenarios", draft=True)


@pytest.mark.parametrize(
    "text",
    [
        "- {id: a, user: hi, expect: [{no_error: true}]}\n",
        "id: a\nuser: hi\nexpect: [{no_error: true}]\n",
        "scenarios:\n  - {id: a, user: hi, expect: [{no_error: true}]}\n",
        '[{"id": "a", "user": "hi", "expect": [{"no_error": true}]}]',
    ],
    ids=["a bare list", "one scenario", "a whole case", "a list as JSON"],
)
def test_a_draft_is_a_case_a_list_or_one_scenario_s7(text: str) -> None:
    loaded = drafted(text)
    assert loaded.problems == ()
    assert [(scenario.id, scenario.user) for scenario in loaded.cases[0].scenarios] == [("a", ("hi",))]


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("[]", "1:1", "`scenarios` is empty: nothing would be checked"),
        ("hello", "1:1", "a draft is a list of scenarios, a scenario, or a mapping with `scenarios`"),
        ("- hello", "1:3", "scenario 1 is a mapping with `id`, `user` and `expect`"),
        ("id: a\nuser: hi\n", "1:1", 'scenario "a" has no `expect`: nothing would be checked'),
        ("id: a\nuser: hi\nexpect: [{no_error: true}]\nmachine_id: m\n", "4:1", "`machine_id` names the computer"),
        (
            "- {id: a, user: hi, expect: [{no_error: true}]}\n- {id: A, user: hi, expect: [{no_error: true}]}",
            "2:8",
            "id",
        ),
        ("defaults: {trials: 2}\n", "1:1", "there is no `scenarios` in this file"),
    ],
)
def test_what_is_wrong_with_a_draft_is_said_at_its_place(text: str, place: str, message: str) -> None:
    loaded = drafted(text)
    assert places(loaded) == [place]
    assert message in messages(loaded)
    assert loaded.cases == ()


def test_a_file_of_the_tree_is_a_mapping_and_no_list() -> None:
    loaded = parsed("- {id: a, user: hi, expect: [{no_error: true}]}\n")
    assert "a case file is a mapping with `scenarios`, and here is a list" in messages(loaded)
