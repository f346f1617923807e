"""`score --record` on what a fleet wrote (S32): results in a shared folder, the server a process of its own."""

from __future__ import annotations

import json
import signal
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from evalfleet.artifact import find, read_plan
from evalfleet.results import shared_results
from tests.database import recorded_attempts
from tests.integration.fleet import CALLS, TOKEN, Fleet, calls, make_tree, until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


def ids(document: dict[str, Any]) -> set[str]:
    return {str(evaluation["id"]) for evaluation in document["evaluations"]}


def test_a_fixed_check_is_recorded_on_the_fleets_server_with_the_runs_of_then(
    tmp_path: Path, private_fleet: Fleet
) -> None:
    fleet = private_fleet
    tree = make_tree(tmp_path / "tree", nap=0)
    fleet.server(tree)
    scheduler = fleet.scheduler()
    fleet.worker("worker")
    submission = fleet.submit(tree)
    code, then = fleet.watch(submission)
    assert code == 1, fleet.logs()
    store = shared_results(str(tmp_path / "results"))
    artifact = find(store, submission)
    assert artifact is not None
    before = recorded_attempts(tmp_path / "state")
    assert set(before) == ids(then)

    case = tree / "evals/cases/parity.yaml"
    case.write_text(case.read_text().replace("contains: neither", "contains: number"))
    words = ("score", str(tmp_path / "results" / artifact), "--tree", str(tree), "--record", "--json")
    address = fleet.environment.pop("EVALFLEET_BASE_URL")
    alone = fleet.run(*words)
    assert alone.returncode == 2, "what the fleet played is not on this tree's own server"
    assert "is not on this tree's own server" in alone.stderr
    token = fleet.environment.pop("EVALFLEET_TOKEN")
    at = ("--state", str(tmp_path / "submissions"))  # where `submit` noted whose it is
    keyless = fleet.run(*words, *at)
    assert (keyless.returncode, "EVALFLEET_TOKEN is not set" in keyless.stderr) == (2, True), keyless.stderr
    assert recorded_attempts(tmp_path / "state") == before

    fleet.environment["EVALFLEET_TOKEN"] = token
    done = fleet.run(*words, *at)
    assert done.returncode == 1, done.stderr
    now = json.loads(done.stdout)
    assert [(c["scenario"], c["was"], c["now"]) for c in now["changes"]["scenarios"]] == [("fails", "fail", "pass")]
    assert {evaluation["status"] for evaluation in now["evaluations"]} == {"completed"}
    assert not ids(now) & ids(then)
    after = recorded_attempts(tmp_path / "state")
    assert set(after) == ids(then) | ids(now)
    was = sorted(attempt for one in ids(then) for attempt in after[one])
    anew = sorted(attempt for one in ids(now) for attempt in after[one])
    assert [attempt[:3] for attempt in was] == [attempt[:3] for attempt in anew], "the same runs"
    assert [(a[0], b[3]) for a, b in zip(was, anew, strict=True) if a[3] != b[3]] == [("parity/fails", "passed")] * 2
    assert len(calls(tree)) == CALLS, "no agent has run"

    written = now["artifact"].rpartition("/")[2]
    assert read_plan(store, written).rescored_from == submission
    fleet.environment["EVALFLEET_BASE_URL"] = address
    twice = fleet.run(*words)  # by the environment's address now: the same evaluations, nothing new
    assert ids(json.loads(twice.stdout)) == ids(now), twice.stderr
    assert recorded_attempts(tmp_path / "state") == after
    again = fleet.run("show", str(tmp_path / "results" / written), "--tree", str(tree), "parity/fails")
    assert again.returncode == 0, again.stderr
    assert scheduler.process.poll() is None
    assert TOKEN not in fleet.logs() + alone.stderr + done.stderr


WORSE = """
import json, os, sys, time
turn = json.load(sys.stdin)
while os.path.exists("hold"):
    time.sleep(0.05)
even = turn["metadata"]["evalfleet.trial"] % 2 == 0
print(f"even {turn['message']} after {len(turn['history'])}, neither" if even else "broken")
"""


def test_s31_a_submission_keeps_its_baseline_whoever_drives_and_watches_it(
    tmp_path: Path, private_fleet: Fleet
) -> None:
    """S34: the plan carries it. The scheduler that took it up is killed, and the watcher names no baseline."""
    fleet = private_fleet
    tree = make_tree(tmp_path / "tree", nap=0)
    first_server, _ = fleet.server(tree), fleet.scheduler("doomed")
    first_worker = fleet.worker("first")
    before = fleet.submit(tree)
    _, then = fleet.watch(before)
    for part in (first_worker, first_server):
        part.send(signal.SIGTERM)
        part.end()
    (tree / "agent.py").write_text(WORSE)
    (tree / "hold").touch()
    fleet.server(tree)
    worker = fleet.worker("second")
    unknown = fleet.run("submit", "--tree", str(tree), "--baseline", "f" * 40, "--state", str(tmp_path / "submissions"))
    assert unknown.returncode == 2
    assert "holds no complete result of commit ffffffffffff" in unknown.stderr

    submission = fleet.submit(tree, "--baseline", then["commit"][:12], "--fail-on-regression")
    assert submission != before
    until(lambda: fleet.metrics("second")["evalfleet_conversations_held"] > 0, fleet.logs)
    for part in fleet.parts:
        if part.name == "doomed":
            part.kill()
    fleet.scheduler()
    (tree / "hold").unlink()
    code, now = fleet.watch(submission, "--allow-flaky")
    assert code == 1, "weaker than the baseline, which nothing else of it loses the gate for"
    assert now["comparison"]["baseline"] == {"artifact": then["artifact"], "commit": then["commit"]}
    assert {move["key"]: move["move"] for move in now["comparison"]["moves"]} == {
        "greeting/answers": "weaker",
        "greeting/remembers": "weaker",
        "parity/fails": "improved",
    }
    store = shared_results(str(tmp_path / "results"))
    artifact = find(store, submission)
    assert artifact is not None
    until(lambda: store.exists(f"{artifact}/summary.json"), fleet.logs)
    assert json.loads(store.read_bytes(f"{artifact}/summary.json"))["comparison"] == now["comparison"]
    for evaluation in now["evaluations"]:
        request = urllib.request.Request(
            f"{fleet.environment['EVALFLEET_BASE_URL']}/v2/evaluations/{evaluation['id']}",
            headers={"Authorization": f"Bearer {TOKEN}"},
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            document = json.load(answer)
        assert document["baseline_version"]["commit"] == then["commit"]
        assert document["comparison"] == {
            "version": document["baseline_version"],
            "improved": 1 if evaluation["k"] == 2 else 0,
            "regressed": 0,
        }

    other = fleet.run("watch", submission, "--baseline", "nothing-of-that-name")
    assert (other.returncode, "neither a result nor a commit" in other.stderr) == (2, True)
    itself = fleet.run("watch", submission, "--allow-flaky", "--baseline", str(tmp_path / "results" / artifact))
    assert (itself.returncode, worker.process.poll()) == (0, None), "another baseline than its own"
