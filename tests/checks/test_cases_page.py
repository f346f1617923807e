"""docs/cases.md is right: every example is a case, every refusal is worded as shown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from evalfleet.checks.assertions import DECISIONS, HOOK_POINTS
from evalfleet.checks.expectation import FIELDS
from evalfleet.checks.schema import DEFAULT_KEYS, FILE_KEYS, FORBIDDEN, SCENARIO_KEYS
from evalfleet.checks.suite import ROW_KEYS, SUITE_KEYS, parse_suite
from tests.checks.reading import messages, parsed

PAGE = (Path(__file__).parents[2] / "docs" / "cases.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
REFUSALS = re.findall(r"^```yaml refused\n(.*?)^```\n+```text\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_an_example_is_a_case_without_a_warning(example: str) -> None:
    loaded = parsed(example)
    assert not loaded.problems, messages(loaded)
    assert not loaded.warnings


def test_the_examples_use_all_twelve() -> None:
    used = {e.kind for text in EXAMPLES for s in parsed(text).cases[0].scenarios for e in s.expect}
    assert used == {cls.kind for cls in FIELDS}


def test_unquoted_text_on_the_page_is_read_as_the_page_says() -> None:
    (example,) = (text for text in EXAMPLES if "id: 007" in text)
    (only,) = parsed(example).cases[0].scenarios
    assert (only.id, only.user) == ("007", ("yes",))
    assert [next(iter(e.document().values())) for e in only.expect[:3]] == ["1.10", "NO", "2025-01-01"]
    args = {"on": True, "level": 3, "mode": "off", "code": "0042"}
    assert only.expect[3].document() == {"tool_called": {"name": "lamp__switch", "args": args}}


@pytest.mark.parametrize(("example", "said"), REFUSALS, ids=range(len(REFUSALS)))
def test_a_refusal_is_worded_as_shown(example: str, said: str) -> None:
    assert messages(parsed(example)) + "\n" == said


def test_the_suite_on_the_page_is_read_as_the_page_says() -> None:
    (suite,) = re.findall(r"^```yaml suite\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    (rows,) = re.findall(r"^```jsonl\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    loaded = parse_suite(suite.encode(), name="capitals", file="capitals.yaml", beside=lambda _: ("r", rows.encode()))
    assert not loaded.problems, messages(loaded)
    assert not loaded.warnings
    france, norway, chad = (case.scenarios[0] for case in loaded.cases)
    assert (france.id, france.trials, france.timeout) == ("france", 3, 60.0)
    assert norway.expect[1].args() == {"name": "atlas__find", "args": {"country": "Norway", "limit": 2}}
    assert [e.kind for e in chad.expect] == ["final_answer_contains", "tool_called", "no_error"]
    tables = PAGE.partition("## Suites")[2]
    for where, keys in (("suite", SUITE_KEYS), ("row", ROW_KEYS)):
        for key, says in keys.items():
            assert f"| `{key}` | {where} | {says} |" in tables


def test_every_key_and_every_known_name_is_on_the_page() -> None:
    assert len(REFUSALS) == 3
    for key in FORBIDDEN:
        assert f"`{key}`" in PAGE
    for cls, fields in FIELDS.items():
        row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{cls.kind}:"))
        assert all(field.key in row for field in fields)
        assert row.split(" | ")[1] == cls.holds, "an editor says it in the same words"
    for key, says in {**FILE_KEYS, **DEFAULT_KEYS, **SCENARIO_KEYS}.items():
        row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{key}` |"))
        assert row.split(" | ")[2] == says
    for name in [*HOOK_POINTS, *DECISIONS]:
        assert re.search(rf"[`\s]{re.escape(name)}[`\s]", PAGE)
