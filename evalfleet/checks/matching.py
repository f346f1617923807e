"""Does an observed trial satisfy one assertion, and how is that said in a sentence? (S19–S23)"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from evalfleet.checks.expectation import (
    Expectation,
    FinalAnswerContains,
    FinalAnswerMaxChars,
    FinalAnswerNotContains,
    Finding,
    Grader,
    HookCalled,
    MaxToolCalls,
    MinToolCalls,
    NoError,
    ResultContains,
    ToolCalled,
    ToolNotCalled,
    ToolOrder,
)
from evalfleet.checks.hooks import judge_hook
from evalfleet.checks.near import near_name
from evalfleet.checks.text import as_text, quoted, shortened, shown_value
from evalfleet.checks.trial import ToolCall, Trial

NO_ANSWER = "there is no final answer"
LOOKED_INTO = 1_000_000
"""Characters up to which near misses are looked for: a longer answer is not copied to fold its letters (B19)."""

_SHOWN_CALLS = 3


def evaluate(expectation: Expectation, trial: Trial, *, index: int = 0) -> Finding:
    """What the assertion says about the trial. A grader's finding is not made here but from its answer
    (`evalfleet.checks.outcome`): ValueError."""
    passed, sentence = _decide(expectation, trial)
    return Finding(index, expectation.kind, passed, sentence)


def _decide(expectation: Expectation, trial: Trial) -> tuple[bool, str]:
    match expectation:
        case ToolCalled():
            return _tool_called(expectation, trial)
        case ToolNotCalled(name=name):
            return _count(trial, name, 0, None, at_most=0)
        case MinToolCalls(name=name, count=count):
            return _count(trial, name, count, count, at_most=None)
        case MaxToolCalls(name=name, count=count):
            return _count(trial, name, 0, count, at_most=count)
        case ToolOrder(first=first, then=then):
            return _order(trial, first, then)
        case ResultContains(name=name, substring=substring):
            return _result_contains(trial, name, substring)
        case FinalAnswerContains(text=text):
            return _answer_contains(trial.final_answer, text)
        case FinalAnswerNotContains(text=text):
            return _answer_lacks(trial.final_answer, text)
        case FinalAnswerMaxChars(chars=chars):
            return _answer_length(trial.final_answer, chars)
        case HookCalled(name=name, decision=decision):
            return judge_hook(trial.hooks, name, decision)
        case NoError():
            if trial.not_played is not None:
                return False, trial.not_played
            return trial.error is None, trial.error or "every turn succeeded"
        case Grader():
            raise ValueError("a grader's finding is made from its answer, not from the trial")


# --- tools ---


def matches(expected: Any, seen: Any) -> bool:
    """Subset match of JSON (S19): mappings by key, recursively; lists element by element at equal length; 4 equals
    4.0, `true` is not 1, "4" is not 4; an expected null needs the key."""
    if isinstance(expected, Mapping):
        return isinstance(seen, Mapping) and all(
            key in seen and matches(value, seen[key]) for key, value in expected.items()
        )
    if isinstance(expected, Sequence) and not isinstance(expected, str):
        return (
            isinstance(seen, Sequence)
            and not isinstance(seen, str)
            and len(expected) == len(seen)
            and all(map(matches, expected, seen))
        )
    if isinstance(expected, bool) or isinstance(seen, bool):
        return expected is seen
    return bool(expected == seen)


def first_mismatch(expected: Any, seen: Any, path: str = "") -> str:
    """Where and how `seen` is not what was expected: `city is "Oslo", not "oslo"`."""
    where = path or "the value"
    if isinstance(expected, Mapping) and isinstance(seen, Mapping):
        for key, value in expected.items():
            inner = f"{path}.{key}" if path else str(key)
            if key not in seen:
                return f"{shortened(inner, 80)} is not there"
            if not matches(value, seen[key]):
                return first_mismatch(value, seen[key], inner)
    if isinstance(expected, list) and isinstance(seen, list):
        if len(expected) != len(seen):
            return f"{where} has {len(seen)} elements, not {len(expected)}"
        for number, (value, other) in enumerate(zip(expected, seen, strict=True)):
            if not matches(value, other):
                return first_mismatch(value, other, f"{path}[{number}]")
    sentence = f"{shortened(where, 80)} is {shown_value(seen, 80)}, not {shown_value(expected, 80)}"
    if isinstance(expected, str) and isinstance(seen, str):
        near = _difference(expected, seen, whole=True)
        return f"{sentence} ({near})" if near else sentence
    return sentence


def _calls(trial: Trial, name: str) -> list[ToolCall]:
    return [call for call in trial.tool_calls if call.name == name]


def _tool_called(expectation: ToolCalled, trial: Trial) -> tuple[bool, str]:
    name, wanted = expectation.name, expectation.called_with
    calls = _calls(trial, name)
    if not calls:
        return False, f"{quoted(name)} was never called; {_tools_seen(trial, name)}"
    if wanted is None:
        return True, _called(name, len(calls))
    for call in calls:
        if matches(wanted, {} if call.args is None else call.args):
            return True, f"{quoted(name)} was called with {shown_value(call.args)}"
    shown = "; ".join(
        f"{shown_value(call.args)} ({first_mismatch(wanted, {} if call.args is None else call.args)})"
        for call in calls[:_SHOWN_CALLS]
    )
    more = f"; and {len(calls) - _SHOWN_CALLS} more calls" if len(calls) > _SHOWN_CALLS else ""
    return False, f"{quoted(name)} was never called with {shown_value(wanted)}; it was called with {shown}{more}"


def _count(trial: Trial, name: str, least: int, asked: int | None, *, at_most: int | None) -> tuple[bool, str]:
    number = len(_calls(trial, name))
    seen = _called(name, number)
    passed = number >= least and (at_most is None or number <= at_most)
    if asked is None:
        return passed, seen if passed else f"{seen}, and it was not to be called"
    bound = f"at most {asked}" if at_most is not None else f"at least {asked}"
    if passed:
        return True, f"{seen} ({bound} allowed)" if at_most is not None else f"{seen} ({bound} wanted)"
    hint = f"; {_tools_seen(trial, name)}" if number == 0 else ""
    return False, f"{seen}, and {bound} {'was' if asked == 1 else 'were'} wanted{hint}"


def _order(trial: Trial, first: str, then: str) -> tuple[bool, str]:
    """First call against first call; calls of one assistant message are simultaneous (S20)."""
    for name in (first, then):
        if not _calls(trial, name):
            return False, f"{quoted(name)} was never called; {_tools_seen(trial, name)}"
    one, two = _calls(trial, first)[0], _calls(trial, then)[0]
    before, after = (one.turn, one.message), (two.turn, two.message)
    if before < after:
        return True, f"{quoted(first)} was called before {quoted(then)}"
    if before == after:
        return False, f"{quoted(first)} and {quoted(then)} were called in one message: neither is before the other"
    return False, f"{quoted(then)} was called before {quoted(first)}"


def _result_contains(trial: Trial, name: str, substring: str) -> tuple[bool, str]:
    calls = _calls(trial, name)
    if not calls:
        return False, f"{quoted(name)} was never called; {_tools_seen(trial, name)}"
    results = [as_text(call.result) for call in calls if call.has_result]
    if not results:
        return False, f"no result of {quoted(name)} arrived; {_called(name, len(calls))}"
    for result in results:
        if substring in result:
            return True, f"a result of {quoted(name)} contains {quoted(substring)}"
    near = next(filter(None, (_difference(substring, result) for result in results)), "")
    shown = "; ".join(quoted(result) for result in results[:_SHOWN_CALLS])
    more = f"; and {len(results) - _SHOWN_CALLS} more" if len(results) > _SHOWN_CALLS else ""
    said = f"no result of {quoted(name)} contains {quoted(substring)}; it gave {shown}{more}"
    return False, f"{said} ({near})" if near else said


def _tools_seen(trial: Trial, name: str) -> str:
    """What was called instead, the near name first."""
    names = list(dict.fromkeys(call.name for call in trial.tool_calls))
    if not names:
        return "no tool was called"
    near = near_name(name, names)
    if near:
        return f"{quoted(near)} was, which is another name"
    shown = ", ".join(quoted(other, 60) for other in names[:5])
    return f"called were {shown}{f' and {len(names) - 5} more' if len(names) > 5 else ''}"


def _called(name: str, number: int) -> str:
    times = "called once" if number == 1 else f"called {number} times"
    return f"{quoted(name)} was {times if number else 'never called'}"


# --- the final answer ---


def _answer_contains(answer: str | None, text: str) -> tuple[bool, str]:
    if answer is None:
        return False, NO_ANSWER
    if text in answer:
        return True, f"the final answer contains {quoted(text)}"
    said = f"the final answer does not contain {quoted(text)}; it is {_answer_shown(answer)}"
    near = _difference(text, answer)
    return False, f"{said} ({near})" if near else said


def _answer_lacks(answer: str | None, text: str) -> tuple[bool, str]:
    if answer is None:
        return False, NO_ANSWER
    at = answer.find(text)
    if at < 0:
        return True, f"the final answer does not contain {quoted(text)}"
    start, end = max(0, at - 40), at + len(text) + 40
    around = ("…" if start else "") + shortened(answer[start:end], 300) + ("…" if end < len(answer) else "")
    return False, f'the final answer contains {quoted(text)}, at character {at + 1}: "{around}"'


def _answer_length(answer: str | None, chars: int) -> tuple[bool, str]:
    if answer is None:
        return False, NO_ANSWER
    said = f"the final answer has {_characters(len(answer))}"
    if len(answer) <= chars:
        return True, f"{said}, at most {chars} allowed"
    return False, f"{said}, and at most {chars} are allowed; it is {_answer_shown(answer)}"


def _answer_shown(answer: str) -> str:
    return "empty" if answer == "" else f"{quoted(answer)}"


def _characters(number: int) -> str:
    return "1 character" if number == 1 else f"{number} characters"


def _difference(text: str, seen: str, *, whole: bool = False) -> str:
    """Why `text` was nearly found in `seen` (or nearly is it): outer blanks, letter case, Unicode form, white space."""
    if len(seen) > LOOKED_INTO:
        return ""

    def there(one: str, other: str) -> bool:
        return bool(one) and (one == other if whole else one in other)

    bare = text.strip()
    trimmed = seen.strip() if whole else seen
    if (bare != text or trimmed != seen) and there(bare, trimmed):
        return "it matches but for the white space at its ends"
    one, other = unicodedata.normalize("NFC", text), unicodedata.normalize("NFC", seen)
    if there(one, other):
        return "it matches but for the Unicode form: one side is composed (NFC), the other is not"
    if there(text.casefold(), seen.casefold()) or there(one.casefold(), other.casefold()):
        return "it matches but for letter case"
    if there(" ".join(one.split()), " ".join(other.split())):
        return "it matches but for white space or line breaks"
    if there(" ".join(one.casefold().split()), " ".join(other.casefold().split())):
        return "it matches but for letter case and white space"
    return ""
