"""How does one entry of `expect` become an expectation, and what is suspicious about it?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from evalfleet.checks.expectation import (
    FIELDS,
    KINDS,
    Expectation,
    Grader,
    HookCalled,
    MinToolCalls,
    ToolOrder,
    grader_name_fault,
)
from evalfleet.checks.near import did_you_mean
from evalfleet.checks.nodes import MappingNode, Node, ScalarNode
from evalfleet.checks.reading import Entry, Reader, described
from evalfleet.checks.text import quoted

HOOK_POINTS = (
    "context.build",
    "model.choose",
    "memory.keep",
    "memory.summarize",
    "guard.on_input",
    "guard.on_output",
    "tools.before",
    "tools.after",
    "stop.done",
    "errors.on",
)
"""The ten points of a turn. An agent of one's own may have others, so a name beyond these is a warning only (S22)."""

DECISIONS = (
    "answered",
    "use_default",
    "failed",
    "malformed",
    "deny",
    "reject",
    "ask_again",
    "retry",
    "switch",
    "escalate",
    "done",
)
"""What a hook can decide (wire: hook.called)."""

EXAMPLES = {
    "tool_called": "{name: shell__run}",
    "tool_not_called": "{name: shell__run}",
    "tool_order": "{first: fs__read, then: fs__write}",
    "min_tool_calls": "{name: shell__run, count: 2}",
    "max_tool_calls": "{name: shell__run, count: 2}",
    "result_contains": "{name: shell__run, substring: Linux}",
    "hook_called": "{name: tools.before, decision: deny}",
    "grader": "{name: quality.answers, pass_below: 0.7}",
}

Forbidden = Callable[[Reader, Entry, str, Iterable[str]], bool]


def read_assertion(reader: Reader, entry: Entry, refuse_forbidden: Forbidden) -> Expectation | None:
    """The expectation of `entry`, whose key is one of the twelve; None where a problem was written."""
    kind = entry.key
    cls = KINDS[kind]
    fields = FIELDS[cls]
    place = reader.place(entry.key_node)
    if fields[0].key == "":
        value = _value(reader, entry.value, kind, fields[0].wants, kind)
        if value is None:
            return None
        return cls(**({fields[0].attribute: value} if fields[0].attribute else {}), place=place)
    if not isinstance(entry.value, MappingNode):
        reader.refuse(
            entry.value,
            f"`{kind}` takes a mapping, and here is {described(entry.value)}",
            f"write `{kind}: {EXAMPLES[kind]}`",
        )
        return None
    entries = reader.entries(entry.value, kind)
    keys = [field.key for field in fields]
    whole = True
    for key, inner in entries.items():
        if key not in keys:
            whole = False
            if not refuse_forbidden(reader, inner, kind, keys):
                reader.unknown(inner, f"`{kind}`", keys)
    values: dict[str, Any] = {}
    for key, wants, required, attribute, _ in fields:
        if key in entries:
            value = _value(reader, entries[key].value, f"{kind}.{key}", wants, kind)
            if value is None:
                whole = False
            values[attribute] = value
        elif required:
            if whole:
                reader.refuse(entry.value, f"`{kind}` has no `{key}`", f"write `{kind}: {EXAMPLES[kind]}`")
            whole = False
    if not whole:
        return None
    expectation: Expectation = cls(**values, place=place)
    return expectation if _holds_together(reader, expectation, entries) else None


def _value(reader: Reader, node: Node, what: str, wanted: str, kind: str) -> Any:
    if wanted == "text":
        return _with_blanks_seen(reader, node, what, reader.text(node, what))
    if wanted == "name":
        return _with_blanks_seen(reader, node, what, reader.name(node, what))
    if wanted == "number":
        return reader.number(node, what)
    if wanted == "args":
        return reader.json_mapping(node, what)
    if wanted == "count":
        if kind == MinToolCalls.kind and isinstance(node, ScalarNode) and node.plain and node.text == "0":
            reader.refuse(node, f"`{what}` is 0, which always holds", "write 1 or more, or delete the assertion")
            return None
        return reader.whole(node, what)
    held = reader.boolean(node, what)
    if held is False:
        reader.refuse(node, f"`{what}: false` asserts nothing", f"delete it, or write `{what}: true`")
        return None
    return held


def _with_blanks_seen(reader: Reader, node: Node, what: str, text: str | None) -> str | None:
    """A15: white space at an end is part of the text, and nobody sees it."""
    if text is not None and text != text.strip():
        hint = "a block written with `|-` has no line break at its end" if text.endswith("\n") else "delete it"
        reader.warn(
            node,
            f"`{what}` is {quoted(text)}: the white space at its {'end' if text == text.lstrip() else 'start'} counts",
            f"if it is not meant: {hint}",
        )
    return text


def _holds_together(reader: Reader, expectation: Expectation, entries: Mapping[str, Entry]) -> bool:
    """What is wrong, or only suspicious, about one whole assertion."""
    if isinstance(expectation, ToolOrder) and expectation.first == expectation.then:
        reader.refuse(
            entries["then"].value,
            f"`first` and `then` are both {quoted(expectation.first, 60)}: a first call is not before itself",
            "two calls of one tool are `min_tool_calls: {name: …, count: 2}`",
        )
        return False
    if isinstance(expectation, Grader):
        fault = grader_name_fault(expectation.name)
        if fault:
            reader.refuse(
                entries["name"].value,
                f"`grader.name` is {quoted(expectation.name, 60)}: {fault}",
                "write it like quality.answers, for `def answers(t, case, run)` in evals/graders/quality.py",
            )
            return False
    if isinstance(expectation, HookCalled):
        _warn_unknown(reader, entries["name"].value, "hook point", expectation.name, HOOK_POINTS)
        if expectation.decision is not None:
            _warn_unknown(reader, entries["decision"].value, "decision", expectation.decision, DECISIONS)
    return True


def _warn_unknown(reader: Reader, node: Node, what: str, name: str, known: tuple[str, ...]) -> None:
    if name not in known:
        near = did_you_mean(name, known)
        reader.warn(node, f"no {what} is called {quoted(name, 60)}", near or f"known are: {', '.join(known)}")
