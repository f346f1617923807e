"""Which case files can there be? Strategies for what a program could write with a JSON writer, all twelve included."""

from __future__ import annotations

import string
from typing import Any

from hypothesis import strategies as st

from evalfleet.checks.assertions import DECISIONS, HOOK_POINTS

# Characters that JSON leaves as they are and a YAML file must not hold are left out.
LETTERS = st.characters(
    exclude_categories=("Cs", "Cc"),
    exclude_characters="\ufeff\ufffe\uffff",
    include_characters="\x85",
    max_codepoint=0x1FFFF,
).filter(lambda char: ord(char) & 0xFFFE != 0xFFFE)
TEXT = st.text(LETTERS, min_size=1, max_size=20).filter(lambda text: bool(text.strip()))
NAME = st.text(string.ascii_letters + "_é日", min_size=1, max_size=10)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(LETTERS, max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(LETTERS, max_size=6), inner, max_size=3),
    max_leaves=8,
)


def _one(kind: str, required: dict[str, Any], optional: dict[str, Any] | None = None) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries({kind: st.fixed_dictionaries(required, optional=optional or {})})


# No tool has both a `min_tool_calls` and a `max_tool_calls`: the first one's count could be above the second one's.
EXPECT: st.SearchStrategy[dict[str, Any]] = st.one_of(
    _one("tool_called", {"name": NAME}, {"args": st.dictionaries(st.text(LETTERS, max_size=6), JSON, max_size=3)}),
    _one("tool_not_called", {"name": NAME}),
    _one("tool_order", {"first": NAME.map(lambda name: f"a{name}"), "then": NAME.map(lambda name: f"b{name}")}),
    _one("min_tool_calls", {"name": NAME.map(lambda name: f"a{name}"), "count": st.integers(1, 10**9)}),
    _one("max_tool_calls", {"name": NAME.map(lambda name: f"b{name}"), "count": st.integers(0, 10**9)}),
    _one("result_contains", {"name": NAME, "substring": TEXT}),
    st.fixed_dictionaries({"final_answer_contains": TEXT}),
    st.fixed_dictionaries({"final_answer_not_contains": TEXT}),
    st.fixed_dictionaries({"final_answer_max_chars": st.integers(0, 10**9)}),
    _one(
        "hook_called",
        {"name": st.sampled_from(HOOK_POINTS) | NAME},
        {"decision": st.sampled_from(DECISIONS) | NAME},
    ),
    st.just({"no_error": True}),
    _one("grader", {"name": st.sampled_from(["a.b", "quality.answers"])}, {"pass_below": st.floats(-10, 10)}),
)
SCENARIO = st.fixed_dictionaries(
    {
        "id": TEXT.filter(lambda text: not set(text) & set("/\x85\u2028\u2029") and text == text.strip()),
        "user": st.lists(TEXT, min_size=1, max_size=3),
        "expect": st.lists(EXPECT, min_size=1, max_size=4),
        "trials": st.integers(1, 100),
        "timeout": st.integers(1, 86400).map(str),
    }
)
