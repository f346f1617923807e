"""The fault reports about case files (A*), each by its id. Inputs in `tests/cases/`."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from typing import Any

import pytest

from evalfleet.checks import LoadedCases, Scenario, evaluate
from evalfleet.checks.expectation import FinalAnswerContains, FinalAnswerNotContains, ToolCalled
from evalfleet.checks.matching import matches
from tests.checks.reading import CASES, messages, parsed, places, recorded
from tests.checks.trials import trial_with


def scenarios(loaded: LoadedCases) -> tuple[Scenario, ...]:
    assert not loaded.problems, messages(loaded)
    return loaded.cases[0].scenarios


def test_a01_a_repeated_key_is_refused_with_both_lines() -> None:
    loaded = recorded("A01.yaml")
    assert places(loaded) == ["6:9", "11:5", "16:56"]
    assert [problem.message for problem in loaded.problems] == [
        "`final_answer_contains` stands twice here, first at 5:9",
        "`expect` stands twice here, first at 9:5",
        "`path` stands twice here, first at 16:46",
    ]
    assert loaded.cases == ()


def test_a02_an_assertion_that_nobody_would_read_is_refused_where_it_stands() -> None:
    loaded = recorded("A02.yaml")
    assert places(loaded) == ["1:1", "6:5", "8:5", "10:5", "17:9"]
    said = messages(loaded)
    assert 'did you mean "expect"?' in said
    assert 'did you mean "final_answer_contains"?' in said
    assert "belongs one level up" in said


def test_a03_no_on_and_yes_stay_text() -> None:
    (only,) = scenarios(recorded("A03.yaml"))
    assert only.user == ("yes",)
    first, second, third = only.expect
    assert isinstance(first, ToolCalled)
    assert isinstance(second, ToolCalled)
    assert first.called_with == {"origin_country": "NZ", "destination_country": "NO"}
    assert second.called_with == {"on": True}
    assert matches(second.called_with, json.loads('{"on": true}'))
    assert third == FinalAnswerContains("No")


def test_a05_a_number_where_text_is_wanted_is_used_as_it_is_spelt() -> None:
    (only,) = scenarios(recorded("A05.yaml"))
    assert only.user == ("42",)
    texts = [e.text for e in only.expect if isinstance(e, (FinalAnswerContains, FinalAnswerNotContains))]
    assert texts == ["0", "1847", "1.10", "007", "1_000", "0x1F", "3.0"]
    answer = (CASES / "A05.answer.txt").read_text()
    assert all(evaluate(expectation, trial_with(answer=answer)).passed for expectation in only.expect)


SPELLINGS = json.loads((CASES / "A06.json").read_text())
STATED_DURATIONS = {"300": 300.0, "1h30m": 5400.0}
"""What the report leaves to us, and S5 decides; all else that it leaves open is refused (`1.5h`, `5M`, `1:30`)."""


@pytest.mark.parametrize(("spelling", "wanted"), SPELLINGS["timeout"], ids=lambda value: str(value))
def test_a06_a_timeout_means_what_it_says_or_is_refused(spelling: Any, wanted: Any) -> None:
    plain = spelling.split(" (")[0] if isinstance(spelling, str) else json.dumps(spelling)
    for written in (plain, f'"{plain}"') if plain else ('""', ""):
        loaded = parsed(
            f"scenarios:\n  - id: a\n    user: hi\n    timeout: {written}\n    expect: [{{no_error: true}}]\n"
        )
        if wanted in (300, 90) or plain in STATED_DURATIONS:
            assert scenarios(loaded)[0].timeout == STATED_DURATIONS.get(plain, wanted)
        else:
            assert places(loaded) == ["4:14" if written else "4:13"]
            assert "`timeout` is" in messages(loaded)


@pytest.mark.parametrize(("spelling", "wanted"), SPELLINGS["trials"], ids=lambda value: str(value))
def test_a06_trials_are_a_whole_number_from_1_to_100(spelling: Any, wanted: str) -> None:
    """3.0 and "3", which the report leaves open, are refused: S5 wants a whole number."""
    loaded = parsed(
        f"defaults:\n  trials: {json.dumps(spelling)}\n"
        "scenarios:\n  - {id: a, user: hi, expect: [{no_error: true}]}\n"
    )
    if wanted == "ok":
        assert scenarios(loaded)[0].trials == spelling
    else:
        assert places(loaded) == ["2:11"]


def test_a07_ids_that_are_equal_as_text_are_refused_with_both_and_their_types() -> None:
    loaded = recorded("A07.yaml")
    assert places(loaded) == ["3:10", "6:10"]
    assert 'the text "1", is the id of another one: the number 1 at 2:10' in loaded.problems[0].message


def test_a08_an_id_that_no_result_could_carry_is_refused_by_the_rule() -> None:
    loaded = recorded("A08.yaml")
    refused = {problem.place.line for problem in loaded.problems}
    assert refused == {4, 6, 8, 10, 11, 12}, "kept: the two emoji ids, a_b, CON and A"


def test_a09_a_merge_may_be_overridden_and_expect_is_replaced() -> None:
    loaded = recorded("A09.yaml")
    assert places(loaded) == ["16:5"], "only the child that forgot its own id"
    assert "it came through `<<`" in loaded.problems[0].message

    text = (CASES / "A09.yaml").read_text().removesuffix("  - <<: *base\n")
    base, child, other, both = scenarios(parsed(text))
    assert (child.id, child.user, child.trials) == ("child", ("Hello", "And again"), 5)
    assert [e.document() for e in child.expect] == [{"final_answer_contains": "again"}]
    assert (both.user, both.trials, both.timeout) == (base.user, 2, 90.0), "of a merge list the first wins"
    assert [e.document() for e in other.expect] == [{"no_error": True}]


def test_a09_two_scenarios_never_share_a_value() -> None:
    first, second = scenarios(
        parsed(
            "scenarios:\n"
            "  - {id: a, user: hi, expect: [{tool_called: {name: t, args: &x {list: [1]}}}]}\n"
            "  - {id: b, user: hi, expect: [{tool_called: {name: t, args: *x}}]}\n"
        )
    )
    first.case_document()["expect"][0]["tool_called"]["args"]["list"].append(2)
    assert isinstance(first.expect[0], ToolCalled)
    assert isinstance(second.expect[0], ToolCalled)
    assert first.expect[0].called_with is not second.expect[0].called_with
    assert first.expect[0].called_with == {"list": [1]}


BOMBS = {
    "A10.bomb.yaml": "aliases written out",
    "A10.deep.yaml": "nested deeper than 100 levels",
    "A10.cycle.yaml": "a cycle has no end",
}


@pytest.mark.parametrize("name", BOMBS)
def test_a10_a_bomb_is_refused_while_it_is_counted(name: str) -> None:
    loaded = recorded(name)
    assert len(loaded.problems) == 1
    assert BOMBS[name] in loaded.problems[0].message


def test_a10_no_bomb_needs_more_than_512_megabytes() -> None:
    code = (
        "import sys; from evalfleet.checks import parse_case\n"
        "for name in sys.argv[1:]:\n"
        "    assert len(parse_case(open(name, 'rb').read(), name='a', file='a').problems) == 1\n"
    )

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (512 * 2**20, 512 * 2**20))

    done = subprocess.run(
        [sys.executable, "-c", code, *(str(CASES / name) for name in BOMBS)],
        preexec_fn=limited,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_a10_five_megabytes_of_line_breaks_need_no_more() -> None:
    """What the fuzzer found: a number kept for each line of a file that is nothing but lines."""
    code = "from evalfleet.checks import parse_case; parse_case(b'\\n' * 5_000_000, name='a', file='a')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (280 * 2**20, 280 * 2**20)),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("bomb", ["merge", "depth through aliases", "wide"])
def test_a10_other_bombs_are_counted_too(bomb: str) -> None:
    if bomb == "merge":
        lines = ["a0: &a0 {k0: 1}"] + [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 12)]
    elif bomb == "wide":
        lines = ["scenarios: [" + "a," * 250_000 + "]"]
    else:
        lines = ["a0: &a0 [x]"] + [f"a{n}: &a{n} [[[[[[[[[*a{n - 1}]]]]]]]]]" for n in range(1, 40)]
    assert len(parsed("\n".join(lines)).problems) == 1


def test_a11_two_thousand_and_one_scenarios_and_a_prompt_of_two_megabytes_are_read() -> None:
    """How many cases an evaluation may have is the plan's to say (wire: 2000)."""
    made = subprocess.run([sys.executable, str(CASES / "A11.make.py"), "2001"], capture_output=True, check=True)
    assert len(scenarios(parsed(made.stdout))) == 2001
    long = "word " * 400_000
    assert scenarios(parsed(f"scenarios: [{{id: a, user: '{long}', expect: [{{no_error: true}}]}}]"))[0].user == (long,)


def test_a12_what_asserts_nothing_is_refused_by_name() -> None:
    loaded = recorded("A12.yaml")
    assert sorted({problem.place.line for problem in loaded.problems}) == list(range(2, 15))
    assert len(loaded.problems) == 13


@pytest.mark.parametrize("name", ["A12.empty.yaml", "A12.comment.yaml"])
def test_a12_a_file_without_a_scenario_is_an_error(name: str) -> None:
    loaded = recorded(name)
    assert len(loaded.problems) == 1
    assert loaded.cases == ()


def test_a14_keys_of_a_throwaway_harness_and_grader_names_are_refused() -> None:
    """`missing.answers` and `quality.nope` are well formed: whether they exist is looked up beside the tree (S6)."""
    loaded = recorded("A14.yaml")
    assert places(loaded) == ["1:1", "2:1", "3:1", "5:49", "6:49", "7:49", "10:78"]
    for problem in loaded.problems[:3]:
        assert "a case in the tree tests the harness that the tree is" in problem.message


def test_a15_a_line_break_at_the_end_of_expected_text_is_warned_of_and_seen_in_the_failure() -> None:
    loaded = recorded("A15.yaml")
    assert '"Paris\\n"' in loaded.warnings[0].message
    (only,) = scenarios(loaded)
    finding = evaluate(only.expect[0], trial_with(answer="It is Paris."))
    assert finding.passed is False
    assert finding.sentence == (
        'the final answer does not contain "Paris\\n"; it is "It is Paris." '
        "(it matches but for the white space at its ends)"
    )


def test_a15_a_trailing_newline_counts_as_a_character() -> None:
    finding = evaluate(parsed_one("{final_answer_max_chars: 5}"), trial_with(answer="Paris\n"))
    assert finding.passed is False
    assert '"Paris\\n"' in finding.sentence


def parsed_one(expect: str) -> Any:
    loaded = parsed(f"scenarios: [{{id: a, user: hi, expect: [{expect}]}}]")
    return scenarios(loaded)[0].expect[0]
