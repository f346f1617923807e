"""Trials from wire documents (S8, S11, S22, S27, B04, B05, B11)."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalfleet.checks import HookCall, Trial, TurnRecord, evaluate, expectation_from_document, read_trial
from evalfleet.checks.text import TOO_DEEP, json_safe, one_line
from tests.checks.reading import CASES
from tests.checks.trials import answers, calls, event, result, run, says, trial_with, turn


def test_b04_replays_are_removed_and_equal_calls_stay() -> None:
    replayed = {"id": "msg_1", **calls(("c1", "t", {"x": 1}))}
    trial = read_trial([turn(replayed, replayed, calls(("c2", "t", {"x": 1})))])
    assert [(call.id, call.args) for call in trial.tool_calls] == [("c1", {"x": 1}), ("c2", {"x": 1})]
    for document in ({"max_tool_calls": {"name": "t", "count": 2}}, {"min_tool_calls": {"name": "t", "count": 2}}):
        assert evaluate(expectation_from_document(document), trial).passed


def test_b04_a_replayed_hook_event_is_no_second_call() -> None:
    asked = {"id": "evt_1", **event("hook.called", hook="stop.done", source="s.py", decision="done", duration_ms=7)}
    assert read_trial([turn(events=[asked, asked])]).hooks == (
        HookCall("run_1", "stop.done", "done", "s.py", 7, fallback=False),
    )


def test_s11_equal_call_ids_in_two_runs_are_two_calls() -> None:
    first = turn(calls(("c1", "t", {})), result("c1", "one"), id="run_1")
    second = turn(calls(("c1", "t", {})), result("c1", "two"), id="run_2")
    made = read_trial([first, second]).tool_calls
    assert [(call.run_id, call.turn, call.result) for call in made] == [("run_1", 0, "one"), ("run_2", 1, "two")]


@pytest.mark.parametrize("messages", [1, 2], ids=["in one message", "in two messages"])
def test_s11_a_call_is_its_place_and_a_repeated_id_hides_none(messages: int) -> None:
    """An agent that gives every call the id "1" passed `tool_not_called: rm`."""
    made = [("1", "ls", {}), ("1", "rm", {"f": "a"}), ("1", "rm", {"f": "b"})]
    said = [calls(*made)] if messages == 1 else [calls(*made[:1]), calls(*made[1:])]
    trial = read_trial([turn(*said)])
    assert [(call.name, call.args) for call in trial.tool_calls] == [(name, args) for _, name, args in made]
    assert len({(call.run_id, call.message, call.position) for call in trial.tool_calls}) == 3
    held = {
        "tool_not_called": {"name": "rm"},
        "tool_called": {"name": "rm", "args": {"f": "b"}},
        "min_tool_calls": {"name": "rm", "count": 2},
        "max_tool_calls": {"name": "rm", "count": 1},
        "tool_order": {"first": "ls", "then": "rm"},
    }
    passed = {kind: evaluate(expectation_from_document({kind: args}), trial).passed for kind, args in held.items()}
    assert passed == {
        "tool_not_called": False,
        "tool_called": True,
        "min_tool_calls": True,
        "max_tool_calls": False,
        "tool_order": messages == 2,
    }


@pytest.mark.parametrize(
    ("messages", "joined"),
    [
        (["a", "=1", "b", "=2"], {"a": 1, "b": 2}),
        (["a", "b", "=1", "=2"], {"a": 2, "b": 1}),
        (["a b", "=1", "=2"], {"a": 2, "b": 1}),
        (["a", "b", "=1"], {"a": None, "b": 1}),
        (["a", "=1", "=2", "b"], {"a": 2, "b": None}),
        (["a", "=1", "b", "=2", "=3"], {"a": 1, "b": 3}),
        (["=1", "a"], {"a": None}),
        (["a", "=None", "b", "=2"], {"a": None, "b": 2}),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, list) else "",
)
def test_s11_a_result_joins_the_nearest_earlier_call_of_its_id_that_has_none(
    messages: list[str], joined: dict[str, Any]
) -> None:
    """All under one id. One more result for a call that has its own takes that one's place."""
    said = [
        result("1", json.loads(word[1:].replace("None", "null")))
        if word.startswith("=")
        else calls(*(("1", name, {}) for name in word.split()))
        for word in messages
    ]
    made = read_trial([turn(*said)]).tool_calls
    assert {call.name: call.result for call in made} == joined


def test_s11_a_call_of_an_older_artifact_is_read_without_its_position() -> None:
    older = read_trial([turn(calls(("1", "ls", {})))]).to_json()
    del older["tool_calls"][0]["position"]
    assert Trial.from_json(older).tool_calls[0].position == 0


def test_b05_results_are_joined_inside_their_run_whatever_their_order() -> None:
    messages = json.loads((CASES / "B05.json").read_text())
    made = read_trial([turn(*messages)]).tool_calls
    assert [(call.name, call.has_result, call.result) for call in made] == [
        ("search", True, ["red"]),
        ("read", True, '{"text":"blue"}'),
        ("slow", False, None),
    ]
    assert {call.message for call in made} == {0}


@pytest.mark.parametrize(
    ("args", "seen"),
    [
        ('{"a": 1}', {"a": 1}),
        ('"{\\"a\\": 1}"', '{"a": 1}'),
        ("not json", "not json"),
        ("NaN", "NaN"),
        ("[" * 100_000, "[" * 100_000),
        ('{"n": 123456789012345678901234567890}', {"n": 1.2345678901234568e29}),
        (None, None),
        ({"a": '{"b": 1}'}, {"a": '{"b": 1}'}),
    ],
    ids=["text", "twice encoded", "words", "NaN", "deep text", "beyond 64 bits", "null", "inner text"],
)
def test_s11_args_that_are_json_text_are_parsed_once(args: Any, seen: Any) -> None:
    assert read_trial([turn(calls(("c1", "t", args)))]).tool_calls[0].args == seen


def test_what_is_nested_too_deep_to_be_written_again_is_cut() -> None:
    deep: Any = "x"
    for _ in range(300):
        deep = [deep]
    trial = read_trial([turn(calls(("c1", "t", deep)), result("c1", deep), outputs=[answers(deep)])])
    assert (trial.tool_calls[0].args, trial.tool_calls[0].result, trial.final_answer) == (TOO_DEEP,) * 3
    orjson.dumps(trial.to_json())


@pytest.mark.parametrize(
    ("messages", "outputs", "answer"),
    [
        pytest.param([says("text")], [answers("final")], "final", id="final_message"),
        pytest.param([], [answers("x", name="other"), answers("final")], "final", id="final_message, though later"),
        pytest.param([], [answers("x", name="other"), answers("y", name="more")], "x", id="the first result"),
        pytest.param([says("text")], [answers("x", kind="artifact")], "text", id="an artifact is no answer"),
        pytest.param([says("one"), says("two")], [], "two", id="the last assistant text"),
        pytest.param([says("one"), calls(("c", "t", {}))], [], "one", id="a message without text is passed over"),
        pytest.param([says("text")], [answers(None)], "text", id="null is no answer"),
        pytest.param([{"role": "user", "content": [{"type": "text", "text": "hi"}]}], [], None, id="only the user"),
        pytest.param([], [answers([1, "é"])], '[1,"é"]', id="compact JSON"),
        pytest.param([], [answers(False)], "false", id="false is a value"),
    ],
)
def test_s11_where_the_answer_is(messages: list[Any], outputs: list[Any], answer: str | None) -> None:
    assert read_trial([turn(*messages, outputs=outputs)]).final_answer == answer


def test_s11_the_answer_is_the_last_turns() -> None:
    trial = read_trial([turn(outputs=[answers("first")]), turn(outputs=[])])
    assert trial.final_answer is None
    assert [turn.answer for turn in trial.turns] == ["first", None]


def test_messages_of_another_run_are_not_this_turns() -> None:
    other = {"run_id": "run_0", **calls(("c1", "t", {}))}
    own = {"run_id": "run_1", **calls(("c2", "t", {}))}
    assert [call.id for call in read_trial([turn(other, own)]).tool_calls] == ["c2"]


def test_s22_a_fallback_counts_as_failed() -> None:
    told = event("hook.fallback", hook="context.build", reason="TypeError", age_ms=5000)
    assert read_trial([turn(events=[told])]).hooks == (
        HookCall("run_1", "context.build", "failed", "", None, fallback=True, error="TypeError"),
    )


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ({"decision": "failed", "error": "KeyError: 'price'"}, "KeyError: 'price'"),
        ({"decision": "malformed", "error": {"message": "no such decision"}}, "no such decision"),
        ({"decision": "failed", "error": 5, "message": "timed out"}, "timed out"),
        ({"decision": "failed", "error": " "}, None),
        ({"decision": "failed"}, None),
        ({"decision": "deny", "reason": "too long a stay"}, None),
    ],
    ids=["ours", "an object", "another key", "blank", "silent", "a verdict is no failure"],
)
def test_a_hooks_own_words_about_its_failure_are_kept(data: dict[str, Any], error: str | None) -> None:
    (hook,) = read_trial([turn(events=[event("hook.called", hook="h", **data)])]).hooks
    assert hook.error == error


@pytest.mark.parametrize("turns", [1, 2])
def test_item_22_a_note_of_the_journal_is_the_trials_and_is_stored(turns: int) -> None:
    """Once for each event, of whatever turn; no check and no grader sees it. Older artifacts have none."""
    note = {"id": "evt_1", **event("agent.note", message="line 1 is\nno JSON")}
    odd = [event("agent.note"), event("agent.note", message=7), {"type": "agent.note", "data": "x"}]
    trial = read_trial([*([turn()] * (turns - 1)), turn(events=[note, note, *odd])])
    assert trial.notes == (("turn 2: " if turns == 2 else "") + one_line("line 1 is\nno JSON", 1000),)
    assert Trial.from_json(trial.to_json()) == trial
    assert "notes" not in trial.run_document()
    older = trial.to_json()
    del older["notes"]
    assert Trial.from_json(older).notes == ()


def test_a_trial_of_an_artifact_from_before_hooks_spoke_is_read() -> None:
    stored = read_trial([turn(events=[event("hook.called", hook="h", decision="failed", error="x")])]).to_json()
    del stored["hooks"][0]["error"]
    assert Trial.from_json(stored).hooks[0].error is None


@pytest.mark.parametrize(
    ("turns", "error"),
    [
        ([turn()], None),
        ([turn(status="failed", failure={"code": "agent_exit", "message": "exit\nstatus 3"})],
         "the run failed: agent_exit: exit\\nstatus 3"),
        ([turn(status="failed", failure={"message": "exit status 1: Traceback:\n  File x\n    y\nValueError: no\n"})],
         "the run failed: exit status 1: Traceback: … ValueError: no"),
        ([turn(), turn(status="cancelled")], "turn 2 of 2 was cancelled"),
        ([turn(status="failed"), turn(status="cancelled")], "turn 1 of 2 failed without a reason"),
        ([turn(status="running")], "the run is still running"),
    ],
    ids=["succeeded", "failed", "of many lines", "cancelled", "the first of two", "not terminal"],
)  # fmt: skip
def test_the_error_is_a_sentence_about_the_first_turn_that_did_not_succeed(
    turns: list[TurnRecord], error: str | None
) -> None:
    assert read_trial(turns).error == error


def test_s27_the_run_document_has_its_frozen_shape() -> None:
    trial = read_trial(
        [turn(calls(("c1", "t", {"x": 1})), result("c1", "r"), outputs=[answers("ok")], seconds=1.5), turn(says("b"))]
    )
    assert trial.run_document() == {
        "final_answer": "b",
        "tool_calls": [{"id": "c1", "name": "t", "args": {"x": 1}, "result": "r", "turn": 0}],
        "error": None,
        "turns": 2,
        "duration_ms": 2500,
    }
    trial.run_document()["tool_calls"][0]["args"]["x"] = 2
    assert trial.run_document()["tool_calls"][0]["args"] == {"x": 1}, "a fresh copy for each call"


def test_s8_a_scenario_that_was_not_played_says_so() -> None:
    trial = read_trial([], not_played="not played: a ended the conversation")
    assert (trial.turns, trial.final_answer, trial.not_played) == ((), None, "not played: a ended the conversation")


def test_b11_a_lone_surrogate_survives_judging_and_is_replaced_where_it_is_written() -> None:
    document = json.loads((CASES / "B11.json").read_text())
    trial = read_trial(
        [turn(calls(("c1", "t", document["args"])), outputs=[answers(document["answer"])], user=document["user"])]
    )
    assert trial.final_answer == "ok \ud83d"
    finding = evaluate(expectation_from_document({"final_answer_contains": "ok"}), trial)
    assert finding.passed
    finding = evaluate(expectation_from_document({"final_answer_contains": "x"}), trial)
    assert '"ok \\ud83d"' in finding.sentence, "shown as an escape"
    stored = trial.to_json()
    assert stored["final_answer"] == "ok \N{REPLACEMENT CHARACTER}"
    assert stored["tool_calls"][0]["args"] == {"q": "\N{REPLACEMENT CHARACTER}"}
    assert stored["turns"][0]["user"] == "😀 half \N{REPLACEMENT CHARACTER}"
    for written in (stored, trial.run_document()):
        assert orjson.loads(orjson.dumps(written)) == written
    assert len(Trial.from_json(stored).final_answer or "") == len(trial.final_answer), "lengths stay"


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(), max_size=4), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(ANY_JSON)
def test_b11_whatever_a_run_held_can_be_written(value: Any) -> None:
    safe = json_safe(value)
    assert orjson.loads(orjson.dumps(safe)) == safe
    assert json_safe(safe) == safe


@given(
    answer=st.none() | st.text(max_size=20),
    made=st.lists(st.tuples(st.text(max_size=5), ANY_JSON, ANY_JSON), max_size=3),
)
def test_a_stored_trial_comes_back_as_it_was_stored(answer: str | None, made: list[Any]) -> None:
    stored = trial_with(answer=answer, made=made).to_json()
    assert Trial.from_json(orjson.loads(orjson.dumps(stored))).to_json() == stored


@pytest.mark.parametrize("document", [{}, {"turns": 1}, {"turns": [{}]}, []], ids=str)
def test_what_is_no_trial_is_refused_with_a_reason(document: Any) -> None:
    with pytest.raises(ValueError, match="not the document of a trial"):
        Trial.from_json(document)


@pytest.mark.parametrize("part", [None, 1, "text", {"type": "json"}, {"type": "json", "value": {"type": "tool_call"}}])
def test_parts_of_unknown_shape_are_passed_over(part: Any) -> None:
    messages = [{"role": "assistant", "content": [part]}, {"role": "assistant", "content": part}, {}]
    trial = read_trial([TurnRecord("hi", run(), messages, [{}], [{}, {"type": "hook.called", "data": None}])])
    assert (trial.tool_calls, trial.hooks) == ((), ())
