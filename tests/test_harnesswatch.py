"""S33: what counts as a change of the harness while it is played, and what does not."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evalfleet import gitrepo, harnessfiles, harnesswatch
from evalfleet.harnesswatch import SETTLED_NS, HarnessWatch, watched_version
from evalfleet.tree import TreeVersion, read_tree_config
from tests.test_tree import git

COMMAND = '[harness.command]\nargv = ["python3", "agent.py"]\n'
SCRATCH = COMMAND + 'cwd = "scratch"\n'
HTTP = '[harness.http]\nurl = "http://127.0.0.1:1/"\n'
GLOBS = '[harness]\nfiles = ["agent.py", "lib"]\n' + COMMAND


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "lib").mkdir(parents=True)
    (root / "evals/cases").mkdir(parents=True)
    (root / "agent.py").write_text("print(1)\n")
    (root / "lib/tool.py").write_text("A = 1\n")
    (root / "data.json").write_text("{}\n")
    (root / "evalfleet.toml").write_text(COMMAND)
    (root / ".gitignore").write_text("ignored/\n.evalfleet/\n")
    git(root, "init", "-q", ".")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "one")
    return root


def watched(root: Path, config: str | None = None) -> HarnessWatch:
    return both(root, config)[1]


def both(root: Path, config: str | None = None) -> tuple[TreeVersion, HarnessWatch]:
    if config is not None:
        (root / "evalfleet.toml").write_text(config)
    return watched_version(read_tree_config(root))


def settled(watch: HarnessWatch) -> HarnessWatch:
    """As it is once every file and folder is older than a clock's tick: compared by keys alone from then on."""
    deadline = time.monotonic() + 30
    while watch.look() or None in {**watch._keys, **watch._places}.values():
        assert time.monotonic() < deadline
        time.sleep(SETTLED_NS / 4e9)  # the age of a file sends no event
    return watch


def without_git(root: Path) -> None:
    shutil.rmtree(root / ".git")


def with_a_change(root: Path) -> None:
    (root / "agent.py").write_text("print('edited before')\n")


def as_it_is(_root: Path) -> None:
    pass


STATES = pytest.mark.parametrize("state", [as_it_is, with_a_change, without_git])


def edited(root: Path) -> str:
    (root / "agent.py").write_text("print(2)\n")
    return "agent.py"


def edited_to_the_same_size(root: Path) -> str:
    """And to the same time stamp, as a program may that restores times: `ctime` is nobody's to set."""
    before = (root / "agent.py").stat()
    text = (root / "agent.py").read_text()
    (root / "agent.py").write_text(text.replace("print", "paint"))
    os.utime(root / "agent.py", ns=(before.st_atime_ns, before.st_mtime_ns))
    return "agent.py"


def saved_atomically(root: Path) -> str:
    (root / ".agent.py.swp").write_text("print(3)\n")
    (root / ".agent.py.swp").replace(root / "agent.py")
    return "agent.py"


def deleted(root: Path) -> str:
    (root / "lib/tool.py").unlink()
    return "lib/tool.py (gone)"


def made_a_program(root: Path) -> str:
    (root / "lib/tool.py").chmod(0o755)
    return "lib/tool.py"


def made_a_link(root: Path) -> str:
    (root / "lib/tool.py").unlink()
    (root / "lib/tool.py").symlink_to("../agent.py")
    return "lib/tool.py"


CHANGES = [edited, edited_to_the_same_size, saved_atomically, deleted, made_a_program, made_a_link]


@STATES
@pytest.mark.parametrize("change", CHANGES)
def test_s33_a_change_is_seen_and_named(
    tree: Path, state: Callable[[Path], None], change: Callable[[Path], str]
) -> None:
    state(tree)
    watch = watched(tree)
    named = change(tree)
    assert watch.look() == named
    assert watch.look() == named, "it stays one"


@STATES
def test_s33_what_is_written_again_with_the_same_content_is_no_change(
    tree: Path, state: Callable[[Path], None]
) -> None:
    """Touched, saved by rename, changed and restored: nothing is lost."""
    state(tree)
    text = (tree / "agent.py").read_text()
    watch = settled(watched(tree))
    os.utime(tree / "agent.py", (1, 1))
    assert watch.look() == ""
    (tree / "new").write_text(text)
    (tree / "new").replace(tree / "agent.py")
    assert watch.look() == ""
    (tree / "agent.py").write_text("print(2)\n")
    assert watch.look() == "agent.py"
    (tree / "agent.py").write_text(text)
    assert watch.look() == ""
    (tree / "agent.py").unlink()
    assert watch.look() == "agent.py (gone)"
    (tree / "agent.py").write_text(text)
    assert watch.look() == ""


@pytest.mark.parametrize("way", ["git", "digest"])
def test_s33_a_look_at_a_tree_that_is_still_reads_nothing(
    tree: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Size, times, inode and mode of each file, and no git: that is what makes it cheap."""
    if way == "digest":
        without_git(tree)
    watch = settled(watched(tree))
    read: list[object] = []

    def noted(what: Callable[..., Any]) -> Callable[..., Any]:
        def act(*words: Any, **more: Any) -> Any:
            read.append(words)
            return what(*words, **more)

        return act

    monkeypatch.setattr(harnesswatch, "file_digest", noted(harnessfiles.file_digest))
    monkeypatch.setattr(gitrepo, "_run", noted(gitrepo._run))
    assert watch.look() == ""
    assert read == []
    (tree / "agent.py").write_text("print(2)\n")
    deadline = time.monotonic() + 30
    while not read or None in watch._last.values():
        assert watch.look() == "agent.py"
        assert time.monotonic() < deadline
    read.clear()
    assert watch.look() == "agent.py"
    assert read == [], "the same change is not compared twice"


def test_s33_a_file_written_twice_within_a_tick_of_the_clock_is_seen(tree: Path) -> None:
    """The second time leaves size, times and inode as they were where the clock has not ticked."""
    without_git(tree)
    (tree / "agent.py").write_text("print(4)\n")
    watch = watched(tree)
    key = watch._keys["agent.py"]
    assert key is None, "equal keys would say nothing"


def test_s33_another_commit_is_checked_out(tree: Path) -> None:
    (tree / "lib/more.txt").write_text("a new file, tracked, that ends as no source does\n")
    git(tree, "add", ".")
    git(tree, "commit", "-q", "-m", "adds only")
    git(tree, "checkout", "-q", "HEAD~1")
    watch = settled(watched(tree))
    git(tree, "checkout", "-q", "-")
    assert watch.look() == "lib/more.txt (new)"
    git(tree, "checkout", "-q", "HEAD~1")
    assert watch.look() == ""


def test_s33_a_commit_of_what_is_there_already_changes_no_file(tree: Path) -> None:
    """Cases are edited and committed while an evaluation runs: HEAD is another, the harness is not."""
    with_a_change(tree)
    watch = settled(watched(tree))
    (tree / "evals/cases/one.yaml").write_text("scenarios: []\n")
    git(tree, "add", ".")
    git(tree, "commit", "-q", "-m", "all of it")
    assert watch.look() == ""
    git(tree, "commit", "-q", "--amend", "-m", "again")
    assert watch.look() == ""


@pytest.mark.parametrize("config", [SCRATCH, HTTP, GLOBS], ids=["scratch", "http", "files"])
def test_s33_a_new_file_that_a_digest_would_count_is_a_change(tree: Path, config: str) -> None:
    """Where the tree is not the agent's own working folder, or `[harness] files` names it."""
    watch = settled(watched(tree, config))
    (tree / "lib/deep").mkdir()
    (tree / "notes.json").write_text("{}")  # data: an agent writes such files
    assert watch.look() == ""
    (tree / "lib/deep/extra.py").write_text("x\n")
    assert watch.look() == "lib/deep/extra.py (new)"
    (tree / "lib/deep/extra.py").unlink()
    assert watch.look() == ""


def test_s33_what_an_agent_adds_to_its_own_working_folder_is_not_the_harness(tree: Path) -> None:
    """`cwd = "tree"`: a coding agent writes sources there. What git begins to track is the harness all the same."""
    watch = settled(watched(tree))
    (tree / "written_by_the_agent.py").write_text("x\n")
    (tree / "data").mkdir()
    (tree / "data/notes.md").write_text("x\n")
    assert watch.look() == ""
    git(tree, "add", "written_by_the_agent.py")
    assert watch.look() == "written_by_the_agent.py (new)"


@pytest.mark.parametrize("config", [COMMAND, SCRATCH], ids=["tree", "scratch"])
def test_s33_what_is_never_the_harness_changes_nothing(tree: Path, config: str) -> None:
    watch = settled(watched(tree, config))
    for path in (
        "evals/results/a/trials.jsonl", "evals/cases/two.yaml", "evals/graders/judge.py", ".evalfleet/server.sqlite3",
        ".evalfleet/scratch/x/agent.py", "ignored/helper.py", "agent.log", "__pycache__/agent.cpython-312.pyc",
        "node_modules/a/index.js",
    ):  # fmt: skip
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text("x\n")
    assert watch.look() == ""


def test_s33_a_submodules_file_is_the_harness(tree: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    git(tmp_path, "init", "-q", "other")
    (other / "part.py").write_text("1\n")
    git(other, "add", ".")
    git(other, "commit", "-q", "-m", "part")
    git(tree, "submodule", "--quiet", "add", str(other), "part")
    git(tree, "commit", "-q", "-m", "with part")
    watch = settled(watched(tree))
    (tree / "part/part.py").write_text("2\n")
    assert watch.look() == "part/part.py"
    dirty = settled(watched(tree))
    git(tree, "commit", "-q", "--allow-empty", "-m", "the index is another file")
    git(tree, "update-index", "--refresh")
    assert dirty.look() == ""


def test_s33_the_version_is_the_one_that_the_command_reads(tree: Path) -> None:
    version, _watch = both(tree)
    assert version.commit == git(tree, "rev-parse", "HEAD")
