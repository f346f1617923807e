"""Each command as a person uses it: what it prints, where, and that it does no more than it says."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.command import Command
from tests.e2e.conftest import Tree
from tests.test_surroundings import HOSTILE

pytestmark = pytest.mark.e2e

CASE = """
scenarios:
  - {id: greets, user: say hello, expect: [{final_answer_contains: hello}]}
  - {id: counts, trials: 2, user: [say one, say two], expect: [{final_answer_contains: two}]}
"""


def test_init_writes_a_tree_that_validates_and_runs(tmp_path: Path) -> None:
    """Also: a live progress is no concern of a pipe, so stderr stays empty and stdout holds the result alone."""
    with Command("init", home=tmp_path) as command:
        command.wait().check(0, "wrote evalfleet.toml", "next: evalfleet eval")
    with Command("validate", "--json", home=tmp_path) as command:
        document = command.wait().check(0).document()
    assert (document["ok"], document["problems"], document["errors"], document["warnings"]) == (True, [], [], [])
    with Command("eval", home=tmp_path) as command:
        done = command.wait().check(0)
    assert done.err == ""
    lines = done.out.splitlines()
    assert lines[0].startswith("first  greets-by-name          PASS  2/2")
    assert lines[1].startswith("first  remembers-and-looks-up  PASS  3/3")
    assert "evals/results/" in lines[-1]


def test_select_context_drafts_trials_and_fresh(tree: Tree) -> None:
    """SELECT as `CASE/SCENARIO` plays earlier scenarios as context (S9); `--scenarios -` takes drafts, which run alone
    (S7); the plain command starts anew where nothing is unfinished, `--fresh` always (S34)."""
    tree.case("talk", CASE)
    tree.case("other", CASE)
    plan = tree.run("plan", "talk/counts").check(0, "talk/greets", "context", "2 conversations, 6 turns, 2 of them").out
    assert tree.run("eval", "--dry-run", "talk/counts").check(0).out == plan
    files = tree.run("plan", "--files").check(0).out.splitlines()
    assert files[0] == "agent.py"
    assert files[-1].startswith("commit ")
    assert tree.started() == 0
    assert not (tree.root / ".evalfleet").exists()

    done = tree.run("eval", "ta*/counts", "-k", "1").check(0, "1 scenario: 1 pass", "1 context turn")
    assert [call[3] for call in tree.calls() if call[1] == "start"] == ["say hello", "say one", "say two"]
    assert "greets" not in done.out

    draft = b"scenarios:\n  - {id: drafted, user: say maybe, expect: [{final_answer_contains: maybe}]}\n"
    drafted = tree.run("eval", "--scenarios", "-", "--json", stdin=draft).check(0).document()
    assert [(s["case"], s["scenario"], s["verdict"]) for s in drafted["scenarios"]] == [("draft", "drafted", "pass")]
    again = tree.run("eval", "--scenarios", "-", "--json", "--fresh", "-q", stdin=draft).check(0)
    assert again.err == ""
    assert again.document()["submission"] != drafted["submission"]
    assert tree.started() == 5

    listed = tree.run("list", "--json").check(0).document()["submissions"]
    assert [(s["status"], s["select"]) for s in listed] == [
        ("completed", []),
        ("completed", []),
        ("completed", ["ta*/counts", "-k", "1"]),
    ]
    assert len(tree.run("list").check(0).out.splitlines()) == 3


def test_show_and_score_read_an_artifact_without_running_anything(tree: Tree) -> None:
    """B15's kin: a changed check is scored on what was recorded (S32)."""
    tree.case("talk", CASE.replace("contains: hello", "contains: goodbye"))
    tree.run("eval").check(1, 'does not contain "goodbye"')
    calls = tree.started()
    shown = tree.run("show").check(0, 'does not contain "goodbye"', "say hello").out
    assert "talk/greets" in shown
    second = tree.run("show", "talk/counts", "--trial", "2").check(0, "say one", "say two", "PASS").out
    assert "talk/counts  trial 2 of 2  PASSED" in second
    tree.run("show", "talk/counts", "--trial", "0").check(2, "--trial", "there is no trial 0: trials count from 1")
    tree.run("show", "talk/counts", "--trial", "3").check(2, "talk/counts has no trial 3 in", "only trials 1–2")
    tree.run("show", "talk/nothing").check(2, "talk/nothing")
    tree.case("talk", CASE)
    tree.run("score", tree.artifact().name).check(0, "was FAIL")
    tree.run("score", str(tree.artifact()), "--as-recorded").check(1, 'does not contain "goodbye"')
    document = tree.run("score", tree.artifact().name, "--json").check(0).document()
    assert document["verdict"] == "pass"
    assert tree.started() == calls


# --- graders and the judge ----------------------------------------------------------------------------------------

JUDGED = """
scenarios:
  - {id: good, user: say hello, expect: [{grader: {name: quality.politeness, pass_below: 0.7}}]}
  - {id: low, user: say go away, expect: [{grader: {name: quality.politeness, pass_below: 0.7}}]}
"""
RAISES = """
scenarios:
  - {id: broken, user: say hello, expect: [{grader: {name: quality.raises}}]}
"""
QUALITY = """
def politeness(t, case, run):
    answer = t.llm("How polite is this? " + run["final_answer"])
    return {"pass": True, "score": float(answer), "why": f"the judge says {answer} for {answer.tokens} tokens"}


def raises(t, case, run):
    raise ValueError("no such room")


def reads(t, case, run):
    with open("agent.py") as agent, open("evals/cases/talk.yaml") as case_file:
        said = [turn["text"] for turn in t.history if turn["role"] == "user"] == case["user"]
        return {"pass": bool(agent.read()) and case["id"] in case_file.read() and said, "why": t.run_id}
"""


class JudgeStub(ThreadingHTTPServer):
    """An OpenAI-compatible endpoint that finds "hello" polite; with another key than it knows it refuses."""

    key = "sk-judge"
    asked = 0


@pytest.fixture
def judge() -> Iterator[JudgeStub]:
    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            stub = self.server
            assert isinstance(stub, JudgeStub)
            stub.asked += 1
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.headers["Authorization"] != f"Bearer {stub.key}":
                self.answer(401, {"error": {"message": "Incorrect API key provided", "code": "invalid_api_key"}})
                return
            score = "0.9" if "hello" in asked["messages"][-1]["content"] else "0.2"
            message = {"role": "assistant", "content": score}
            usage = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
            self.answer(200, {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage})

        def answer(self, status: int, document: dict[str, Any]) -> None:
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            pass

    with JudgeStub(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_graders_and_a_judge(tree: Tree, judge: JudgeStub) -> None:
    """S24–S26. A key that is not set is told once, before anything runs (item 23). A refused one is the operator's:
    grading stops, exit 3, and nothing is recorded; with the right one the same command goes on, and the judge's tokens
    are told apart from the spend."""
    tree.case("talk", JUDGED)
    tree.grader("quality", QUALITY)
    url = f"http://127.0.0.1:{judge.server_port}/v1"
    tree.configure(f'[judge]\nbase_url = "{url}"\nmodel = "small"\napi_key_env = "JUDGE_KEY"\n')

    unset = tree.run("eval").check(2, "[judge] api_key_env names JUDGE_KEY, which is not set in the environment")
    assert (unset.err.count("JUDGE_KEY"), tree.started()) == (1, 0)
    refused = tree.run("eval", environment={"JUDGE_KEY": "sk-wrong"})
    refused.check(3, "the judge refused", "evalfleet resume sub_", "missing")
    assert "sk-wrong" not in refused.out + refused.err

    done = tree.run("eval", environment={"JUDGE_KEY": judge.key})
    done.check(1, "resuming sub_", "judge apart: 2 calls, 24 tokens")
    found = {s["scenario"]: (s["verdict"], s["errors"], s["first_failure"] or "") for s in tree.summary()["scenarios"]}
    assert found["good"] == ("pass", 0, "")
    assert found["low"][:2] == ("fail", 0)
    assert "0.2" in found["low"][2]
    assert "0.7" in found["low"][2]
    scores = {line["scenario"]: line["judge_score"] for line in tree.lines()}
    assert scores == {"good": "0.9", "low": "0.2"}
    everything = "".join(path.read_text() for path in tree.artifact().rglob("*.json*"))
    assert judge.key not in everything
    assert judge.key not in done.out + done.err
    assert tree.started() <= 4, "only a turn that the stop cut off costs its conversation a new try (S14)"


def test_graders_are_asked_again_and_ask_the_judge_without_the_runs(tree: Tree, judge: JudgeStub) -> None:
    """S32, S26: on a machine that has the artifact and not the server that played it."""
    tree.case("talk", JUDGED)
    tree.grader("quality", QUALITY)
    url = f"http://127.0.0.1:{judge.server_port}/v1"
    tree.configure(f'[judge]\nbase_url = "{url}"\nmodel = "small"\napi_key_env = "JUDGE_KEY"\n')
    tree.run("eval", environment={"JUDGE_KEY": judge.key}).check(1)
    name, played, asked = tree.artifact().name, tree.started(), judge.asked
    shutil.rmtree(tree.root / ".evalfleet")
    tree.grader("quality", QUALITY.replace('"pass": True', '"pass": "hello" in run["final_answer"]'))

    again = tree.run("score", name, "--regrade", environment={"JUDGE_KEY": judge.key})
    again.check(
        1,
        "failed it with the score 0.2",
        "judge apart: 2 calls, 24 tokens",
        "no verdict differs from what was recorded",
    )
    assert (tree.started(), judge.asked) == (played, asked + 2)
    refused = tree.run("score", name, "--regrade", environment={"JUDGE_KEY": "sk-wrong"})
    refused.check(3, "grading stopped: ", "not graded again")
    assert "sk-wrong" not in refused.out + refused.err


def test_a_grader_that_raises_is_an_error_with_its_line(tree: Tree) -> None:
    """S24, S36: it needs no judge, loses the gate, and says where."""
    tree.case("talk", RAISES)
    tree.grader("quality", QUALITY)
    tree.run("eval").check(1, "ValueError: no such room", "evals/graders/quality.py, line 8")
    (broken,) = tree.summary()["scenarios"]
    assert (broken["verdict"], broken["errors"]) == ("fail", 1)


def test_a_grader_reads_the_tree_that_it_judges_and_which_run_it_was(tree: Tree) -> None:
    """S28 and S27, items 13 and 14: without a word in evalfleet.toml."""
    tree.case("talk", JUDGED.replace("quality.politeness, pass_below: 0.7", "quality.reads"))
    tree.grader("quality", QUALITY)
    tree.run("eval").check(0)
    assert [line["graders"][0]["why"] for line in tree.lines()] == [line["run_id"] for line in tree.lines()]


# --- suites of rows -------------------------------------------------------------------------------------------------


def test_a_suite_is_played_row_by_row_and_goes_on_when_its_rows_have_moved(tree: Tree) -> None:
    """Each row has a chat of its own; the same command finishes what was stopped (S34), however the rows lie then."""
    suites = tree.root / "evals/suites"
    suites.mkdir()
    rows = [f'{{"key": "{word}", "input": "say {word}", "expected": "{word}"}}\n' for word in ("one", "two", "three")]
    wrong = '{"key": "wrong", "input": "say yes", "expected": "no"}\n'
    (suites / "words.yaml").write_text("rows: words.jsonl\nexpect:\n  - final_answer_contains: ${expected}\n")
    (suites / "words.jsonl").write_text("".join([wrong, *rows]))
    tree.run("validate", "--suite", "evals/suites/words.yaml").check(0, "4 scenarios: ready to run")
    asked = ("eval", "--suite", "evals/suites/words.yaml", "-j", "1")
    tree.run(*asked, "-x").check(1)
    before = tree.started()
    assert before < 4
    (suites / "words.jsonl").write_text("".join([*reversed(rows), wrong]))
    done = tree.run(*asked, "--json").check(1, "resuming sub_").document()
    assert {row["scenario"]: row["verdict"] for row in done["scenarios"]} == {
        "wrong": "fail", "one": "pass", "two": "pass", "three": "pass",
    }  # fmt: skip
    assert tree.started() == 4, "nothing was played twice"
    assert len({call[2] for call in tree.calls()}) == 4, "a chat for each row"
    tree.run("show").check(0, "row      evals/suites/words.jsonl:1", "words/wrong", 'does not contain "no"')
    (listed,) = json.loads(tree.run("list", "--json").check(0).out)["submissions"]
    assert listed["select"][:2] == ["--suite", "evals/suites/words.yaml"]
    (suites / "words.yaml").write_text("rows: words.jsonl\nexpect:\n  - no_error: true\n")
    tree.run("score", tree.artifact().name).check(0, "was FAIL")


def test_variables_and_packages_of_other_programs_change_nothing_and_the_agent_has_them(
    tree: Tree, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """N01, N06: another program's broker, settings and packages in the shell; the agent gets its environment whole."""
    theirs = tmp_path_factory.mktemp("theirs")
    for name in ("worker", "scheduler", "redis"):
        (theirs / f"{name}.py").write_text("raise SystemExit('a package of the user was imported')\n")
    (tree.root / "agent.py").write_text(
        "import json, os, sys\n"
        "names = json.load(sys.stdin)['message'].split()\n"
        "print(' '.join(os.environ.get(name, 'missing') for name in names))\n"
    )
    names = [name for name in HOSTILE if not name.startswith("EVALFLEET_")] + ["PYTHONPATH"]
    values = {**HOSTILE, "PYTHONPATH": str(theirs)}
    case = {
        "id": "sees",
        "user": " ".join(names),
        "expect": [{"final_answer_contains": " ".join(values[name] for name in names)}],
    }
    graded = {"id": "graded", "user": "PATH", "expect": [{"no_error": True}, {"grader": {"name": "sees.it"}}]}
    tree.configure('[graders]\nenv = ["CELERY_LOADER"]')
    tree.case("environment", json.dumps({"scenarios": [case, graded]}))
    wanted = values["CELERY_LOADER"]
    body = f"    return os.environ.get('CELERY_LOADER') == {wanted!r}\n"
    tree.grader("sees", "import os\ndef it(t, case, run):\n" + body)
    done = tree.run("eval", environment=values).check(0, "2 scenarios: 2 pass")
    assert done.err == ""
