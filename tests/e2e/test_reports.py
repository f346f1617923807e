"""`-o`, GitHub Actions and `hook-trace`, as whole commands (B11, B13, S18, S36, S37)."""

from __future__ import annotations

import json
import re
import signal
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.e2e.conftest import Tree
from tests.scheduler.reports.test_junit import check_structure

pytestmark = pytest.mark.e2e

CASE = """
scenarios:
  - {id: greets, user: say hello, expect: [{final_answer_contains: hello}]}
  - id: fails
    user: say hello
    expect:
      - no_error: true
      - final_answer_contains: goodbye
"""

HOSTILE = r'''
"""Answers with half an emoji and control characters, calls a tool with half another one; its hook fails."""
import json, sys
turn = json.load(sys.stdin)
for line in (
    {"type": "hook", "hook": "tools.before", "decision": "failed", "source": "h.py", "error": "no \x1b key"},
    {"type": "hook", "hook": "tools.before", "decision": "answered", "source": "h.py", "duration_ms": 4},
    {"type": "tool_call", "id": "c", "name": "look", "args": {"q": "\udc80"}},
    {"type": "tool_result", "id": "c", "output": "]]> \x00 \ufffe"},
    {"type": "answer", "text": "ok \ud83d\n::add-mask::e ]]> \x1b[31m\x00"},
):
    print(json.dumps(line))
'''


def junit(path: Path) -> ElementTree.Element:
    root = ElementTree.fromstring(path.read_bytes())
    check_structure(root)
    return root


def test_reports_stand_beside_a_stdout_that_holds_the_result_alone(tree: Tree, tmp_path: Path) -> None:
    tree.case("talk", CASE)
    step = tmp_path / "step"
    step.touch()
    actions = {
        "GITHUB_ACTIONS": "true",
        "GITHUB_WORKSPACE": str(tree.root.parent),
        "GITHUB_STEP_SUMMARY": str(step),
    }
    outputs = [word for name in ("a.json", "new/b.junit.xml", "c.md") for word in ("-o", f"out/{name}")]
    done = tree.run("eval", "--json", *outputs, environment=actions).check(1)
    document = done.document()
    assert document["exit_code"] == 1
    assert json.loads((tree.root / "out/a.json").read_text()) == document
    root = junit(tree.root / "out/new/b.junit.xml")
    assert (root.attrib["tests"], root.attrib["failures"]) == ("2", "1")
    page = (tree.root / "out/c.md").read_text(encoding="utf-8")
    assert page.startswith("## ❌ evalfleet: fail\n")
    assert step.read_text(encoding="utf-8") == page + "\n"
    marks = [line for line in done.err.splitlines() if line.startswith("::")]
    (mark,) = marks
    folder = tree.root.name
    assert mark.startswith(
        f"::error file={folder}/evals/cases/talk.yaml,line=8,col=9,title=talk/fails::final_answer_cont"
    )

    again = tree.run("score", document["artifact"], "-o", "again.junit.xml").check(1)
    assert "::error" not in again.err, "not in GitHub Actions"
    assert junit(tree.root / "again.junit.xml").attrib["failures"] == "1"
    tree.run("show", "-o", "shown.json").check(0)
    assert json.loads((tree.root / "shown.json").read_text()) == document


@pytest.mark.parametrize("command", ["eval", "validate"])
def test_a_refused_case_file_is_marked_at_its_line(tree: Tree, command: str) -> None:
    tree.case("talk", CASE.replace("no_error", "no_eror"))
    actions = {"GITHUB_ACTIONS": "true", "GITHUB_WORKSPACE": str(tree.root.parent)}
    done = tree.run(command, environment=actions).check(2)
    marks = [line for line in done.err.splitlines() if line.startswith("::")]
    where = f"file={tree.root.name}/evals/cases/talk.yaml,line=7,col=9,title=case file"
    assert [mark.partition("::unknown")[0] for mark in marks] == [f"::error {where}"]


def test_b13_what_cannot_be_written_is_found_before_anything_runs(tree: Tree) -> None:
    tree.case("talk", CASE)
    (tree.root / "file").touch()
    for words, said in (
        ("out.txt", "it is one of .json, .junit.xml, .md"),
        ("file/a.md", "-o file/a.md cannot be written"),
    ):
        tree.run("eval", "-o", words).check(2, said)
    configured = (tree.root / "evalfleet.toml").read_text()
    (tree.root / "evalfleet.toml").write_text(configured.replace('["agent.py"]', '["agent.py", "a*"]'))
    tree.run("eval", "-o", "a.md").check(2, "-o a.md would become a harness file")
    assert tree.started() == 0
    assert not (tree.root / ".evalfleet").exists()


def test_reports_are_written_when_the_run_is_interrupted_and_again_by_the_resume(tree: Tree) -> None:
    """S18: what is missing is red in the file, as it is in the exit code."""
    for name in "abc":
        tree.case(name, "scenarios:\n  - {id: ok, user: sleep 0.7 hello, expect: [{final_answer_contains: hello}]}\n")
    with tree.start("eval", "-j", "1", "-o", "r.junit.xml", "-o", "r.md", "-o", "r.json") as command:
        command.await_true(lambda: [call[1] for call in tree.calls()].count("end") >= 1, "one has ended")
        command.signal(signal.SIGINT)
        command.wait(within=30).check(130)
    root = junit(tree.root / "r.junit.xml")
    missing = [error for error in root.iter("error") if error.attrib["type"] == "incomplete"]
    assert 1 <= len(missing) <= 2
    assert root.find("testsuite/properties/property[@name='ended'][@value='interrupted']") is not None
    assert "Ended early: interrupted" in (tree.root / "r.md").read_text(encoding="utf-8")
    assert json.loads((tree.root / "r.json").read_text())["exit_code"] == 130

    tree.run("resume", "-o", "r.junit.xml").check(0)
    assert [junit(tree.root / "r.junit.xml").attrib[key] for key in ("tests", "errors")] == ["3", "0"]


def test_b11_half_an_emoji_goes_into_every_output_and_is_scored_again(tree: Tree) -> None:
    """In the locale C; and GitHub's runner is given no order by what an agent said."""
    (tree.root / "agent.py").write_text(HOSTILE)
    tree.configure(argv=[sys.executable, "agent.py"])
    tree.grader("q", "def a(t, case, run):\n    return {'pass': False, 'score': 0.5, 'why': run['final_answer']}\n")
    tree.case(
        "odd", "scenarios:\n  - {id: é, user: go, expect: [{final_answer_contains: ok}, {grader: {name: q.a}}]}\n"
    )
    plain = {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "GITHUB_ACTIONS": "true"}
    outputs = [word for name in ("r.json", "r.junit.xml", "r.md") for word in ("-o", f"evals/results/{name}")]
    done = tree.run("eval", *outputs, environment=plain).check(1)
    assert "::error file=" in done.err
    found = junit(tree.root / "evals/results/r.junit.xml").find("testsuite/testcase")
    assert found is not None
    assert found.attrib["name"] == "é"
    assert r"]]> \u001b[31m\u0000" in (found.findtext("system-out") or "")
    json.loads((tree.root / "evals/results/r.json").read_text(encoding="utf-8"))
    assert r"]]> \u001b[31m\u0000" in (tree.root / "evals/results/r.md").read_text(encoding="utf-8")

    name = tree.artifact().name
    tree.run("score", name, "-o", "evals/results/again.json", environment=plain).check(1)
    before, after = (json.loads((tree.root / f"evals/results/{n}.json").read_text()) for n in ("r", "again"))
    assert before["scenarios"] == after["scenarios"]
    shown = tree.run(
        "show", "odd/é", environment={k: v for k, v in plain.items() if k != "LC_ALL"} | {"LC_ALL": "C.UTF-8"}
    )
    assert r"\u003a:add-mask::e" in shown.check(0).out
    assert not re.search(r"^\s*::", shown.out, re.MULTILINE)


def test_hook_trace_reads_the_newest_run_a_run_and_an_artifact(tree: Tree) -> None:
    (tree.root / "agent.py").write_text(HOSTILE)
    tree.configure(argv=[sys.executable, "agent.py"])
    tree.case("odd", "scenarios:\n  - {id: a, user: go, trials: 2, expect: [{final_answer_contains: ok}]}\n")
    tree.run("hook-trace").check(2, "this tree's server has no run of talker yet")
    tree.run("eval").check(0)
    line = r"tools.before  reached 2 times, 1 by default (1 failure), median 4ms (h.py); last failure: no \u001b key"
    newest = tree.run("hook-trace").check(0, "the newest run of talker")
    assert newest.out.splitlines()[0] == line
    assert newest.out.splitlines()[1].startswith("never reached: context.build, model.choose")
    run = tree.lines()[0]["run_id"]
    document = tree.run("hook-trace", run, "--json").check(0).document()
    (hook,) = document["hooks"]
    assert (document["run_id"], hook["hook"], hook["reached"], hook["default"]) == (run, "tools.before", 2, 1)
    assert hook["last_failures"] == [r"no \u001b key"]
    for words, reached in (([], 4), ([run], 2), (["odd/a", "--trial", "1"], 2), (["odd/a"], 4)):
        said = tree.run("hook-trace", *words, "--result", tree.artifact().name).check(0).out
        assert said.startswith(f"tools.before  reached {reached} times, {reached // 2} by default")
    tree.run("hook-trace", "run_01M8PKCT4QE0HTRPAS975E4W0Z").check(2, "this tree's server knows no run run_01M8PKC")
    assert tree.run("hook-trace", "odd/a").check(0, "odd/a, 2 trials").out == said
    nowhere = {"EVALFLEET_BASE_URL": "http://127.0.0.1:9", "EVALFLEET_TOKEN": "x"}
    tree.run("hook-trace", environment=nowhere).check(3, "http://127.0.0.1:9 is not there")
