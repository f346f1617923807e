"""B10: what a judge wrote is read to the number that it surely means, or to none; never to a wrong or made-up one."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from evalfleet.graders.pool import LlmAnswer
from tests.graders.test_pool import pooled
from tests.graders.trees import make_tree

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ROOT / "evals/graders/scores.py"
RECORDED: list[tuple[str, float | str | None]] = json.loads((ROOT / "tests/cases/B10.json").read_text())


def shipped() -> Callable[[str], float | None]:
    spec = importlib.util.spec_from_file_location("scores_as_shipped", SHIPPED)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Callable[[str], float | None] = module.score_in
    return found


def wanted(reading: float | str | None) -> list[float | None]:
    """The case's words as values: `0.9 or none, never 5`, `none on a 0-1 scale`, `0.3, never 0`."""
    if reading is None or isinstance(reading, int | float):
        return [reading]
    allowed = reading.partition(",")[0]
    return [None if word.startswith("none") else float(word) for word in allowed.split(" or ")]


@pytest.mark.parametrize(("text", "reading"), RECORDED, ids=[ascii(text)[:50] for text, _ in RECORDED])
def test_b10_a_judges_answer_is_read_or_it_is_none(text: str, reading: float | str | None) -> None:
    assert shipped()(text) in wanted(reading)


SURE = [
    ("Score: 0.9 (the threshold is 0.7)", 0.9),
    ("I rate it 0.6. Score: 0.6", 0.6),
    ("SCORE = 0.25", 0.25),
    ("Score is 1", 1.0),
    ('{"score": 0.4}\nOn reflection:\n{"score": 0.8, "why": "}{"}', 0.8),
    ('{"criteria": {"score": 0.2}, "score": 0.5}', 0.5),
    ("0", 0.0),
    ("3/4", 0.75),
    ("95.5 %", 0.955),
]
UNSURE = [
    "0.2 at first, 0.8 in the end",
    "Score: 0.3\nScore: 0.4",
    "Score: 8",
    "12/10",
    "0/0",
    "150%",
    "version 1.2.3",
    "in 2024",
    "v0.9",
    "0.8/x",
    '{"score": true}',
    '{"score": NaN}',
    '{"score": 7}',
    "{" * 5000,
    '{"a": ' + "[" * 100_000,
    "score",
    "1e-1",
]


@pytest.mark.parametrize(("text", "score"), SURE, ids=[text[:40] for text, _ in SURE])
def test_b10_what_is_said_plainly_is_read(text: str, score: float) -> None:
    assert shipped()(text) == score


@pytest.mark.parametrize("text", UNSURE, ids=[text[:40] for text in UNSURE])
def test_b10_what_could_be_several_things_is_none_of_them(text: str) -> None:
    assert shipped()(text) is None


@pytest.mark.parametrize(
    ("judge_says", "kind", "said"),
    [
        ("Sure! **Score:** 8/10, since there are 5 reasons", "answered", "Sure!"),
        ("This is not excellent", "error", "the judge gave no score: This is not excellent"),
    ],
)
async def test_b10_the_pages_grader_is_an_error_where_the_judge_gave_no_score(
    tmp_path: Path, judge_says: str, kind: str, said: str
) -> None:
    """In the cage, as a worker calls it."""
    page = (ROOT / "docs/graders.md").read_text(encoding="utf-8")
    found = re.search(r"```python\n(# evals/graders/quality\.py\n.*?)```", page, re.DOTALL)
    assert found is not None
    make_tree(tmp_path, quality=found[1], scores=SHIPPED.read_text(encoding="utf-8"))

    async def judge(_prompt: str, _model: str | None, _seconds: float) -> LlmAnswer:
        return LlmAnswer(judge_says, 1, None)

    async with pooled(tmp_path, llm=judge) as (_, grade):
        answer = await grade("quality.answers")
    assert answer.kind == kind
    assert said in (answer.why or answer.error or "")
    assert answer.score == (0.8 if kind == "answered" else None)
