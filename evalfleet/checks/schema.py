"""Which keys does a case file have, and how does each become part of a scenario?"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from evalfleet.checks.assertions import read_assertion
from evalfleet.checks.duration import seconds_of
from evalfleet.checks.expectation import KINDS, Expectation, Grader, MaxToolCalls, MinToolCalls
from evalfleet.checks.near import did_you_mean, folded, near_name
from evalfleet.checks.nodes import MappingNode, Node, ScalarNode, SequenceNode
from evalfleet.checks.reading import STR_TAG, Entry, Reader, described
from evalfleet.checks.scalars import NULLS
from evalfleet.checks.scenario import Case, Scenario
from evalfleet.checks.text import quoted, visible

# Each key with what it is, for docs/cases.md and for editors.
FILE_KEYS: Mapping[str, str] = {
    "defaults": "`trials` and `timeout` for every scenario that has none of its own",
    "scenarios": "the list of scenarios, at least one",
}
DEFAULT_KEYS: Mapping[str, str] = {
    "trials": "how many times it is played: a whole number, 1 to 100",
    "timeout": "time for all its turns together: `300s`, `5m`, `1h30m`, or `90` for seconds; 1 s to 24 h",
}
SCENARIO_KEYS: Mapping[str, str] = {
    "id": "its name: 1 to 200 characters on one line, no `/`, no white space at its ends, unique in the file",
    "user": "what is said: one text, or a list of turns on the same chat",
    **DEFAULT_KEYS,
    "expect": "the list of assertions, at least one; a trial passes when *every* one holds",
}
DEFAULT_TRIALS = 1
DEFAULT_TIMEOUT = 300.0
MOST_TRIALS = 100
LONGEST_ID = 200

_HARNESS = "describes a throwaway harness to test"
_COMPUTER = "names the computer to test it on"
FORBIDDEN: Mapping[str, str] = {
    "suite": _HARNESS,
    "agent": _HARNESS,
    "tool": _HARNESS,
    "harness_id": _HARNESS,
    "machine_id": _COMPUTER,
    "files": _HARNESS,
}
"""Keys that are refused by name at every level but inside `args`, with the seed's reason (S4)."""

_REASON = "a case in the tree tests the harness that the tree is, wherever that tree is already running"


def read_case(reader: Reader, root: Node | None, name: str, file: str, *, draft: bool = False) -> Case:
    """The case of a composed file. What is wrong is in `reader.problems`; then the case is not whole. Of a `draft` the
    root may also be the list of scenarios, or one scenario."""
    nothing = Case(name, file, ())
    if root is None or (isinstance(root, ScalarNode) and root.plain and root.text in NULLS):
        reader.refuse(root or ScalarNode("", True, None, 1, 1, 0), "there is no scenario in this file", _FIRST)
        return nothing
    if draft and isinstance(root, SequenceNode):
        return Case(name, file, _scenarios(reader, root, DEFAULT_TRIALS, DEFAULT_TIMEOUT))
    if not isinstance(root, MappingNode):
        wanted = "a draft is a list of scenarios, a scenario, or" if draft else "a case file is"
        reader.refuse(root, f"{wanted} a mapping with `scenarios`, and here is {described(root)}", _FIRST)
        return nothing
    if draft and _is_scenario(root):
        return Case(name, file, _scenarios(reader, root, DEFAULT_TRIALS, DEFAULT_TIMEOUT))
    entries = reader.entries(root, "the file")
    known = known_entries(reader, entries, "the file", FILE_KEYS, _place_for_file_key)
    trials, timeout = read_defaults(reader, known.get("defaults"))
    scenarios = known.get("scenarios")
    if scenarios is None:
        if not any(near_name(key, FILE_KEYS) == "scenarios" for key in entries if key not in known):
            reader.refuse(root, "there is no `scenarios` in this file", _FIRST)
        return nothing
    return Case(name, file, _scenarios(reader, scenarios.value, trials, timeout))


def _scenarios(reader: Reader, node: Node, trials: int, timeout: float) -> tuple[Scenario, ...]:
    """Those of a list, or the one that a draft is."""
    items = [node] if isinstance(node, MappingNode) and node is reader.root else reader.items(node, "scenarios")
    if items is None:
        return ()
    if not items:
        reader.refuse(node, "`scenarios` is empty: nothing would be checked", _FIRST)
        return ()
    ids: dict[str, tuple[str, Node]] = {}
    read = [_scenario(reader, item, number, trials, timeout, ids) for number, item in enumerate(items, 1)]
    return tuple(scenario for scenario in read if scenario is not None)


def _is_scenario(root: MappingNode) -> bool:
    """Whether a draft is one scenario: it has a key that only scenarios have, and no `scenarios`."""
    keys = {key.text for key, _ in root.pairs if isinstance(key, ScalarNode)}
    return "scenarios" not in keys and not keys.isdisjoint({"id", "user", "expect"})


_FIRST = "a case file starts like this: `scenarios: [{id: hello, user: Say hello., expect: [{no_error: true}]}]`"


def known_entries(
    reader: Reader, entries: Mapping[str, Entry], where: str, keys: Collection[str], elsewhere: Any
) -> dict[str, Entry]:
    """The entries with a known key; each other one is refused, with where it belongs or what it may have meant."""
    known: dict[str, Entry] = {}
    for key, entry in entries.items():
        if key in keys:
            known[key] = entry
        elif not refuse_forbidden(reader, entry, where, keys):
            belongs = elsewhere(key)
            if belongs:
                reader.refuse(entry.key_node, f"`{key}` does not belong to {where}", belongs)
            else:
                reader.unknown(entry, where, keys, _lost_inside(entry))
    return known


def refuse_forbidden(reader: Reader, entry: Entry, where: str, keys: Iterable[str]) -> bool:
    """Refuse a key of FORBIDDEN with the seed's reason (S4, A14). True if it was one."""
    reason = FORBIDDEN.get(entry.key)
    if reason is None:
        return False
    reader.refuse(
        entry.key_node,
        f"`{entry.key}` {reason}; {_REASON}",
        f"delete it ({where} takes: {', '.join(keys)}); what the harness is stands in evalfleet.toml",
    )
    return True


def _place_for_file_key(key: str) -> str:
    if key in DEFAULT_KEYS:
        return f"put it under `defaults`, or into a scenario: `defaults: {{{key}: …}}`"
    if key in SCENARIO_KEYS:
        return f"`{key}` is a key of a scenario: indent it below its `- id:`"
    return place_for_assertion(key)


def place_for_default(key: str) -> str:
    if key in SCENARIO_KEYS:
        return f"`{key}` is a key of a scenario: it has no default"
    return place_for_assertion(key)


def _place_for_scenario_key(key: str) -> str:
    if key in FILE_KEYS:
        return f"`{key}` stands at the top of the file, not in a scenario"
    return place_for_assertion(key)


def place_for_assertion(key: str) -> str:
    return f"it is an assertion: put it below `expect` as `- {key}: …`" if key in KINDS else ""


def _lost_inside(entry: Entry) -> str:
    """A02: an `expect` below a key that nobody reads would never be checked."""
    if isinstance(entry.value, MappingNode) and any(
        isinstance(key, ScalarNode) and key.text == "expect" for key, _ in entry.value.pairs
    ):
        return "the `expect` below it belongs one level up, beside `id` and `user`"
    return ""


def read_defaults(reader: Reader, entry: Entry | None) -> tuple[int, float]:
    if entry is None:
        return DEFAULT_TRIALS, DEFAULT_TIMEOUT
    if not isinstance(entry.value, MappingNode):
        reader.refuse(
            entry.value,
            f"`defaults` is a mapping, and here is {described(entry.value)}",
            "write `defaults: {trials: 3, timeout: 300s}`, or delete it",
        )
        return DEFAULT_TRIALS, DEFAULT_TIMEOUT
    known = known_entries(reader, reader.entries(entry.value, "defaults"), "defaults", DEFAULT_KEYS, place_for_default)
    return _trials(reader, known, DEFAULT_TRIALS), _timeout(reader, known, DEFAULT_TIMEOUT)


def _trials(reader: Reader, known: Mapping[str, Entry], default: int) -> int:
    if "trials" not in known:
        return default
    trials = reader.whole(known["trials"].value, "trials", least=1, most=MOST_TRIALS)
    return default if trials is None else trials


def _timeout(reader: Reader, known: Mapping[str, Entry], default: float) -> float:
    """Quoted or plain, a duration is read as it is spelt: `1:30` is no number here (A06)."""
    if "timeout" not in known:
        return default
    node = known["timeout"].value
    if not isinstance(node, ScalarNode) or node.tag not in (None, STR_TAG) or (node.plain and node.text in NULLS):
        reader.refuse(node, f"`timeout` is a time, and here is {described(node)}", "write it like 300s, 5m or 1h30m")
        return default
    try:
        return seconds_of(node.text)
    except ValueError as error:
        reader.refuse(node, f"`timeout` is {quoted(node.text, 60)}", str(error))
        return default


def _scenario(
    reader: Reader, node: Node, number: int, trials: int, timeout: float, ids: dict[str, tuple[str, Node]]
) -> Scenario | None:
    if not isinstance(node, MappingNode):
        reader.refuse(
            node,
            f"scenario {number} is a mapping with `id`, `user` and `expect`, and here is {described(node)}",
            "write `- id: …`, and `user:` and `expect:` below it",
        )
        return None
    entries = reader.entries(node, "the scenario")
    known = known_entries(reader, entries, "the scenario", SCENARIO_KEYS, _place_for_scenario_key)
    meant = {near_name(key, SCENARIO_KEYS) for key in entries if key not in known}
    identity = _id(reader, node, known.get("id"), number, ids, silent="id" in meant)
    called = f"scenario {quoted(identity, 60)}" if identity else f"scenario {number}"
    for key, why in (("user", "there is nothing to say to the agent"), ("expect", "nothing would be checked")):
        if key not in known and key not in meant:
            reader.refuse(node, f"{called} has no `{key}`: {why}", _example(key))
    user = read_user(reader, known["user"].value) if "user" in known else ()
    expect = read_expect(reader, known["expect"].value, called) if "expect" in known else ()
    own_trials, own_timeout = _trials(reader, known, trials), _timeout(reader, known, timeout)
    if not identity or not user or not expect:
        return None
    look_at_all(reader, node, called, expect, reader.items(known["expect"].value, "expect") or [])
    return Scenario(identity, user, expect, own_trials, own_timeout, reader.place(node))


def _example(key: str) -> str:
    return {"user": "write `user: What is the capital of France?`", "expect": "write `expect: [{no_error: true}]`"}[key]


def _id(
    reader: Reader, node: Node, entry: Entry | None, number: int, ids: dict[str, tuple[str, Node]], *, silent: bool
) -> str | None:
    """An id that can be part of a case key: 1–200 characters, one line, no `/`, no outer blanks, its own (S3, A07)."""
    if entry is None:
        if not silent:
            reader.refuse(node, f"scenario {number} has no `id`", "write `id: answers-in-one-line`")
        return None
    identity = reader.name(entry.value, "id")
    if identity is None:
        return None
    fault = id_fault(identity)
    if fault:
        reader.refuse(entry.value, f"`id` is {quoted(identity, 60)}: {fault}")
        return None
    key = folded(identity)
    if key in ids:
        _, first = ids[key]
        where = node if entry.merged or first is entry.value else entry.value
        how = " (it came through `<<`)" if entry.merged else ""
        reader.refuse(
            where,
            f"this scenario's `id`, {described(entry.value)}{how}, is the id of another one: "
            f"{described(first)} at {first.line}:{first.column}",
            "give it an id of its own; letter case, quotes and Unicode form do not tell two ids apart",
        )
        return None
    ids[key] = (identity, entry.value)
    return identity


def id_fault(identity: str) -> str | None:
    """Why a text cannot be a scenario's id or a case's name (S3), or None."""
    if not identity:
        return "it is empty"
    if len(identity) > LONGEST_ID:
        return f"it has {len(identity)} characters; {LONGEST_ID} are the most"
    if "/" in identity:
        return "`/` separates the case's name from the scenario's id, so neither can hold one"
    if identity != identity.strip():
        return "it starts or ends with white space"
    if any(char in "\r\n\x85\u2028\u2029" or ord(char) < 32 for char in identity):
        return f"{visible(identity)} is more than one line"
    return None


def read_user(reader: Reader, node: Node, what: str = "user") -> tuple[str, ...]:
    """One turn or a list of them; `what` is the key. Nothing, where a problem was written."""
    if not isinstance(node, SequenceNode):
        one = reader.text(node, what)
        return () if one is None else (one,)
    items = reader.items(node, what) or []
    if not items:
        reader.refuse(node, f"`{what}` is an empty list: there is nothing to say to the agent", _example("user"))
        return ()
    turns = [reader.text(item, f"{what}, turn {number}") for number, item in enumerate(items, 1)]
    return () if any(turn is None for turn in turns) else tuple(turn for turn in turns if turn is not None)


def read_expect(reader: Reader, node: Node, called: str) -> tuple[Expectation, ...]:
    """The assertions in file order. Nothing, where a problem was written."""
    items = reader.items(node, "expect")
    if items is None:
        return ()
    if not items:
        reader.refuse(node, f"`expect` of {called} is empty: nothing would be checked", _example("expect"))
        return ()
    found = [_item(reader, item) for item in items]
    return () if any(item is None for item in found) else tuple(item for item in found if item is not None)


def _item(reader: Reader, node: Node) -> Expectation | None:
    if not isinstance(node, MappingNode):
        hint = "write `- no_error: true`"
        if isinstance(node, ScalarNode) and node.text in KINDS and node.text != "no_error":
            hint = f"write `- {node.text}: …`"
        reader.refuse(node, f"an assertion is one key with its value, and here is {described(node)}", hint)
        return None
    entries = reader.entries(node, "the assertion")
    if not entries:
        reader.refuse(node, "this list item asserts nothing", "write `- no_error: true`")
        return None
    first, *others = entries.values()
    if not others:
        return _one(reader, first)
    words = [key for key in entries if key in KINDS]
    if len(words) == 1 and first.key in KINDS:
        reader.refuse(
            others[0].key_node,
            f"`{others[0].key}` stands beside `{first.key}`, not inside it",
            f"indent it below `{first.key}`, or write `- {first.key}: {{{others[0].key}: …}}`",
        )
    elif len(words) > 1:
        reader.refuse(
            others[0].key_node,
            f"two assertions in one list item: `{visible(first.key)}` and `{visible(others[0].key)}`",
            "start each with `- `",
        )
    else:
        for entry in entries.values():
            _one(reader, entry)
    return None


def _one(reader: Reader, entry: Entry) -> Expectation | None:
    if entry.key in KINDS:
        return read_assertion(reader, entry, refuse_forbidden)
    if refuse_forbidden(reader, entry, "expect", KINDS):
        return None
    if entry.key in SCENARIO_KEYS:
        reader.refuse(
            entry.key_node, f"`{entry.key}` is no assertion", "it is a key of the scenario: put it beside `expect`"
        )
        return None
    near = did_you_mean(entry.key, KINDS)
    reader.refuse(
        entry.key_node, f"unknown assertion {quoted(entry.key, 60)}", near or f"the assertions are: {', '.join(KINDS)}"
    )
    return None


def look_at_all(
    reader: Reader, node: Node, called: str, expect: tuple[Expectation, ...], items: Sequence[Node]
) -> None:
    """What only shows when all assertions of a scenario are seen together; `items` are the nodes of `expect`."""
    least = {item.name: item for item in expect if isinstance(item, MinToolCalls)}
    for item, where in zip(expect, items, strict=True):
        if isinstance(item, MaxToolCalls) and item.name in least and least[item.name].count > item.count:
            low = least[item.name]
            assert isinstance(where, MappingNode)
            (entry,) = reader.entries(where, "the assertion").values()
            reader.refuse(
                entry.key_node,
                f"at most {item.count} calls of {quoted(item.name, 60)}, and at least {low.count}"
                f"{f' at {low.place.line}:{low.place.column}' if low.place else ''}: no trial can pass",
            )
    if all(item.negative for item in expect):
        reader.warn(
            node,
            f"{called} says only what must not happen",
            "an agent that does nothing would pass; say what must happen too, if only `- no_error: true`",
        )
    elif all(item.negative or isinstance(item, Grader) for item in expect):
        alone = (
            "graders alone" if all(isinstance(item, Grader) for item in expect) else "graders, and what must not happen"
        )
        reader.warn(
            node,
            f"{called} is judged by {alone}",
            "an agent that crashed passes if they pass what it left; if that is not meant: add `- no_error: true`",
        )
