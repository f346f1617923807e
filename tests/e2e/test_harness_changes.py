"""S33: the harness changes while its evaluation is played, in every way that it does on a person's machine."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest

from scheduler.evaluate import Options, evaluate
from scheduler.prepare import prepare
from scheduler.progress import PlainReporter
from tests.e2e.command import Finished
from tests.e2e.conftest import Tree
from tests.test_tree import git

pytestmark = pytest.mark.e2e

SENTENCE = "the harness changed while it was played: agent.py"

CASE = """
scenarios:
  - id: waits
    user: [say one, until go.txt two]
    expect: [{final_answer_contains: two}]
"""

EDITS_ITSELF = """
import json, sys
turn = json.load(sys.stdin)
if turn["message"] == "edit":
    with open(__file__, "a") as file:
        file.write("# better now\\n")
with open("notes.txt", "a") as file:
    file.write(turn["message"])
print("done")
"""


def stopped(tree: Tree, done: Finished) -> None:
    """Nothing is recorded; what was paid for is in the artifact, with the reason."""
    done.check(3, f"stopped: {SENTENCE}; restore it and the same command goes on", "--fresh", "INCOMPLETE")
    for line in tree.lines():
        assert line["outcome"] == "missing"
        assert SENTENCE in line["reason"]
        assert line["tries"][0]["run_ids"]


def test_item4_an_agent_edited_while_it_is_played_is_never_recorded_under_the_old_commit(tree: Tree) -> None:
    """The first turn was played by the old code, the second one waits when the editor saves."""
    tree.case("talk", CASE)
    before = (tree.root / "agent.py").read_text()
    with tree.start("eval") as command:
        command.await_true(lambda: tree.started() == 2, "the second turn has begun")
        (tree.root / "agent.py.new").write_text(before + "\n# edited\n")
        (tree.root / "agent.py.new").replace(tree.root / "agent.py")
        (tree.root / "go.txt").write_text("")
        stopped(tree, command.wait())
    assert tree.summary()["exit_code"] == 3
    (tree.root / "agent.py").write_text(before)
    started = tree.started()
    done = tree.run("eval").check(0, "resuming sub_", "1 scenario: 1 pass")
    assert "--fresh starts over" in done.err
    assert tree.started() == started + 2, "a fresh chat: the old one has a turn that does not count"


def test_item4_an_agent_that_edits_its_own_code_stops_its_evaluation(tree: Tree) -> None:
    (tree.root / "agent.py").write_text(EDITS_ITSELF)
    tree.case("talk", "scenarios: [{id: a, trials: 3, user: edit, expect: [{final_answer_contains: done}]}]")
    stopped(tree, tree.run("eval", "-j", "1"))
    assert (tree.root / "notes.txt").read_text() == "edit", "nothing more was launched"


def test_item4_the_tree_that_was_planned_is_the_one_that_is_played(tree: Tree) -> None:
    """Somebody saves between the command's look at the tree and the server's."""
    tree.case("talk", "scenarios: [{id: a, user: say hello, expect: [{final_answer_contains: hello}]}]")
    env = {**os.environ, "HOME": str(tree.root), "COUNT_FILE": str(tree.count_file)}
    prepared = prepare(
        tree.root,
        [],
        trials=None,
        concurrency=None,
        drafts=None,
        on_target=False,
        results=None,
        environment=env,
    )
    (tree.root / "agent.py").write_text('print("hello, says other code")\n')
    result = evaluate(prepared, Options(environment=env), PlainReporter(io.StringIO()))
    assert (result.exit_code, result.ended.code) == (3, "harness_changed")
    assert result.ended_early.startswith("the harness changed while it was played: ")
    assert tree.started() == 0
    assert tree.lines() == []


def test_item4_what_an_agent_does_in_its_own_copy_is_not_the_harness(tree: Tree) -> None:
    (tree.root / "agent.py").write_text(EDITS_ITSELF)
    text = (tree.root / "evalfleet.toml").read_text().replace("[harness.command]", '[harness.command]\ncwd = "scratch"')
    (tree.root / "evalfleet.toml").write_text(text.replace('files = ["agent.py"]\n', ""))
    tree.case("talk", "scenarios: [{id: a, trials: 2, user: edit, expect: [{final_answer_contains: done}]}]")
    tree.run("eval").check(0, "PASS  2/2")
    assert not (tree.root / "notes.txt").exists()


def test_n10_links_in_the_tree_stop_nothing(tmp_path: Path) -> None:
    """A folder link, an editor's lock beside each kind of file, dangling links and a link to itself."""
    tree = Tree(tmp_path)
    (tmp_path / "evalfleet.toml").write_text(
        f'[harness]\nname = "small"\n[harness.command]\nargv = ["{sys.executable}", "agent.py"]\n'
    )
    git(tmp_path, "init", "-q", ".")
    tree.case("one", "scenarios: [{id: a, user: say hello, expect: [{grader: {name: kind.polite}}]}]")
    tree.grader("kind", "def polite(t, case, run): return 'hello' in run['final_answer']\n")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/x.py").write_text("x = 1\n")
    (tmp_path / "shared").symlink_to("lib")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "with a link to a folder")
    for folder, name in (("", "agent"), ("lib", "x"), ("evals/graders", "kind"), ("evals/cases", "one")):
        ending = "yaml" if name == "one" else "py"
        (tmp_path / folder / f".#{name}.{ending}").symlink_to("somebody@host.1234:1700000000")
    (tmp_path / "gone.py").symlink_to("nowhere/at/all.py")
    (tmp_path / "loop.py").symlink_to("loop.py")
    (tmp_path / "evals/graders/loop").symlink_to("../graders/loop")
    files = tree.run("plan", "--files").check(0).out
    assert {"shared", ".#agent.py", "gone.py", "loop.py"} <= set(files.split())
    tree.run("eval").check(0, "1 scenario: 1 pass")
