"""A suite's rows as what is planned, pinned, chosen and scored again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evalfleet.errors import CaseFilesInvalid, UsageError
from scheduler.init import init
from scheduler.pins import Asked, what_changed
from scheduler.plan import MAX_CASES, evaluation_body
from scheduler.prepare import Prepared, check, prepare
from scheduler.reread import cases_of
from scheduler.score import Today

ROWS: list[dict[str, object]] = [
    {"key": "fr", "input": "Capital of France?", "expected": "Paris", "name": "France", "metadata": {"level": 1}},
    {"input": ["I am in Norway.", "Its capital?"], "expected": "Oslo"},
    {"key": "td", "input": "Capital of Chad?", "expected": "N'Djamena", "expect": [{"no_error": True}]},
]
SUITE = "rows: capitals.jsonl\nexpect:\n  - final_answer_contains: ${expected}\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    init(root)
    (root / "evals/suites").mkdir()
    write(root)
    return root


def write(root: Path, rows: list[dict[str, object]] | None = None, suite: str = SUITE) -> None:
    (root / "evals/suites/capitals.yaml").write_text(suite)
    (root / "evals/suites/capitals.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows or ROWS))


def asked(one: Prepared) -> Asked:
    return Asked((), one.pin.parts, one.files)


def prepared(root: Path, *words: str, deselect: tuple[str, ...] = ()) -> Prepared:
    return prepare(
        root,
        words,
        trials=None,
        concurrency=None,
        drafts=None,
        suite=root / "evals/suites/capitals.yaml",
        on_target=False,
        results=None,
        environment={},
        deselect=deselect,
    )


def test_each_row_is_a_conversation_and_they_share_an_evaluation(tree: Path) -> None:
    plan = prepared(tree).plan
    assert [(e.k, e.suite.key, e.suite.name) for e in plan.evaluations] == [(1, "checks/capitals/k1", "capitals")]
    assert [(case.name, case.file, len(case.scenarios)) for case in plan.cases] == [
        ("capitals", "evals/suites/capitals.yaml", 1)
    ] * 3
    assert len(list(plan.conversations())) == 3
    assert plan.turns() == 4
    first, second, third = evaluation_body(plan, 0)["cases"]
    write(tree, ROWS[::-1])
    assert evaluation_body(prepared(tree).plan, 0)["cases"] == [first, second, third], "equal pins, equal bodies"
    assert first == {
        "key": "capitals/fr",
        "name": "France",
        "input": {"user": ["Capital of France?"], "metadata": {"level": 1}},
        "expected": {"expect": [{"final_answer_contains": "Paris"}], "expected": "Paris"},
    }
    assert second["key"].startswith("capitals/i-am-in-norway-")
    assert third["expected"]["expect"] == [{"final_answer_contains": "N'Djamena"}, {"no_error": True}]


def test_what_a_suite_says_is_part_of_the_pin_and_how_its_rows_lie_is_not_s34(tree: Path) -> None:
    before = prepared(tree)
    write(tree, ROWS[::-1])
    assert prepared(tree).pin.digest == before.pin.digest
    write(tree, suite=f"# a comment\n{SUITE}")
    assert prepared(tree).pin.digest == before.pin.digest
    for rows, suite in (
        ([*ROWS[:2], {**ROWS[2], "expected": "Chad"}], SUITE),
        ([*ROWS[:2], {**ROWS[2], "name": "a label that the evaluation holds"}], SUITE),
        (ROWS[:2], SUITE),
        (ROWS, f"defaults: {{trials: 2}}\n{SUITE}"),
        (ROWS, SUITE.replace("contains", "not_contains")),
    ):
        write(tree, rows, suite)
        now = prepared(tree)
        assert now.pin.digest != before.pin.digest
        assert "evals/suites/capitals" in what_changed(asked(before), asked(now))


def test_words_choose_among_the_rows(tree: Path) -> None:
    plan = prepared(tree, "capitals/f*", "capitals/td", deselect=("capitals/td",)).plan
    assert plan.keys_of(0) == ["capitals/fr"]
    assert plan.evaluations[0].suite.key == "checks/capitals/k1/partial"
    assert len(prepared(tree, "capitals").plan.keys_of(0)) == 3
    with pytest.raises(UsageError, match=r"no case matches 'first'; there are: capitals$"):
        prepared(tree, "first")


def test_the_trees_own_cases_are_not_looked_at(tree: Path) -> None:
    (tree / "evals/cases/first.yaml").write_text("scenarios: [\n")
    assert len(prepared(tree).plan.cases) == 3


def test_more_rows_than_an_evaluation_takes_are_several_evaluations(tree: Path) -> None:
    write(tree, [{"input": f"Say {n}.", "expected": str(n)} for n in range(MAX_CASES + 1)])
    plan = prepared(tree).plan
    assert [e.suite.key for e in plan.evaluations] == ["checks/capitals/k1/1-of-2", "checks/capitals/k1/2-of-2"]
    assert sorted(len(plan.keys_of(group)) for group in (0, 1))[1] <= MAX_CASES
    assert len(list(plan.conversations())) == MAX_CASES + 1


def test_a_judge_that_is_not_there_is_told_once_for_all_rows(tree: Path) -> None:
    write(tree, suite="rows: capitals.jsonl\nexpect: [{grader: {name: first.nobody}}]\n")
    found = check(tree, suite=tree / "evals/suites/capitals.yaml", environment={})
    assert [str(problem.place) for problem in found.problems] == ["evals/suites/capitals.yaml:2:11"]
    assert "expect: [{grader: {name: first.nobody}}]" in found.render()
    with pytest.raises(CaseFilesInvalid):
        prepared(tree)


def test_a_suites_artifact_is_scored_by_the_suite_as_it_is_today_s32(tree: Path) -> None:
    plan = prepared(tree).plan
    write(tree, [{**ROWS[0], "input": "Another question?"}, ROWS[1]], suite=f"{SUITE}  - no_error: true\n")
    today = Today(plan, cases_of(plan, tree))
    key = plan.cases[1].scenarios[0].scenario.id
    judged_by = today.scenario("capitals", key)
    assert judged_by is not None
    assert [e.kind for e in judged_by.expect] == ["final_answer_contains", "no_error"]
    assert today.stale == {
        ("capitals", "fr"): "its turns changed since",
        ("capitals", "td"): "there is no scenario td in capitals any more",
    }
    (tree / "evals/suites/capitals.yaml").unlink()
    gone = Today(plan, cases_of(plan, tree))
    assert set(gone.stale.values()) == {"there is no case capitals any more"}


def quarantine(root: Path, scenario: str, suite: str | None) -> None:
    kept = (root / "evalfleet.toml").read_text().partition("[[quarantine]]")[0]
    of = "" if suite is None else f'suite = "{suite}"\n'
    (root / "evalfleet.toml").write_text(
        f'{kept}[[quarantine]]\nscenario = "{scenario}"\nreason = "moved"\nuntil = 2999-12-31\n{of}'
    )


FILE = "evals/suites/capitals.yaml"


def test_a_row_in_quarantine_gates_nothing_in_its_own_suite_and_concerns_nobody_else(tree: Path) -> None:
    quarantine(tree, "Capitals/TD", FILE)
    assert [entry.scenario for entry in prepared(tree).plan.quarantine] == ["Capitals/TD"]
    assert prepared(tree, deselect=("capitals/td",)).plan.quarantine == (), "it is not played"
    assert check(tree, environment={}).ok, "the tree's own cases are not asked for it"
    (tree / "evals/suites/other.yaml").write_text("- {key: td, input: hi, expect: [no_error: true]}\n")
    assert check(tree, suite=tree / "evals/suites/other.yaml", environment={}).ok, "nor another suite's rows"
    quarantine(tree, "capitals/td", "evals/suites/other.yaml")
    assert prepared(tree).plan.quarantine == ()


@pytest.mark.parametrize(
    ("scenario", "suite", "of_suite", "said"),
    [
        ("capitals/dt", FILE, True, f"{FILE} has no scenario 'capitals/dt' (did you mean 'capitals/td'?)"),
        ("capitals/td", None, False, "the tree has no scenario 'capitals/td'"),
        (
            "capitals/td",
            "evals/suites/capital.yaml",
            False,
            "there is no suite 'evals/suites/capital.yaml' in the tree",
        ),
        ("capitals/td", "evals/suites/capital.yaml", True, "there is no suite 'evals/suites/capital.yaml' in the tree"),
    ],
    ids=["no such row", "no scenario of the tree", "no such suite", "nor beside one that is there"],
)
def test_a_quarantine_of_what_is_not_there_is_refused(
    tree: Path, scenario: str, suite: str | None, of_suite: bool, said: str
) -> None:
    quarantine(tree, scenario, suite)
    found = check(tree, suite=tree / FILE if of_suite else None, environment={})
    assert not found.ok
    assert said in found.render()
