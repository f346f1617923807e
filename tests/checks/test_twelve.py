"""The twelve against a second reading of their rules (S19–S23): the verdict, and what every sentence has to be."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalfleet.checks import Finding, HookCall, Scenario, ToolCall, Trial, evaluate, expectation_from_document, judge
from evalfleet.checks.expectation import KINDS
from evalfleet.checks.matching import matches
from evalfleet.checks.outcome import GraderAnswer, Meaning, RunMeaning
from evalfleet.checks.place import Place
from tests.checks.trials import trial_with

NAMES = st.sampled_from(["t", "shell__run", "shell_run", "x\n"])
WORDS = st.sampled_from(
    ["Paris", "paris", " Paris ", "café", "cafe\u0301", "two words", "two\nwords", "", "\x1b[31m", "日本"]
)
TEXT = st.lists(WORDS, max_size=4).map("".join)
SCALAR = st.sampled_from([None, True, 1, 1.0, "1", ""])
VALUE = st.recursive(
    SCALAR,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=4,
)
ARGS = st.dictionaries(st.sampled_from("ab"), VALUE, max_size=2)
DECISIONS = st.sampled_from(["answered", "use_default", "failed", "malformed", "deny"])
CALL = st.builds(
    ToolCall,
    run_id=st.just("run_1"),
    id=st.just("c"),
    name=NAMES,
    args=st.none() | ARGS,
    result=TEXT | VALUE,
    has_result=st.booleans(),
    turn=st.integers(0, 1),
    message=st.integers(0, 1),
)
HOOK = st.builds(
    HookCall,
    run_id=st.just("run_1"),
    hook=st.sampled_from(["tools.before", "tools.after"]),
    decision=DECISIONS,
    source=st.sampled_from(["hooks/tools.py", "splox.toolkit.guard", "splox.toolkits"]),
    duration_ms=st.just(1),
    fallback=st.booleans(),
).map(lambda hook: hook if not hook.fallback else _as_fallback(hook))
TRIAL = st.builds(
    Trial,
    turns=st.just(()),
    tool_calls=st.lists(CALL, max_size=5).map(lambda calls: tuple(sorted(calls, key=lambda c: (c.turn, c.message)))),
    hooks=st.lists(HOOK, max_size=4).map(tuple),
    final_answer=st.none() | TEXT,
    error=st.none() | st.just("the run failed: agent_exit: exit status 3"),
    duration_ms=st.just(1000),
    not_played=st.none() | st.just("not played: a ended the conversation: the run failed"),
)
COUNT = st.integers(0, 3)
DOCUMENTS: list[st.SearchStrategy[dict[str, Any]]] = [
    st.builds(lambda n, a: {"tool_called": {"name": n, "args": a}}, NAMES, ARGS),
    st.builds(lambda n: {"tool_called": {"name": n}}, NAMES),
    st.builds(lambda n: {"tool_not_called": {"name": n}}, NAMES),
    st.builds(lambda a, b: {"tool_order": {"first": a, "then": b}}, NAMES, NAMES),
    st.builds(lambda n, c: {"min_tool_calls": {"name": n, "count": c}}, NAMES, COUNT),
    st.builds(lambda n, c: {"max_tool_calls": {"name": n, "count": c}}, NAMES, COUNT),
    st.builds(lambda n, s: {"result_contains": {"name": n, "substring": s}}, NAMES, TEXT.filter(bool)),
    st.builds(lambda t: {"final_answer_contains": t}, TEXT.filter(bool)),
    st.builds(lambda t: {"final_answer_not_contains": t}, TEXT.filter(bool)),
    st.builds(lambda n: {"final_answer_max_chars": n}, st.integers(0, 20)),
    st.builds(lambda d: {"hook_called": {"name": "tools.before", "decision": d}}, DECISIONS),
    st.just({"hook_called": {"name": "tools.before"}}),
    st.just({"no_error": True}),
]
DOCUMENT = st.one_of(DOCUMENTS)


def _as_fallback(hook: HookCall) -> HookCall:
    """A replayed answer counts as `failed` from the moment that the trial is read (S22)."""
    return HookCall(hook.run_id, hook.hook, "failed", hook.source, hook.duration_ms, True)


def holds(kind: str, asked: Any, trial: Trial) -> bool:
    """Whether an assertion holds: the rules said once more, as plainly as they can be."""
    match kind:
        case "no_error":
            return trial.error is None and trial.not_played is None
        case "final_answer_contains":
            return trial.final_answer is not None and str(asked) in trial.final_answer
        case "final_answer_not_contains":
            return trial.final_answer is not None and str(asked) not in trial.final_answer
        case "final_answer_max_chars":
            return trial.final_answer is not None and len(trial.final_answer) <= int(asked)
        case "hook_called":
            own = [h for h in trial.hooks if h.hook == asked["name"] and not h.source.startswith("splox.toolkit.")]
            if "decision" in asked:
                return asked["decision"] in {h.decision for h in own}
            return bool({h.decision for h in own} - {"failed", "malformed"})
        case "tool_order":
            first = [(c.turn, c.message) for c in trial.tool_calls if c.name == asked["first"]]
            then = [(c.turn, c.message) for c in trial.tool_calls if c.name == asked["then"]]
            return bool(first and then) and min(first) < min(then)
    made = [call for call in trial.tool_calls if call.name == asked["name"]]
    match kind:
        case "tool_called":
            return any("args" not in asked or within(asked["args"], call.args or {}) for call in made)
        case "tool_not_called":
            return not made
        case "min_tool_calls":
            return len(made) >= int(asked["count"])
        case "max_tool_calls":
            return len(made) <= int(asked["count"])
    assert kind == "result_contains"
    return any(asked["substring"] in as_it_reads(call.result) for call in made if call.has_result)


def within(wanted: object, seen: object) -> bool:
    if isinstance(wanted, dict):
        return isinstance(seen, dict) and all(key in seen and within(wanted[key], seen[key]) for key in wanted)
    if isinstance(wanted, list):
        return isinstance(seen, list) and len(wanted) == len(seen) and all(map(within, wanted, seen))
    both = {type(wanted), type(seen)}
    return (both <= {int, float} or len(both) == 1) and wanted == seen


def as_it_reads(result: Any) -> str:
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, separators=(",", ":"))


@pytest.mark.parametrize("documents", DOCUMENTS, ids=str)
@settings(max_examples=40)
@given(st.data(), TRIAL)
def test_the_verdict_is_what_the_rules_say(
    documents: st.SearchStrategy[dict[str, Any]], data: st.DataObject, trial: Trial
) -> None:
    document = data.draw(documents)
    ((kind, asked),) = document.items()
    found = evaluate(expectation_from_document(document), trial, index=3)
    assert found.passed is holds(kind, asked, trial), found.sentence
    assert (found.index, found.kind) == (3, kind)


@given(DOCUMENT, TRIAL)
def test_every_sentence_is_one_line_and_hides_nothing(document: dict[str, Any], trial: Trial) -> None:
    """S23: control characters shown, shortened in the middle, said by pass and fail alike."""
    sentence = evaluate(expectation_from_document(document), trial).sentence
    assert sentence.strip() == sentence != ""
    assert len(sentence) < 3000
    hidden = {char for char in sentence if unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp", "Cs")}
    assert not hidden


@given(DOCUMENT, TRIAL)
def test_a_sentence_of_a_pass_is_never_that_of_a_failure(document: dict[str, Any], trial: Trial) -> None:
    """Who reads the sentence alone knows the verdict: no pass owns up to a failure's words."""
    found = evaluate(expectation_from_document(document), trial)
    against = (
        "was wanted",
        "were wanted",
        "it matches but for",
        "was not to be called",
        "it is ",
        "it gave",
        "answered none",
    )
    if found.passed:
        assert not any(words in found.sentence for words in against), found.sentence
    else:
        assert "allowed)" not in found.sentence


NEAR: dict[str, Callable[[str, str], bool]] = {
    "letter case)": lambda text, seen: text.casefold() in seen.casefold(),
    "the white space at its ends)": lambda text, seen: text.strip() in seen,
    "the Unicode form: one": lambda text, seen: nfc(text) in nfc(seen),
    "white space or line breaks)": lambda text, seen: " ".join(nfc(text).split()) in " ".join(nfc(seen).split()),
}


def nfc(text: str) -> str:
    return unicodedata.normalize("NFC", text)


@given(TEXT.filter(bool), TEXT)
def test_a_near_miss_is_named_only_where_it_is_one(text: str, answer: str) -> None:
    """And where letter case, form or blanks are all that differs, one is named."""
    found = evaluate(expectation_from_document({"final_answer_contains": text}), trial_with(answer=answer))
    named = [name for name in NEAR if f"it matches but for {name}" in found.sentence]
    if found.passed:
        assert not named
        return
    for name in named:
        assert NEAR[name](text, answer), found.sentence
    for test in NEAR.values():
        if text.strip() and test(text, answer):
            assert "it matches but for" in found.sentence


@given(NAMES, NAMES)
def test_a_tool_of_nearly_that_name_is_named(asked: str, called: str) -> None:
    found = evaluate(expectation_from_document({"tool_called": {"name": asked}}), trial_with(made=[(called, {})]))
    if {asked, called} == {"shell__run", "shell_run"}:
        assert found.sentence.endswith("was, which is another name")
    assert found.passed is (asked == called)


@settings(max_examples=500)
@given(st.data())
def test_arguments_match_as_the_rules_say(data: st.DataObject) -> None:
    """S19. What is asked for is what was seen with a little changed, so that both come out often."""
    seen = data.draw(VALUE)
    wanted = data.draw(altered(seen))
    assert matches(wanted, seen) is within(wanted, seen)


def altered(value: Any) -> st.SearchStrategy[Any]:
    """The value, or one of its kind with a part taken away, added or exchanged."""
    if isinstance(value, list):
        same: st.SearchStrategy[Any] = st.tuples(*map(altered, value)).map(list)
        return same | same.map(lambda items: items[1:]) | same.map(lambda items: [*items, 1])
    if isinstance(value, dict):
        same = st.fixed_dictionaries({key: altered(inner) for key, inner in value.items()})
        return (
            same | same.map(lambda items: dict(list(items.items())[1:])) | same.map(lambda items: {**items, "z": None})
        )
    return st.just(value) | SCALAR


@given(ARGS, ARGS, st.sampled_from("abc"))
def test_args_that_are_asked_for_less_still_match(wanted: dict[str, Any], seen: dict[str, Any], dropped: str) -> None:
    """Dropping a key from what is asked never loses a match, and adding one to the call never does."""

    def passes(args: Mapping[str, Any], made: Mapping[str, Any]) -> bool:
        document = {"tool_called": {"name": "t", "args": dict(args)}}
        return bool(evaluate(expectation_from_document(document), trial_with(made=[("t", dict(made))])).passed)

    if passes(wanted, seen):
        assert passes({key: value for key, value in wanted.items() if key != dropped}, seen)
        assert passes(wanted, {dropped: "more", **seen})


GRADER = [
    pytest.param({"kind": "answered", "passed": True, "score": None}, None, True, id="pass"),
    pytest.param({"kind": "answered", "passed": False, "score": None}, None, False, id="fail"),
    pytest.param({"kind": "answered", "passed": True, "score": 0.7}, 0.7, True, id="equal passes"),
    pytest.param({"kind": "answered", "passed": True, "score": 0.69}, 0.7, False, id="below"),
    pytest.param({"kind": "answered", "passed": True, "score": None}, 0.7, False, id="no score"),
    pytest.param({"kind": "answered", "passed": False, "score": 0.9}, 0.7, False, id="its own verdict"),
]


@pytest.mark.parametrize(("answer", "below", "passed"), GRADER)
def test_the_twelfth_is_judged_from_its_answer(answer: dict[str, Any], below: float | None, passed: bool) -> None:
    """S25."""
    args = {"name": "q.a"} if below is None else {"name": "q.a", "pass_below": below}
    scenario = Scenario("a", ("hi",), (expectation_from_document({"grader": args}),), 1, 300.0, Place("f", 1, 1))
    given_ = {"name": "q.a", "why": "because", "error": None, "log": "", "duration_ms": 1, "llm_calls": 0}
    said = GraderAnswer.from_json({**given_, "llm_tokens": 0, "llm_amount": None, **answer})
    judgement = judge(scenario, trial_with(), RunMeaning(Meaning.RESULT, ""), [said])
    (finding,) = judgement.findings
    assert isinstance(finding, Finding)
    assert (finding.kind, finding.passed) == ("grader", passed)
    assert "q.a" in finding.sentence or "because" in finding.sentence
    assert set(KINDS) >= {finding.kind}
