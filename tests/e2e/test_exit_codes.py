"""B13: the exit code says what happened (S36), whoever reads stdout, and a refusal says what to do."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.e2e.conftest import Tree

pytestmark = pytest.mark.e2e

ENDINGS = """
scenarios:
  - {id: passes, user: say hello, expect: [{final_answer_contains: hello}]}
  - {id: fails, user: say hello, expect: [{final_answer_contains: goodbye}]}
  - {id: flaky, user: only 0 hello, trials: 2, expect: [{final_answer_contains: hello}]}
  - {id: late, user: for ever, timeout: 1s, expect: [{final_answer_contains: hello}]}
  - {id: malformed, user: say hello, expect: [{grader: {name: graders.says_one}}, {no_error: true}]}
"""

ONE = "scenarios:\n  - {id: ok, user: say hello, expect: [{final_answer_contains: hello}]}\n"


@pytest.fixture
def endings(tree: Tree) -> Tree:
    """Each scenario in a conversation of its own, so that none is context of another."""
    for scenario in ENDINGS.split("\n")[2:-1]:
        name = scenario.split("{id: ")[1].split(",")[0]
        tree.case(name, f"scenarios:\n{scenario}\n")
    tree.grader("graders", "def says_one(t, case, run):\n    return 1\n")
    return tree


def test_b13_all_pass_is_0(endings: Tree) -> None:
    """Also in a folder with modules of our names: `worker` and `scheduler` are generic, and a user's own stay his."""
    for name in ("worker", "scheduler", "celery"):
        (endings.root / f"{name}.py").write_text("raise SystemExit('the user\\'s own')\n")
    done = endings.run("eval", "passes").check(0, "PASS", "1 scenario: 1 pass")
    assert endings.artifact().name in done.out.splitlines()[-1]
    assert done.err == ""  # nothing but progress belongs there, and this was over too soon for any


def test_b13_flaky_is_1_unless_it_may_be(endings: Tree) -> None:
    """`resume` of the finished submission runs nothing and exits by the same gate (S34, S36)."""
    done = endings.run("eval", "passes", "flaky").check(1, "FLAKY  1/2", "trial 2: the final answer does not contain")
    assert "pass rate 0.67: 2 of 3 attempts passed (too few files for an interval)" in done.out
    calls = endings.started()
    submission = endings.summary()["submission"]
    endings.run("resume", submission).check(1, "completed", "nothing was run", "FLAKY")
    endings.run("resume", submission, "--allow-flaky").check(0, "1 pass, 1 flaky")
    endings.run("score", str(endings.artifact()), "--allow-flaky").check(0)
    assert endings.started() == calls


def test_b13_errors_are_1_also_where_flaky_is_allowed(endings: Tree) -> None:
    done = endings.run("eval", "late", "malformed", "--allow-flaky").check(1, "2 attempts ended in an error")
    assert "timed out" in done.out
    assert "graders.says_one: answered 1; wanted True" in done.out


def test_b13_errors_are_told_apart_and_flags_come_from_the_environment(endings: Tree) -> None:
    """Also: `--json` as the issue has it is one object on stdout; every flag can be a variable."""
    environment = {"EVALFLEET_JSON": "1", "EVALFLEET_CONCURRENCY": "3", "EVALFLEET_ALLOW_FLAKY": "true"}
    done = endings.run("eval", environment=environment).check(1)
    document = done.document()
    assert list(document) == [
        "verdict",
        "exit_code",
        "submission",
        "artifact",
        "commit",
        "spend",
        "pass_rate",
        "evaluations",
        "graders",
        "scenarios",
        "agent_notes",
    ]
    assert (document["verdict"], document["exit_code"]) == ("fail", 1)
    assert document["submission"].startswith("sub_")
    assert (endings.root / document["artifact"] / "summary.json").is_file()
    assert len(bytes.fromhex(document["commit"])) == 20
    assert [(e["k"], e["status"]) for e in document["evaluations"]] == [(1, "completed"), (2, "completed")]
    rates = ["id", "k", "status", "pass_at_1", "pass_hat_k"]
    counts = ["judge_score", "scenarios", "recorded", "missing", "rates"]
    assert all(list(e) == [*rates, *counts] for e in document["evaluations"])
    assert [(e["pass_at_1"], e["pass_hat_k"]) for e in document["evaluations"]] == [(0.25, 0.25), (0.5, 0.0)]
    keys = ["case", "scenario", "verdict", "trials", "passed", "failed", "errors", "missing", "unrecorded"]
    keys += ["passed_with_failed_turn", "repeated_tries", "first_failure", "duration_ms", "quarantine"]
    assert all(list(s) == keys for s in document["scenarios"])
    rate = document["pass_rate"]
    assert (rate["passed"], rate["recorded"], rate["value"], rate["n"], rate["missing"]) == (2, 6, 2 / 6, 5, 0)
    assert rate["interval"] is not None, "five files are enough"
    found = {s["case"]: (s["verdict"], s["passed"], s["failed"], s["errors"]) for s in document["scenarios"]}
    assert found == {
        "passes": ("pass", 1, 0, 0),
        "fails": ("fail", 0, 1, 0),
        "flaky": ("flaky", 1, 1, 0),
        "late": ("fail", 0, 0, 1),
        "malformed": ("fail", 0, 0, 1),
    }
    said = {s["case"]: s["first_failure"] for s in document["scenarios"]}
    assert said["passes"] is None
    assert "says_one" in said["malformed"]
    assert all(isinstance(s["duration_ms"], int) for s in document["scenarios"])
    assert json.loads((endings.artifact() / "suite.json").read_bytes())["concurrency"] == 3


@pytest.mark.parametrize("how", ["a reader that went away", "no stdout at all"])
def test_b13_a_closed_stdout_changes_nothing(endings: Tree, how: str) -> None:
    """S36; `evalfleet eval | head -0`, and `>&-`."""
    command = [sys.executable, "-P", "-m", "scheduler.cli", "eval", "fails"]
    environment = {**os.environ, "HOME": str(endings.root)}
    if how == "no stdout at all":
        command = ["/bin/sh", "-c", 'exec "$@" >&-', "sh", *command]
        done = subprocess.run(command, cwd=endings.root, env=environment, timeout=90, stderr=subprocess.PIPE)
    else:
        reading, writing = os.pipe()
        os.close(reading)
        done = subprocess.run(
            command, cwd=endings.root, env=environment, timeout=90, stdout=writing, stderr=subprocess.PIPE
        )
        os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")
    assert endings.summary()["exit_code"] == 1


# --- what is refused before anything runs ------------------------------------------------------------------------


def nothing(tree: Tree) -> None:
    pass


def no_evals(tree: Tree) -> None:
    (tree.root / "evals/cases/one.yaml").unlink()
    (tree.root / "evals/cases").rmdir()
    (tree.root / "evals").rmdir()
    (tree.root / "evalfleet.toml").unlink()


def no_cases(tree: Tree) -> None:
    (tree.root / "evals/cases/one.yaml").unlink()


def bad_yaml(tree: Tree) -> None:
    tree.case("one", "scenarios:\n  - id: [x\n")


def unknown_key(tree: Tree) -> None:
    tree.case("one", ONE.replace("user:", "usr:"))


def unknown_setting(tree: Tree) -> None:
    tree.configure("[eval]\nconcurency = 3\n")


def no_agent(tree: Tree) -> None:
    tree.configure(argv=["no-such-agent"])


def file_in_the_way(tree: Tree) -> None:
    (tree.root / "evals/results").write_text("not a folder")


@pytest.mark.parametrize(
    ("prepare", "words", "said"),
    [
        pytest.param(no_evals, [], "no evals/ and no evalfleet.toml in", id="no evals"),
        pytest.param(no_cases, [], "holds no case", id="no cases"),
        pytest.param(nothing, ["onne"], "did you mean", id="a case name that matches nothing"),
        pytest.param(nothing, ["one/okk"], "did you mean", id="a scenario that matches nothing"),
        pytest.param(bad_yaml, [], "evals/cases/one.yaml:3:1: not YAML", id="bad YAML"),
        pytest.param(unknown_key, [], "evals/cases/one.yaml:2:14: unknown key", id="an unknown key"),
        pytest.param(unknown_setting, [], "evalfleet.toml:2", id="an unknown setting"),
        pytest.param(no_agent, [], "no-such-agent is not on PATH", id="no agent"),
        pytest.param(file_in_the_way, [], "evals/results: a file stands in the way", id="results not writable"),
        pytest.param(nothing, ["--results", "/proc/evalfleet"], "cannot be written to /proc", id="results on /proc"),
        pytest.param(nothing, ["--state", "/proc/evalfleet"], "--state DIR takes another", id="state on /proc"),
        pytest.param(nothing, ["--tree", "/no/such/tree"], "/no/such/tree does not exist", id="no tree"),
        pytest.param(nothing, ["--scenarios", "no.yaml"], "no.yaml: No such file", id="no drafts"),
        pytest.param(nothing, ["--target"], "[target]", id="no target"),
        pytest.param(nothing, ["-j", "0"], "whole number from 1, not 0", id="concurrency 0 (B18)"),
        pytest.param(nothing, ["-j", "-1"], "whole number from 1, not -1", id="concurrency -1 (B18)"),
        pytest.param(nothing, ["-j", "abc"], "'abc'", id="concurrency abc (B18)"),
        pytest.param(nothing, ["-k", "0"], "from 1 to 100, not 0", id="trials 0"),
        pytest.param(nothing, ["--commit", "HEAD"], "40 hex digits", id="a commit that is none"),
        pytest.param(nothing, ["--nope"], "--nope", id="an unknown flag"),
    ],
)
def test_b13_what_cannot_run_is_refused_in_words(tree: Tree, prepare: object, words: list[str], said: str) -> None:
    tree.case("one", ONE)
    assert callable(prepare)
    prepare(tree)
    done = tree.run("eval", *words).check(2, said)
    assert done.out == ""
    assert tree.started() == 0
    results = tree.root / "evals/results"
    assert not results.is_dir() or not list(results.iterdir())


def test_b13_an_invalid_variable_is_named(tree: Tree) -> None:
    tree.case("one", ONE)
    tree.run("eval", environment={"EVALFLEET_CONCURRENCY": "many"}).check(2, "EVALFLEET_CONCURRENCY", "'many'")


def test_a_second_evalfleet_is_told_who_is_at_work(tree: Tree) -> None:
    """The issue's bad input; `--state` gives the second one its own stack, and both end well."""
    tree.case("slow", "scenarios:\n  - {id: ok, user: until go hello, expect: [{final_answer_contains: hello}]}\n")
    tree.case("one", ONE)
    with tree.start("eval", "slow") as first:
        first.await_true(lambda: tree.started() > 0, "the agent is called")
        tree.run("eval", "one").check(2, "another evalfleet is at work in this tree", f"pid {first.pid}", "--state DIR")
        tree.run("eval", "one", "--state", str(tree.root / "other")).check(0, "PASS")
        assert first.running
        (tree.root / "go").touch()
        first.wait().check(0)


def test_b13_a_server_whose_port_is_taken_says_so(tree: Tree) -> None:
    tree.case("one", ONE)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        token = {"EVALFLEET_TOKEN": "token-of-the-e2e-tests"}
        tree.run("server", "--port", str(port), environment=token).check(2, f"port {port}", "already in use")


# --- a target ----------------------------------------------------------------------------------------------------

KEY = "sk-this-is-a-secret"


@pytest.fixture
def refusing() -> Iterator[str]:
    """A platform that knows no key."""

    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            problem = {"status": 401, "title": "Unauthorized", "code": "unauthorized", "detail": "the key was revoked"}
            body = json.dumps({"type": "https://api.splox.com/problems/unauthorized", **problem}).encode()
            self.send_response(401)
            self.send_header("Content-Type", "application/problem+json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def with_target(tree: Tree, url: str) -> None:
    tree.case("one", ONE)
    tree.configure(f'[target]\nbase_url = "{url}"\nharness_id = "h_01KH0000000000000000000000"\n')


def test_b13_a_target_needs_a_key(tree: Tree) -> None:
    with_target(tree, "http://127.0.0.1:9")
    tree.run("eval", "--target").check(2, "SPLOX_API_KEY is not set")


def test_b13_a_target_that_refuses_the_key_is_the_operators(tree: Tree, refusing: str) -> None:
    with_target(tree, refusing)
    done = tree.run("eval", "--target", environment={"SPLOX_API_KEY": KEY})
    done.check(2, refusing, "refuses SPLOX_API_KEY", "the key was revoked")
    assert KEY not in done.err + done.out
    assert not (tree.root / "evals/results").exists()


def test_b13_a_target_that_is_not_there_is_named_soon(tree: Tree, free_port: int) -> None:
    """Exit 3: the same command may do it later."""
    with_target(tree, f"http://127.0.0.1:{free_port}")
    done = tree.run("eval", "--target", environment={"SPLOX_API_KEY": KEY})
    done.check(3, f"http://127.0.0.1:{free_port} is not there")
    assert KEY not in done.err
    assert not (tree.root / "evals/results").exists()
