"""Annotations at the line that failed, as the runner of GitHub Actions reads them."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.text import Text

from evalfleet.checks.place import CaseProblem, Place
from evalfleet.errors import StorageError
from scheduler.layout import write_lines
from scheduler.reports import Report
from scheduler.reports.github import MOST, Annotation, commands, problem_commands, step_summary
from tests.scheduler.reports.making import asked, errored, every_kind, failed, made

_COMMAND = re.compile(r"::(error|warning|notice) (.*?)::(.*)")


def parsed(text: str) -> tuple[str, dict[str, str], str]:
    """As the runner reads a command: up to the second `::`, properties at commas, then the escapes undone."""
    found = _COMMAND.fullmatch(text)
    assert found is not None, text
    properties = dict(pair.split("=", 1) for pair in found[2].split(","))
    return found[1], {key: undone(value, property_=True) for key, value in properties.items()}, undone(found[3])


def undone(text: str, *, property_: bool = False) -> str:
    for escape, character in (("%0D", "\r"), ("%0A", "\n"), *((("%3A", ":"), ("%2C", ",")) if property_ else ())):
        text = text.replace(escape, character)
    return text.replace("%25", "%")


def told(report: Report, tree: Path | None = None, **environment: str) -> list[tuple[str, dict[str, str], str]]:
    return [parsed(text) for text in commands(report, tree, environment)]


def test_each_scenario_that_did_not_pass_is_marked_where_it_failed(tmp_path: Path) -> None:
    found = [(where["title"], where["line"], where["col"], said) for _, where, said in told(every_kind(tmp_path))]
    assert [(title, int(at), int(column)) for title, at, column, _ in found] == [
        ("tone/wavers", 17, 9),
        ("tone/fails", 27, 9),
        ("tone/breaks", 33, 5),
        ("tone/waits", 43, 5),
        ("tone/elsewhere", 53, 5),
        ("tone/breaks", 37, 9),
    ]
    says = 'trial 1: final_answer_contains: the final answer does not contain "Paris"; it is "Lyon."'
    assert found[1][3] == f"{says} (so in 3 of 3 trials)"
    assert found[2][3] == "trial 2: timed out: 301 s spent, and the timeout is 300 s"
    assert found[3][3] == "trial 2: missing: server_lost, 3 tries"


def test_flaky_is_no_error_where_it_is_allowed(tmp_path: Path) -> None:
    titles = [where["title"] for _, where, _ in told(every_kind(tmp_path, allow_flaky=True))]
    assert "tone/wavers" not in titles
    assert "tone/breaks" in titles


def test_s18_what_may_be_missing_is_a_warning_at_its_scenario(tmp_path: Path) -> None:
    found = {where["title"]: (kind, said) for kind, where, said in told(every_kind(tmp_path, missing_allowed=True))}
    assert found["tone/waits"] == (
        "warning",
        "1 of 3 recorded; what is missing is allowed to be; trial 2: missing: server_lost, 3 tries",
    )
    assert {kind for title, (kind, _) in found.items() if title != "tone/waits"} == {"error"}


def test_a_command_is_one_line_whatever_is_in_it() -> None:
    annotation = Annotation("tone/a, b: c%3A", "100 %\r\n::set-output name=x::y", "a,b:c.yaml", 3, 9)
    text = annotation.command()
    assert "\n" not in text
    assert parsed(text) == (
        "error",
        {"file": "a,b:c.yaml", "line": "3", "col": "9", "title": "tone/a, b: c%3A"},
        "100 %\r\n::set-output name=x::y",
    )


def test_ten_are_written_one_of_each_scenario_first_and_the_others_counted(tmp_path: Path) -> None:
    """Two assertions of eight scenarios: GitHub would drop six without a word."""
    ids = [f"s{n}" for n in range(8)]
    both = [
        {"index": n, "kind": kind, "passed": False, "sentence": "no"}
        for n, kind in enumerate(("tool_called", "final_answer_contains"))
    ]
    report = made(
        tmp_path,
        {"tone": [asked(id_, trials=1, at=3 + 10 * n) for n, id_ in enumerate(ids)]},
        [failed(id_, 0, findings=both) for id_ in ids],
    )
    found = told(report)
    assert [kind for kind, _, _ in found] == [*["error"] * MOST, "notice"]
    assert [where["title"] for _, where, _ in found[:8]] == [f"tone/{id_}" for id_ in ids]
    assert found[-1][2].startswith("6 more failures are not shown here: GitHub shows 10 of a step. 8 scenarios did not")


def test_many_scenarios_are_not_all_read(tmp_path: Path) -> None:
    ids = [f"s{n}" for n in range(500)]
    report = made(tmp_path, {"tone": [asked(id_, trials=1) for id_ in ids]}, [errored(id_, 0) for id_ in ids])
    read: list[str] = []

    def counting(case: str, scenario: str, trial: int) -> object:
        read.append(scenario)
        return report.line(case, scenario, trial)

    found = told(replace(report, line=counting))  # type: ignore[arg-type]
    assert len(read) == 200
    assert found[-1][2].startswith("490 more failures")


def test_a_refused_case_file_is_marked_at_the_character(tmp_path: Path) -> None:
    (tmp_path / "tone.yaml").touch()
    problems: list[object] = [
        CaseProblem(Place("tone.yaml", n, 7), f'unknown key "user{n}"', "a line", "did you mean user?")
        for n in range(12)
    ]
    found = [parsed(text) for text in problem_commands([*problems, "no place"], tmp_path, {})]
    assert found[0] == (
        "error",
        {"file": "tone.yaml", "line": "0", "col": "7", "title": "case file"},
        'unknown key "user0"; did you mean user?',
    )
    assert [kind for kind, _, _ in found] == [*["error"] * MOST, "notice"]
    assert found[-1][2] == "2 more problems are not shown here; the log has all of them"


class TestThePath:
    @pytest.fixture
    def tree(self, tmp_path: Path) -> Path:
        tree = tmp_path / "repository" / "agents" / "concierge"
        (tree / "evals/cases").mkdir(parents=True)
        (tree / "evals/cases/tone.yaml").touch()
        return tree

    @pytest.fixture
    def report(self, tmp_path: Path) -> Report:
        return made(tmp_path / "results", {"tone": [asked("a", trials=1)]}, [failed("a", 0)])

    def test_it_counts_from_the_repository(self, report: Report, tree: Path) -> None:
        ((_, where, _),) = told(report, tree, GITHUB_WORKSPACE=str(tree.parents[1]))
        assert where["file"] == "agents/concierge/evals/cases/tone.yaml"

    def test_without_a_workspace_it_counts_from_the_tree(self, report: Report, tree: Path) -> None:
        ((_, where, _),) = told(report, tree)
        assert where["file"] == "evals/cases/tone.yaml"

    def test_what_is_no_file_of_the_repository_has_none(self, report: Report, tree: Path, tmp_path: Path) -> None:
        """Drafts, and a tree outside of the workspace: GitHub could show no line of them."""
        for elsewhere, workspace in ((tmp_path, tmp_path), (tree, tmp_path / "other")):
            ((_, where, _),) = told(report, elsewhere, GITHUB_WORKSPACE=str(workspace))
            assert set(where) == {"title"}


class TestTheStepsSummary:
    def test_the_page_is_added_to_what_is_there(self, tmp_path: Path) -> None:
        place = tmp_path / "summary"
        place.write_text("before\n", encoding="utf-8")
        environment = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(place)}
        step_summary(every_kind(tmp_path), environment)
        assert place.read_text(encoding="utf-8").startswith("before\n## 💥 evalfleet: fail\n")

    @pytest.mark.parametrize("missing", ["GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"])
    def test_elsewhere_nothing_is_written(self, tmp_path: Path, missing: str) -> None:
        place = tmp_path / "summary"
        environment = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(place)} | {missing: ""}
        step_summary(every_kind(tmp_path), environment)
        assert not place.exists()

    def test_one_that_cannot_be_written_is_told(self, tmp_path: Path) -> None:
        environment = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(tmp_path / "no" / "summary")}
        with pytest.raises(StorageError, match=r"GITHUB_STEP_SUMMARY .*summary: No such file or directory"):
            step_summary(every_kind(tmp_path), environment)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("::add-mask::x", r"\u003a:add-mask::x"),
        ("    ::stop-commands::x", r"    \u003a:stop-commands::x"),
        ("a ##[error]b", r"a \u0023#[error]b"),
        ("std::vector ## [x]", "std::vector ## [x]"),
    ],
)
def test_an_agents_text_gives_the_runner_no_orders(monkeypatch: pytest.MonkeyPatch, said: str, shown: str) -> None:
    """What `show` prints of an answer would be obeyed: `::add-mask::e` blackens every e of the log."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    stream = io.StringIO()
    write_lines([Text(said)], stream)
    assert stream.getvalue() == f"{shown}\n"
    monkeypatch.delenv("GITHUB_ACTIONS")
    stream = io.StringIO()
    write_lines([Text(said)], stream)
    assert stream.getvalue() == f"{said}\n"
