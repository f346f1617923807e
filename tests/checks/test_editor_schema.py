"""The JSON Schema for editors is the reader's own: published as it is made, never stricter, strict where it can be."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from evalfleet.checks.editor_schema import case_schema
from evalfleet.checks.expectation import FIELDS
from evalfleet.checks.nodes import MappingNode, Node, ScalarNode, compose
from evalfleet.checks.reading import Reader
from evalfleet.checks.scalars import core_value
from evalfleet.checks.source import Source
from tests.checks.documents import SCENARIO
from tests.checks.reading import CASES, messages, parsed, scenario
from tests.checks.test_cases_page import EXAMPLES

ROOT = Path(__file__).parents[2]
VALID = Draft202012Validator(case_schema())


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(case_schema())


def test_the_published_schema_is_the_programs() -> None:
    """After a change: `evalfleet schema > docs/case.schema.json`."""
    published = (ROOT / "docs" / "case.schema.json").read_text(encoding="utf-8")
    assert published == json.dumps(case_schema(), indent=2, ensure_ascii=False) + "\n"


def test_everything_in_it_says_what_it_is() -> None:
    def walk(schema: dict[str, Any], at: str) -> None:
        for name, inner in schema.get("properties", {}).items():
            assert inner.get("description"), f"{at}/{name}"
            walk(inner, f"{at}/{name}")

    schema = case_schema()
    walk(schema, "")
    for name, inner in schema["$defs"].items():
        walk(inner, name)
    assert list(schema["$defs"]["assertion"]["properties"]) == [cls.kind for cls in FIELDS]


def loaded_by_an_editor(text: str) -> Any:
    """The document as a YAML 1.2 parser gives it: `yes` is text, 007 is 7, `<<` is merged."""
    source = Source.decode("f", text.encode())
    reader = Reader(source)

    def value(node: Node) -> Any:
        if isinstance(node, MappingNode):
            return {key: value(entry.value) for key, entry in reader.entries(node, "").items()}
        if not isinstance(node, ScalarNode):
            return [value(item) for item in node.items]
        if not node.plain or node.tag is not None:
            return node.text
        if re.fullmatch("[-+]?0[0-9]+", node.text):
            return int(node.text)
        return core_value(node.text)

    root, _ = compose(source)
    assert root is not None
    return value(root)


SPELT = [
    "42", "1.10", "yes", "on", "2025-01-01", "true", "1:30", "0x1F", "007", "1e3", "-1", "'null'", '"~"', "é", "a b",
    "it's", "!!str 5",
]  # fmt: skip


@given(SCENARIO, st.sampled_from(SPELT), st.sampled_from(SPELT), st.sampled_from(["5m", "1h30m", "300", "'90'", "24h"]))
def test_whatever_the_reader_accepts_the_schema_accepts(
    document: dict[str, Any], identity: str, text: str, timeout: str
) -> None:
    rest = json.dumps({"expect": document["expect"], "trials": document["trials"]}, ensure_ascii=False)[1:-1]
    child = f"- {{<<: *a, id: b, user: {text}}}"
    for written in (
        json.dumps({"scenarios": [document]}, ensure_ascii=False),
        f"scenarios: [{{id: {identity}, user: {text}, timeout: {timeout}, {rest}}}]",
        f"scenarios: [{{id: {identity}, user: [{text}, b], expect: [{{final_answer_contains: {text}}}]}}]",
        f"defaults: {{timeout: {timeout}}}\nscenarios:\n- &a {{id: {identity}, user: b, {rest}}}\n{child}\n",
    ):
        loaded = parsed(written)
        assert not loaded.problems, messages(loaded)
        assert VALID.is_valid(loaded_by_an_editor(written)), written


FILES = [*sorted((ROOT / "evals" / "cases").glob("*.yaml")), *sorted(CASES.glob("A*.yaml"))]


@pytest.mark.parametrize("text", [*EXAMPLES, *(path.read_text(encoding="utf-8") for path in FILES)])
def test_the_files_of_this_repository_that_are_accepted_are_valid(text: str) -> None:
    if not parsed(text).problems:
        VALID.validate(loaded_by_an_editor(text))


BROKEN_ITEMS: list[object] = [
    None, "no_error", {}, {"no_error": True, "final_answer_contains": "x"}, {"tool_caled": {"name": "t"}},
    {"no_error": False}, {"no_error": 1}, {"tool_called": "t"}, {"tool_called": {}},
    {"tool_called": {"name": "t", "arg": {}}}, {"tool_called": {"name": "t", "args": [1]}},
    {"tool_called": {"name": ""}}, {"tool_called": {"name": "a\tb"}}, {"tool_not_called": {"name": None}},
    {"tool_order": {"first": "t"}}, {"min_tool_calls": {"name": "t", "count": 0}},
    {"max_tool_calls": {"name": "t", "count": -1}}, {"max_tool_calls": {"name": "t", "count": 1.5}},
    {"max_tool_calls": {"name": "t", "count": "2"}}, {"result_contains": {"name": "t", "substring": " "}},
    {"final_answer_contains": ""}, {"final_answer_contains": None}, {"final_answer_contains": ["a"]},
    {"final_answer_max_chars": -1}, {"final_answer_max_chars": "x"}, {"hook_called": {"decision": "deny"}},
    {"grader": {"name": "quality"}}, {"grader": {"name": "quality.a.b"}}, {"grader": {"name": ".a"}},
    {"grader": {"name": "a/b.c"}}, {"grader": {"name": "quality._x"}}, {"grader": {"name": "quality.a-b"}},
    {"grader": {"name": "a.b", "pass_below": "0.7"}}, {"grader": {"name": "a.b", "pass_below": True}},
]  # fmt: skip
Document = dict[str, Any]


def _adds(item: object) -> Callable[[Document], object]:
    return lambda d: d["scenarios"][0]["expect"].append(item)


BROKEN: list[tuple[str, Callable[[Document], object]]] = [
    ("no scenarios", lambda d: d.pop("scenarios")),
    ("empty scenarios", lambda d: d["scenarios"].clear()),
    ("an unknown key at the top", lambda d: d.update(cases=[])),
    ("a scenario that is text", lambda d: d["scenarios"].append("x")),
    ("no id", lambda d: d["scenarios"][0].pop("id")),
    ("no user", lambda d: d["scenarios"][0].pop("user")),
    ("no expect", lambda d: d["scenarios"][0].pop("expect")),
    ("an unknown key", lambda d: d["scenarios"][0].update(expects=[])),
    ("a key of a throwaway harness", lambda d: d["scenarios"][0].update(agent="x")),
    ("an id with a slash", lambda d: d["scenarios"][0].update(id="a/b")),
    ("an id with a blank at its end", lambda d: d["scenarios"][0].update(id="a ")),
    ("an id of two lines", lambda d: d["scenarios"][0].update(id="a\nb")),
    ("a long id", lambda d: d["scenarios"][0].update(id="x" * 201)),
    ("an id that is nothing", lambda d: d["scenarios"][0].update(id=None)),
    ("no turn", lambda d: d["scenarios"][0].update(user=[])),
    ("a blank turn", lambda d: d["scenarios"][0].update(user=["hi", " "])),
    ("a turn that is a mapping", lambda d: d["scenarios"][0].update(user={"a": 1})),
    ("0 trials", lambda d: d["scenarios"][0].update(trials=0)),
    ("101 trials", lambda d: d["scenarios"][0].update(trials=101)),
    ("trials true", lambda d: d["scenarios"][0].update(trials=True)),
    ("trials as text", lambda d: d["scenarios"][0].update(trials="3")),
    ("half a trial", lambda d: d["scenarios"][0].update(trials=1.5)),
    ("a timeout in words", lambda d: d["scenarios"][0].update(timeout="5 minutes")),
    ("a timeout of nothing", lambda d: d["scenarios"][0].update(timeout="")),
    ("a timeout of 0", lambda d: d["scenarios"][0].update(timeout=0)),
    ("a timeout true", lambda d: d["scenarios"][0].update(timeout=True)),
    ("a list of defaults", lambda d: d.update(defaults=[])),
    ("a default that is none", lambda d: d.update(defaults={"user": "x"})),
    ("no assertion", lambda d: d["scenarios"][0].update(expect=[])),
    ("expect as a mapping", lambda d: d["scenarios"][0].update(expect={"no_error": True})),
    *((f"an assertion {json.dumps(item)}", _adds(item)) for item in BROKEN_ITEMS),
]  # fmt: skip


@pytest.mark.parametrize("broken", [change for _, change in BROKEN], ids=[name for name, _ in BROKEN])
@settings(max_examples=10)
@given(document=SCENARIO)
def test_what_a_schema_can_express_is_refused_by_both(document: Document, broken: Callable[[Document], object]) -> None:
    whole = {"scenarios": [copy.deepcopy(document)]}
    broken(whole)
    assert parsed(json.dumps(whole, ensure_ascii=False)).problems
    assert not VALID.is_valid(whole)


@pytest.mark.parametrize(
    "item",
    [
        "{tool_order: {first: t, then: t}}",
        "{min_tool_calls: {name: t, count: 3}}, {max_tool_calls: {name: t, count: 2}}",
        "{max_tool_calls: {name: t, count: 2.0}}",
    ],
)
def test_what_no_schema_can_express_is_for_validate(item: str) -> None:
    assert parsed(scenario(item)).problems
    assert VALID.is_valid(loaded_by_an_editor(scenario(item)))
