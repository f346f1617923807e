"""`-o FILE`: refused before anything runs, or there whole at the end."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from evalfleet.errors import StorageError, UsageError
from evalfleet.tree import read_tree_config
from scheduler.reports import ReportFiles
from scheduler.reports.files import write_whole
from tests.scheduler.reports.making import every_kind


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("report.txt", r"one of \.json, \.junit\.xml, \.md$"),
        ("report", r"one of \.json, \.junit\.xml, \.md$"),
        ("report.xml", r"JUnit reports end in \.junit\.xml"),
        (".md", "the ending says the format"),
        (".junit.xml", "the ending says the format"),
    ],
)
def test_an_unknown_ending_names_the_known_ones(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ReportFiles([tmp_path / name])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a.json", "A.JSON", "b.junit.xml", "c.Junit.XML", "d.md", "x.y.md"])
def test_the_ending_says_the_format(tmp_path: Path, name: str) -> None:
    files = ReportFiles([tmp_path / "new" / "folder" / name])
    report = every_kind(tmp_path / "results")
    files.write(report)
    text = (tmp_path / "new" / "folder" / name).read_text(encoding="utf-8")
    if name.lower().endswith(".json"):
        assert json.loads(text) == report.summary.document(report.exit_code)
    else:
        assert text.startswith('<?xml version="1.0"' if "xml" in name.lower() else "## ")
    assert os.listdir(tmp_path / "new" / "folder") == [name]


def test_a_place_that_cannot_be_written_is_found_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"-o .*a\.md cannot be written: (Not a directory|File exists)"):
        ReportFiles([tmp_path / "file" / "a.md"])
    (tmp_path / "folder.md").mkdir()
    with pytest.raises(UsageError, match="it is a folder"):
        ReportFiles([tmp_path / "folder.md"])
    os.mkfifo(tmp_path / "pipe.md")
    with pytest.raises(UsageError, match="it is no regular file"):
        ReportFiles([tmp_path / "pipe.md"])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_found_at_once(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    with pytest.raises(UsageError, match="Permission denied"):
        ReportFiles([tmp_path / "a.md"])


def test_a_report_that_cannot_be_written_leaves_the_others_and_the_old_one(tmp_path: Path) -> None:
    """The disk is full, or the folder has gone since."""
    files = ReportFiles([tmp_path / "gone" / "a.json", tmp_path / "b.md"])
    (tmp_path / "gone").rmdir()
    with pytest.raises(StorageError, match=r"a report could not be written: .*gone/a\.json: No such file or directory"):
        files.write(every_kind(tmp_path / "results"))
    assert (tmp_path / "b.md").exists()


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    place = tmp_path / "a.md"
    place.write_text("the old one")

    def breaks() -> object:
        yield "half"
        assert place.read_text() == "the old one"
        raise RuntimeError

    with place.open() as reader:  # who has it open goes on reading what was there
        write_whole(place, ["the new one"])
        assert reader.read() == "the old one"
    place.write_text("the old one")
    with pytest.raises(RuntimeError):
        write_whole(place, breaks())  # type: ignore[arg-type]
    assert place.read_text() == "the old one"
    assert os.listdir(tmp_path) == ["a.md"]


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "a.md").symlink_to(tmp_path / "there" / "real.md")
    ReportFiles([tmp_path / "a.md"]).write(every_kind(tmp_path / "results"))
    assert (tmp_path / "a.md").is_symlink()
    assert (tmp_path / "there" / "real.md").read_text(encoding="utf-8").startswith("## ")


def test_b11_half_an_emoji_is_written_as_utf8(tmp_path: Path) -> None:
    write_whole(tmp_path / "a.md", ["half \ud83d"])
    assert (tmp_path / "a.md").read_bytes() == b"half \\ud83d"


class TestWhatWouldBecomeAHarnessFile:
    """S33: a report that is a part of the harness would move the commit, and nothing could be resumed."""

    @pytest.fixture
    def tree(self, tmp_path: Path) -> Path:
        (tmp_path / "evals" / "cases").mkdir(parents=True)
        (tmp_path / "evalfleet.toml").write_text('[harness.command]\nargv = ["python3", "agent.py"]\n')
        (tmp_path / "tracked.json").write_text("{}")
        (tmp_path / ".gitignore").write_text("ignored/\n")
        for words in (["init", "-q"], ["add", "tracked.json", ".gitignore"]):
            subprocess.run(["git", *words], cwd=tmp_path, check=True)
        return tmp_path

    @pytest.mark.parametrize("name", ["summary.md", "docs/summary.md", "tracked.json"])
    def test_it_is_refused(self, tree: Path, name: str) -> None:
        with pytest.raises(UsageError, match=rf"-o .*{name} would become a harness file"):
            ReportFiles([tree / name]).outside_of_harness(read_tree_config(tree))

    @pytest.mark.parametrize(
        "name", ["evals/results/summary.md", "ignored/summary.md", "new.json", "a.junit.xml", "../outside.md"]
    )
    def test_others_are_not(self, tree: Path, name: str) -> None:
        ReportFiles([tree / name]).outside_of_harness(read_tree_config(tree))

    def test_without_git_it_is_the_ending(self, tree: Path) -> None:
        subprocess.run(["rm", "-r", str(tree / ".git")], check=True)
        with pytest.raises(UsageError):
            ReportFiles([tree / "ignored/summary.md"]).outside_of_harness(read_tree_config(tree))
        ReportFiles([tree / "tracked.json"]).outside_of_harness(read_tree_config(tree))

    def test_the_globs_of_harness_files_count(self, tree: Path) -> None:
        with (tree / "evalfleet.toml").open("a") as file:
            file.write('[harness]\nfiles = ["*.json"]\n')
        with pytest.raises(UsageError):
            ReportFiles([tree / "new.json"]).outside_of_harness(read_tree_config(tree))
        ReportFiles([tree / "summary.md"]).outside_of_harness(read_tree_config(tree))
