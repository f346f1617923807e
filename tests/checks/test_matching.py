"""The twelve as tables: verdict and sentence for each (S19–S23, B01, B03, B05, B19)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalfleet.checks import HookCall, ToolCall, Trial, evaluate, expectation_from_document, read_trial
from evalfleet.checks.expectation import KINDS, Grader
from evalfleet.checks.matching import LOOKED_INTO, first_mismatch, matches
from tests.checks.reading import CASES
from tests.checks.trials import trial_with, turn

STATED = {8: False, 9: False, 10: True, 12: True, 16: False}
"""Rows of B01 that it leaves to a stated rule, by S19: lists have the same length ([1] is not in [1, 2], [] not in
[1]) and their elements match by the same rule; a call without args has none, which `{}` asks for; two Unicode forms
are two texts."""


@pytest.mark.parametrize(("number", "row"), list(enumerate(json.loads((CASES / "B01.json").read_text()))), ids=str)
def test_b01_args_are_compared_as_json(number: int, row: list[Any]) -> None:
    expected, called, wanted = row
    passed = evaluate(
        expectation_from_document({"tool_called": {"name": "t", "args": expected}}),
        trial_with(made=[("t", called)]),
    ).passed
    assert passed is (wanted if isinstance(wanted, bool) else STATED[number])


B03 = json.loads((CASES / "B03.json").read_text())
A = [(name, args) for name, args in B03["calls_A"]]
B: list[Any] = [(name, {}) for name in B03["calls_B"]]
C = [(name, args) for name, args in B03["calls_C"]]


@pytest.mark.parametrize(
    ("made", "document", "wanted"),
    [
        pytest.param(A, {"tool_called": {"name": "get_weather", "args": {"city": "Austin"}}}, True, id="a later call"),
        pytest.param(A, {"tool_called": {"name": "get_weather", "args": {"city": "Seattle"}}}, True, id="the first"),
        pytest.param(A, {"tool_called": {"name": "get_weather", "args": {"city": "Oslo"}}}, False, id="no call"),
        pytest.param(A, {"min_tool_calls": {"name": "get_weather", "count": 2}}, True, id="min 2"),
        pytest.param(A, {"max_tool_calls": {"name": "get_weather", "count": 2}}, True, id="max 2"),
        pytest.param(A, {"max_tool_calls": {"name": "get_weather", "count": 1}}, False, id="max 1"),
        pytest.param(A, {"tool_not_called": {"name": "get_time"}}, False, id="not called, but it was"),
        pytest.param(B, {"tool_order": {"first": "a", "then": "b"}}, False, id="a then b: S20, first b is before"),
        pytest.param(B, {"tool_order": {"first": "b", "then": "a"}}, True, id="b then a"),
        pytest.param(B, {"tool_order": {"first": "a", "then": "c"}}, False, id="c is never called"),
        pytest.param(B, {"tool_order": {"first": "c", "then": "a"}}, False, id="c is never called, first"),
        pytest.param(C, {"min_tool_calls": {"name": "t", "count": 2}}, True, id="equal calls are two"),
        pytest.param(C, {"max_tool_calls": {"name": "t", "count": 1}}, False, id="equal calls are two, max"),
    ],
)
def test_b03_every_call_counts(made: list[Any], document: dict[str, Any], wanted: bool) -> None:
    """`order b then b`, which B03 passes, is refused when the file is read: S3 wins."""
    assert evaluate(expectation_from_document(document), trial_with(made=made)).passed is wanted


def test_calls_of_one_message_are_simultaneous() -> None:
    """S20: neither is before the other."""
    made = tuple(ToolCall("r", name, name, {}, None, False, 0, 4) for name in ("read", "write"))
    trial = Trial((), made, (), "ok", None, 0)
    finding = evaluate(expectation_from_document({"tool_order": {"first": "read", "then": "write"}}), trial)
    assert finding.passed is False
    assert "in one message: neither is before the other" in finding.sentence


def test_an_order_spans_turns() -> None:
    made = tuple(ToolCall("r", name, name, {}, None, False, at, 0) for name, at in (("read", 0), ("write", 1)))
    trial = Trial((), made, (), "ok", None, 0)
    assert evaluate(expectation_from_document({"tool_order": {"first": "read", "then": "write"}}), trial).passed


B05 = json.loads((CASES / "B05.json").read_text())


@pytest.mark.parametrize(
    ("tool", "substring", "passed", "said"),
    [
        ("search", "red", True, 'a result of "search" contains "red"'),
        ("search", "blue", False, 'no result of "search" contains "blue"; it gave "[\\"red\\"]"'),
        ("read", "blue", True, "contains"),
        ("read", '"text":"blue"', True, "contains"),
        ("slow", "x", False, 'no result of "slow" arrived'),
        ("never", "x", False, '"never" was never called; called were "search", "read", "slow"'),
    ],
)
def test_b05_results_belong_to_their_call(tool: str, substring: str, passed: bool, said: str) -> None:
    trial = read_trial([turn(*B05)])
    finding = evaluate(expectation_from_document({"result_contains": {"name": tool, "substring": substring}}), trial)
    assert finding.passed is passed
    assert said in finding.sentence


B19 = json.loads((CASES / "B19.json").read_text())
B19_ANSWERS = [None, None, '{"a":1}', "", "日本語", "👩‍👩‍👧", "x", "a"]
"""By S11: null is no answer, what is not text is compact JSON, an unnamed result will do, the first one counts."""


@pytest.mark.parametrize(
    ("outputs", "answer"), list(zip(B19, B19_ANSWERS, strict=True)), ids=lambda value: str(value)[:40]
)
def test_b19_an_answer_is_found_or_said_to_be_absent(outputs: list[Any], answer: str | None) -> None:
    trial = read_trial([turn(outputs=[{"type": "result", **output} for output in outputs])])
    assert trial.final_answer == answer
    contains = evaluate(expectation_from_document({"final_answer_contains": "zzz"}), trial)
    lacks = evaluate(expectation_from_document({"final_answer_not_contains": "zzz"}), trial)
    short = evaluate(expectation_from_document({"final_answer_max_chars": 3}), trial)
    assert contains.passed is False
    if answer is None:
        assert lacks.passed is short.passed is False
        assert {contains.sentence, lacks.sentence, short.sentence} == {"there is no final answer"}
    else:
        assert lacks.passed is True
        assert short.passed is (len(answer) <= 3), "characters are code points"


def test_b19_an_answer_of_30_megabytes_is_judged_in_one_copy() -> None:
    huge = "x" * 30_000_000
    finding = evaluate(expectation_from_document({"final_answer_contains": "Paris"}), trial_with(answer=huge))
    assert finding.passed is False
    assert len(finding.sentence) < 1000
    assert len(huge) > LOOKED_INTO


def hook(
    decision: str, *, name: str = "tools.before", source: str = "hooks/tools.py", fallback: bool = False
) -> HookCall:
    return HookCall("run_1", name, decision, source, 1.0, fallback)


@pytest.mark.parametrize(
    ("hooks", "asked", "passed", "said"),
    [
        pytest.param([hook("deny")], {"decision": "deny"}, True, 'decided "deny" (1 deny)', id="it decided that"),
        pytest.param([hook("answered")], {"decision": "deny"}, False, 'never decided "deny"', id="it decided other"),
        pytest.param([hook("use_default")], {}, True, "asked once", id="deferring is running"),
        pytest.param([hook("failed")] * 4, {}, False, "asked 4 times and answered none (4 failed)", id="S22 sentence"),
        pytest.param([hook("malformed")], {}, False, "answered none", id="malformed is not ran at all"),
        pytest.param([hook("failed")], {"decision": "failed"}, True, "failed", id="failed, when asked for"),
        pytest.param([hook("malformed")], {"decision": "malformed"}, True, "malformed", id="malformed, asked for"),
        pytest.param([hook("failed", fallback=True)], {}, False, "asked once and answered none", id="a fallback"),
        pytest.param([hook("failed", fallback=True)], {"decision": "failed"}, True, "", id="a fallback is failed"),
        pytest.param([hook("failed"), hook("failed", fallback=True)], {}, False, "asked once", id="and its replay"),
        pytest.param([hook("failed"), hook("deny")], {}, True, "asked 2 times", id="one of two answered"),
        pytest.param(
            [hook("done", source="splox.toolkit.toolserve")], {}, False, "the platform's own code", id="not the tree's"
        ),
        pytest.param([], {}, False, '"tools.before" was never asked; no hook was', id="no hook"),
        pytest.param(
            [hook("deny", name="tool.before")], {}, False, '"tool.before" was, which is another name', id="near name"
        ),
        pytest.param([hook("deny", name="stop.done")], {}, False, 'asked were "stop.done"', id="another"),
    ],
)
def test_a_hook_has_to_do_its_work(hooks: list[HookCall], asked: dict[str, str], passed: bool, said: str) -> None:
    """S22."""
    expectation = expectation_from_document({"hook_called": {"name": "tools.before", **asked}})
    finding = evaluate(expectation, trial_with(hooks=hooks))
    assert finding.passed is passed
    assert said in finding.sentence


SENTENCES = [
    pytest.param(
        {"final_answer_contains": "Paris"},
        trial_with(answer="It is paris."),
        False,
        'the final answer does not contain "Paris"; it is "It is paris." (it matches but for letter case)',
        id="letter case",
    ),
    pytest.param(
        {"final_answer_contains": "café"},
        trial_with(answer="cafe\u0301"),
        False,
        'the final answer does not contain "café"; it is "cafe\u0301" '
        "(it matches but for the Unicode form: one side is composed (NFC), the other is not)",
        id="Unicode form",
    ),
    pytest.param(
        {"final_answer_contains": "two words"},
        trial_with(answer="two\n  words"),
        False,
        'the final answer does not contain "two words"; it is "two\\n  words" '
        "(it matches but for white space or line breaks)",
        id="white space",
    ),
    pytest.param(
        {"final_answer_contains": "Paris"},
        trial_with(answer="It is Paris."),
        True,
        'the final answer contains "Paris"',
        id="contains",
    ),
    pytest.param(
        {"final_answer_contains": "x"},
        trial_with(answer=""),
        False,
        'the final answer does not contain "x"; it is empty',
        id="empty",
    ),
    pytest.param(
        {"final_answer_not_contains": "sorry"},
        trial_with(answer="I am sorry, no."),
        False,
        'the final answer contains "sorry", at character 6: "I am sorry, no."',
        id="not contains",
    ),
    pytest.param(
        {"final_answer_max_chars": 3},
        trial_with(answer="日本語x"),
        False,
        'the final answer has 4 characters, and at most 3 are allowed; it is "日本語x"',
        id="too long",
    ),
    pytest.param(
        {"final_answer_max_chars": 3},
        trial_with(answer="日本語"),
        True,
        "the final answer has 3 characters, at most 3 allowed",
        id="characters are code points",
    ),
    pytest.param(
        {"tool_called": {"name": "t"}}, trial_with(made=[("t", {})]), True, '"t" was called once', id="called"
    ),
    pytest.param(
        {"tool_called": {"name": "shell__run"}},
        trial_with(made=[("shell_run", {})]),
        False,
        '"shell__run" was never called; "shell_run" was, which is another name',
        id="near name",
    ),
    pytest.param(
        {"tool_called": {"name": "t", "args": {"city": "Oslo", "n": 1}}},
        trial_with(made=[("t", {"city": "oslo", "n": 1}), ("t", {"city": "Oslo", "n": True}), ("t", None)]),
        False,
        '"t" was never called with {"city":"Oslo","n":1}; it was called with '
        '{"city":"oslo","n":1} (city is "oslo", not "Oslo" (it matches but for letter case)); '
        '{"city":"Oslo","n":true} (n is true, not 1); null (city is not there)',
        id="other arguments",
    ),
    pytest.param({"tool_not_called": {"name": "rm"}}, trial_with(), True, '"rm" was never called', id="never called"),
    pytest.param(
        {"tool_not_called": {"name": "rm"}},
        trial_with(made=[("rm", {})]),
        False,
        '"rm" was called once, and it was not to be called',
        id="called after all",
    ),
    pytest.param(
        {"min_tool_calls": {"name": "t", "count": 2}},
        trial_with(made=[("t", {})]),
        False,
        '"t" was called once, and at least 2 were wanted',
        id="too few",
    ),
    pytest.param(
        {"min_tool_calls": {"name": "t", "count": 1}},
        trial_with(),
        False,
        '"t" was never called, and at least 1 was wanted; no tool was called',
        id="none at all",
    ),
    pytest.param(
        {"max_tool_calls": {"name": "t", "count": 0}},
        trial_with(),
        True,
        '"t" was never called (at most 0 allowed)',
        id="at most none",
    ),
    pytest.param({"no_error": True}, trial_with(), True, "every turn succeeded", id="no error"),
    pytest.param(
        {"no_error": True},
        trial_with(error="the run failed: agent_exit: exit status 3"),
        False,
        "the run failed: agent_exit: exit status 3",
        id="an error",
    ),
    pytest.param(
        {"no_error": True},
        trial_with(not_played="not played: a ended the conversation: the run failed"),
        False,
        "not played: a ended the conversation: the run failed",
        id="not played",
    ),
    pytest.param(
        {"result_contains": {"name": "t", "substring": "ok"}},
        trial_with(made=[("t", {}, "OK"), ("t", {}, None)]),
        False,
        'no result of "t" contains "ok"; it gave "OK"; "null" (it matches but for letter case)',
        id="result, letter case",
    ),
    pytest.param(
        {"tool_order": {"first": "a", "then": "b"}},
        trial_with(made=[("a", {}), ("b", {})]),
        True,
        '"a" was called before "b"',
        id="in order",
    ),
    pytest.param(
        {"tool_order": {"first": "a", "then": "b"}},
        trial_with(made=[("b", {}), ("a", {})]),
        False,
        '"b" was called before "a"',
        id="out of order",
    ),
    pytest.param(
        {"tool_order": {"first": "a", "then": "b"}},
        trial_with(made=[("a", {})]),
        False,
        '"b" was never called; called were "a"',
        id="only the first",
    ),
    pytest.param(
        {"min_tool_calls": {"name": "t", "count": 2}},
        trial_with(made=[("t", {})] * 3),
        True,
        '"t" was called 3 times (at least 2 wanted)',
        id="enough",
    ),
    pytest.param(
        {"max_tool_calls": {"name": "t", "count": 1}},
        trial_with(made=[("t", {})] * 3),
        False,
        '"t" was called 3 times, and at most 1 was wanted',
        id="too many",
    ),
    pytest.param(
        {"result_contains": {"name": "t", "substring": "ok"}},
        trial_with(made=[("t", {}, "all ok")]),
        True,
        'a result of "t" contains "ok"',
        id="result",
    ),
    pytest.param(
        {"result_contains": {"name": "t", "substring": "ok"}},
        trial_with(made=[("t", {})]),
        False,
        'no result of "t" arrived; "t" was called once',
        id="no result",
    ),
    pytest.param(
        {"final_answer_not_contains": "x"},
        trial_with(answer="abc"),
        True,
        'the final answer does not contain "x"',
        id="lacks",
    ),
    pytest.param(
        {"hook_called": {"name": "tools.before"}},
        trial_with(hooks=[hook("deny")]),
        True,
        '"tools.before" was asked once and decided 1 deny',
        id="hook ran",
    ),
    pytest.param(
        {"hook_called": {"name": "tools.before", "decision": "deny"}},
        trial_with(hooks=[hook("answered"), hook("deny")]),
        True,
        '"tools.before" decided "deny" (1 answered, 1 deny)',
        id="hook decided",
    ),
    pytest.param(
        {"hook_called": {"name": "tools.before", "decision": "deny"}},
        trial_with(hooks=[hook("failed")] * 4),
        False,
        '"tools.before" was asked 4 times and answered none; "deny" was wanted (4 failed)',
        id="hook that never answers",
    ),
]


@pytest.mark.parametrize(("document", "trial", "passed", "sentence"), SENTENCES)
def test_every_assertion_answers_with_a_sentence(document: Any, trial: Trial, passed: bool, sentence: str) -> None:
    """S23."""
    finding = evaluate(expectation_from_document(document), trial, index=7)
    assert (finding.passed, finding.sentence) == (passed, sentence)
    assert (finding.index, finding.kind) == (7, next(iter(document)))


def test_each_of_the_twelve_has_a_sentence_for_pass_and_for_fail() -> None:
    """But the grader, whose sentence is made from its answer (tests/checks/test_twelve.py)."""
    rows: list[Any] = [row.values for row in SENTENCES]
    said = {(next(iter(document)), passed) for document, _, passed, _ in rows}
    assert said == {(kind, passed) for kind in KINDS if kind != "grader" for passed in (True, False)}


def test_a_long_answer_is_shortened_in_the_middle() -> None:
    """S23."""
    finding = evaluate(
        expectation_from_document({"final_answer_contains": "x"}), trial_with(answer="a" * 5000 + "\x1b[31m")
    )
    assert finding.sentence.startswith('the final answer does not contain "x"; it is "aaa')
    assert finding.sentence.endswith('aaa\\u001b[31m"')
    assert "… [" in finding.sentence
    assert "\x1b" not in finding.sentence


def test_a_grader_is_not_judged_from_the_trial() -> None:
    with pytest.raises(ValueError, match="from its answer"):
        evaluate(Grader("quality.answers"), trial_with())


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_everything_matches_itself(value: Any) -> None:
    assert matches(value, json.loads(json.dumps(value)))


@given(st.dictionaries(st.text(max_size=5), JSON, max_size=4), st.dictionaries(st.text(max_size=5), JSON, max_size=4))
def test_more_keys_in_the_call_change_nothing(expected: dict[str, Any], more: dict[str, Any]) -> None:
    """S19: a subset."""
    assert matches(expected, {**more, **expected})


@given(JSON, JSON)
def test_a_mismatch_always_has_a_sentence(expected: Any, seen: Any) -> None:
    if not matches(expected, seen):
        sentence = first_mismatch(expected, seen)
        assert sentence
        assert "\n" not in sentence


TEXTS = st.text(min_size=1, max_size=30)


@given(TEXTS, TEXTS)
def test_contains_and_not_contains_are_opposites_where_there_is_an_answer(answer: str, text: str) -> None:
    trial = trial_with(answer=answer)
    contains = evaluate(expectation_from_document({"final_answer_contains": text}), trial)
    lacks = evaluate(expectation_from_document({"final_answer_not_contains": text}), trial)
    assert contains.passed is (text in answer)
    assert lacks.passed is not contains.passed
    for finding in (contains, lacks):
        assert finding.sentence.isprintable()


@given(st.integers(0, 5), st.integers(0, 5))
def test_min_and_max_agree_with_counting(made: int, count: int) -> None:
    trial = trial_with(made=[("t", {})] * made + [("other", {})])
    for kind, holds in (("min_tool_calls", made >= count), ("max_tool_calls", made <= count)):
        document = {kind: {"name": "t", "count": count}}
        assert evaluate(expectation_from_document(document), trial).passed is holds


def test_the_twelve_are_the_seeds_twelve() -> None:
    assert list(KINDS) == [
        "tool_called",
        "tool_not_called",
        "tool_order",
        "min_tool_calls",
        "max_tool_calls",
        "result_contains",
        "final_answer_contains",
        "final_answer_not_contains",
        "final_answer_max_chars",
        "hook_called",
        "no_error",
        "grader",
    ]
