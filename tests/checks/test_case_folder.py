"""Which files of a tree are cases (S7)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from evalfleet.checks import LoadedCases, case_key, load_cases
from evalfleet.checks.source import MAX_BYTES

GOOD = "scenarios: [{id: a, user: hi, expect: [{no_error: true}]}]\n"


def tree(root: Path, *files: str, text: str = GOOD) -> LoadedCases:
    for file in files:
        path = root / "evals" / "cases" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return load_cases(root)


def said(loaded: LoadedCases) -> list[str]:
    return [f"{problem.place.file}: {problem.message}" for problem in loaded.problems]


def test_cases_come_in_the_order_of_their_names(tmp_path: Path) -> None:
    loaded = tree(tmp_path, "b.yaml", "a.yaml", "C.yaml")
    assert [(case.name, case.file) for case in loaded.cases] == [
        ("C", "evals/cases/C.yaml"),
        ("a", "evals/cases/a.yaml"),
        ("b", "evals/cases/b.yaml"),
    ]
    assert not loaded.problems


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("tone.yml", "a case file ends in .yaml, and this one in .yml"),
        ("tone.YAML", "a case file ends in .yaml, and this one in .YAML"),
        ("deep/tone.yaml", "a case file in a subfolder is not read"),
        ("deep/er/tone.yml", "a case file in a subfolder is not read"),
        ("draft.yaml", "a case file cannot be called draft.yaml: drafts belong to the case `draft`"),
        ("Draft.yaml", "a case file cannot be called Draft.yaml: drafts belong to the case `draft`"),
        (" tone.yaml", 'a case cannot be called " tone": it starts or ends with white space'),
    ],
)
def test_a_file_that_would_be_passed_over_is_refused_by_name(tmp_path: Path, file: str, message: str) -> None:
    loaded = tree(tmp_path, "ok.yaml", file)
    assert said(loaded) == [f"evals/cases/{file}: {message}"]
    assert [case.name for case in loaded.cases] == ["ok"], "the others are still read"


@pytest.mark.parametrize("file", ["README.md", "tone.yaml.bak", ".tone.yaml", ".git/x.yaml", "tone.json"])
def test_what_is_no_case_file_is_let_lie(tmp_path: Path, file: str) -> None:
    loaded = tree(tmp_path, "ok.yaml", file)
    assert not loaded.problems
    assert len(loaded.cases) == 1


@pytest.mark.parametrize(("one", "two"), [("Tone.yaml", "tone.yaml"), ("caf\u00e9.yaml", "cafe\u0301.yaml")])
def test_names_that_are_equal_after_folding_are_refused(tmp_path: Path, one: str, two: str) -> None:
    loaded = tree(tmp_path, one, two)
    if len(list((tmp_path / "evals" / "cases").iterdir())) == 1:
        assert not loaded.problems, "this file system folds them itself"
    else:
        assert "have one name" in said(loaded)[0]


def test_no_folder_is_nothing_and_no_problem(tmp_path: Path) -> None:
    assert load_cases(tmp_path) == LoadedCases()


def test_problems_of_all_files_come_in_file_order(tmp_path: Path) -> None:
    tree(tmp_path, "a.yaml", "c.yaml", text="scenarios: []\n")
    loaded = tree(tmp_path, "b.yaml")
    assert [problem.place.file for problem in loaded.problems] == ["evals/cases/a.yaml", "evals/cases/c.yaml"]
    assert [case.name for case in loaded.cases] == ["b"]


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    tree(tmp_path, "ok.yaml")
    os.mkfifo(tmp_path / "evals" / "cases" / "pipe.yaml")
    assert said(load_cases(tmp_path)) == ["evals/cases/pipe.yaml: this file cannot be read: it is not a regular file"]


def test_a_link_to_nowhere_is_refused(tmp_path: Path) -> None:
    tree(tmp_path, "ok.yaml")
    (tmp_path / "evals" / "cases" / "gone.yaml").symlink_to(tmp_path / "nowhere")
    assert "cannot be read" in said(load_cases(tmp_path))[0]


def test_a_file_over_five_megabytes_is_refused(tmp_path: Path) -> None:
    """S3."""
    loaded = tree(tmp_path, "big.yaml", text=GOOD + "#" * MAX_BYTES)
    assert "a case file has 5,000,000 at most" in said(loaded)[0]
    loaded = tree(tmp_path, "big.yaml", text=GOOD + "#" * (MAX_BYTES - len(GOOD)))
    assert not loaded.problems


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"scenarios:\n  - id: caf\xe9\n", "evals/cases/x.yaml: byte 0xe9 is not UTF-8"),
        (b"\xef\xbb\xbfa: \xff", "evals/cases/x.yaml: byte 0xff is not UTF-8"),
        (GOOD.encode("utf-16"), "evals/cases/x.yaml: byte 0xff is not UTF-8"),
    ],
    ids=["latin-1", "after a byte order mark", "utf-16"],
)
def test_other_encodings_are_refused(tmp_path: Path, data: bytes, message: str) -> None:
    tree(tmp_path, "x.yaml")
    (tmp_path / "evals" / "cases" / "x.yaml").write_bytes(data)
    assert said(load_cases(tmp_path)) == [message]


def test_one_id_in_two_files_is_two_cases_a07(tmp_path: Path) -> None:
    """A key is file and id, so a copy of a whole file clashes with nothing."""
    loaded = tree(tmp_path, "one.yaml", "two.yaml")
    assert not loaded.problems
    assert [case_key(c.name, s.id) for c in loaded.cases for s in c.scenarios] == ["one/a", "two/a"]
