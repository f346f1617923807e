"""The commands that look at a fleet's submission and steer it, as a person on another machine types them."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest

from evalfleet.ledger import Ledger
from scheduler.fleet import LOOK_EVERY_S
from tests.integration.fleet import ATTEMPTS, CALLS, TOKEN, Broker, Fleet, calls, make_tree, until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

BUSY_S = 5.0
LOSING = """
import json, os, sys
trial = json.load(sys.stdin)["metadata"]["evalfleet.trial"]
away = {"type": "error", "message": "gone", "code": "upstream_unavailable", "retryable": True}
print(json.dumps(away) if trial == 1 and not os.path.exists("mended") else "hi")
"""


def one_case(tree: Path, name: str, expect: str) -> None:
    (tree / f"evals/cases/{name}.yaml").write_text(
        f"scenarios:\n  - {{id: one, user: hi, trials: 3, expect: [{expect}]}}\n"
    )


def test_what_a_submission_does_is_seen_held_and_let_go_on_by_the_beginning_of_its_id(
    tmp_path: Path, private_fleet: Fleet
) -> None:
    """list, status, pause, resume, logs: from a folder that knows nothing of it, by four characters."""
    fleet = private_fleet
    tree = make_tree(tmp_path / "tree", nap=0)
    (tree / "hold").touch()
    fleet.server(tree)
    submission = fleet.submit(tree, "-j", "8")
    short = submission[4:9].lower()
    alone = json.loads(fleet.run("status", short, "--json").stdout)
    assert (alone["id"], alone["state"], alone["recorded"], alone["total"]) == (submission, "running", 0, ATTEMPTS)
    assert (alone["driver"], alone["workers"], alone["verdict"], alone["exit_code"]) == ("", 0, None, None)
    assert alone["note"] == "no worker is alive; start one with `evalfleet worker`"

    scheduler = fleet.scheduler()
    scheduler.await_line(f"driving {submission}")
    fleet.worker("worker", "--concurrency", "2")
    until(lambda: fleet.metrics("worker")["evalfleet_conversations_held"] == 2, fleet.logs)
    paused = fleet.run("pause", short)
    assert (paused.returncode, paused.stderr) == (0, "")
    assert paused.stdout.startswith(
        f"{submission} is paused: nothing more of it is begun, 2 conversations are under way"
    )
    (tree / "hold").unlink()

    def seen() -> dict[str, object]:
        answer: dict[str, object] = json.loads(fleet.run("status", submission, "--json").stdout)
        return answer

    until(lambda: (now := seen())["running"] == 0 and now["waiting"] == 0, fleet.logs)
    until(lambda: seen()["recorded"] != 0, fleet.logs)
    held = seen()
    begun = len(calls(tree))
    assert (held["state"], held["note"]) == ("paused", "paused")
    assert 0 < begun < CALLS
    assert fleet.claimed("worker") == 2, "what was in the queue is refused, too"
    listed = fleet.run("list").stdout
    assert re.search(
        rf"{submission}  paused  {held['recorded']} of {ATTEMPTS}  (.* ago|just now)  driven by \S+", listed
    )
    shown = fleet.run("status", short).stdout
    assert f"waits for   paused; `evalfleet resume {submission}` goes on\n" in shown
    assert f"recorded    {held['recorded']} of {ATTEMPTS}" in shown

    resumed = fleet.run("resume", short)
    assert (resumed.returncode, resumed.stdout) == (0, f"{submission} goes on\n"), resumed.stderr
    assert fleet.watch(submission[:14])[0] == 1
    assert len(calls(tree)) == CALLS, "what was played before is not played again"
    here = ("--tree", str(tree), "--state", str(fleet.folder / "submissions"))
    assert fleet.run("cancel", submission, *here).stdout == f"{submission} is completed already\n"
    assert "  completed  " in fleet.run("list", *here).stdout.splitlines()[0]
    until(lambda: seen()["driver"] == "", fleet.logs)
    ended = seen()
    assert (ended["state"], ended["recorded"], ended["verdict"], ended["exit_code"]) == (
        "completed",
        ATTEMPTS,
        "fail",
        1,
    )
    again = fleet.run("pause", submission)
    assert again.returncode == 2
    assert "there is nothing to pause" in again.stderr
    stored = fleet.run("resume", submission, "--json")
    assert (stored.returncode, json.loads(stored.stdout)["verdict"]) == (1, "fail"), "S34: the stored result"
    assert fleet.run("retry", submission).stdout.startswith("nothing is missing")

    def said() -> str:
        return fleet.run("logs", short).stdout

    until(lambda: "is completed: fail" in said(), said)
    told = said()
    assert f"driving {submission}: {ATTEMPTS} attempts" in told
    assert TOKEN not in told
    lines = json.loads(fleet.run("logs", submission, "--json").stdout)["lines"]
    assert {line["part"].partition(" ")[0] for line in lines} == {"scheduler"}
    for command in ("status", "pause", "retry", "logs", "watch", "resume", "cancel"):
        unknown = fleet.run(command, "sub_ZZZZ")
        assert unknown.returncode == 2, command
        assert "the fleet knows no submission 'sub_ZZZZ'" in unknown.stderr, command


def test_s14_retry_plays_what_is_missing_and_errors_get_a_new_evaluation(tmp_path: Path, private_fleet: Fleet) -> None:
    fleet = private_fleet
    tree = make_tree(tmp_path / "tree", nap=0)
    (tree / "agent.py").write_text(LOSING)
    (tree / "evals/graders/words.py").write_text("def few(t, case, run):\n    raise ValueError('broken')\n")
    for case in ("greeting", "parity"):
        (tree / f"evals/cases/{case}.yaml").unlink()
    one_case(tree, "lost", "{final_answer_contains: hi}")
    one_case(tree, "broken", "{grader: {name: words.few}}")
    fleet.server(tree)
    fleet.scheduler()
    fleet.worker("worker")
    submission = fleet.submit(tree)
    code, document = fleet.watch(submission)
    assert (code, [s["missing"] for s in document["scenarios"]]) == (1, [1, 1]), fleet.logs()
    until(lambda: fleet.run("logs", submission).stdout.count("\n") > 1, fleet.logs)
    (tree / "mended").touch()
    again = fleet.run("retry", submission)
    assert again.stdout.startswith(f"{submission} goes on with what is missing, 2 of 6 attempts"), again.stderr
    code, document = fleet.watch(submission)
    assert [(s["missing"], s["passed"], s["errors"]) for s in document["scenarios"]] == [(0, 0, 3), (0, 3, 0)]
    assert document["evaluations"][0]["status"] == "completed"

    anew = fleet.run("retry", submission, "--errors", "--tree", str(tree), "--state", str(tmp_path / "records"))
    assert anew.returncode == 0, anew.stderr
    new = anew.stdout.strip()
    assert f"{new} is a new evaluation" in anew.stderr
    assert new != submission
    code, document = fleet.watch(new)
    assert [(s["case"], s["errors"]) for s in document["scenarios"]] == [("broken", 3)]
    assert "has a trial that ended in an error" not in anew.stdout


def test_s18_cancel_ends_it_from_anywhere_and_keeps_what_is_recorded(tmp_path: Path, private_fleet: Fleet) -> None:
    fleet = private_fleet
    tree = make_tree(tmp_path / "tree", nap=0)
    (tree / "hold").touch()
    fleet.server(tree)
    fleet.scheduler()
    worker = fleet.worker("worker", "--concurrency", "2")
    submission = fleet.submit(tree)
    until(lambda: fleet.metrics("worker")["evalfleet_conversations_held"] == 2, fleet.logs)
    watcher = fleet.start("watcher", "watch", submission)
    watcher.await_line("watching")
    cancelled = fleet.run("cancel", submission[:10])
    assert (cancelled.returncode, cancelled.stdout) == (0, f"{submission} is cancelled; 0 recorded attempts are kept\n")
    assert watcher.end() == 3
    assert "it was cancelled" in watcher.log
    until(lambda: fleet.metrics("worker")["evalfleet_conversations_held"] == 0, fleet.logs)
    assert fleet.run("cancel", submission).stdout == f"{submission} is cancelled already\n"
    refused = fleet.run("retry", submission)
    assert refused.returncode == 2
    assert "was cancelled with 0 of 14 recorded" in refused.stderr
    assert worker.process.poll() is None


def test_eval_on_a_fleet_submits_and_watches(tmp_path: Path, private_fleet: Fleet, broker: Broker) -> None:
    fleet = private_fleet
    tree = make_tree(tmp_path / "tree", nap=0)
    fleet.server(tree)
    fleet.scheduler()
    fleet.worker("worker")
    del fleet.environment["EVALFLEET_BROKER_URL"]
    here = ("--tree", str(tree), "--state", str(tmp_path / "records"))
    done = fleet.run("eval", *here, "--broker", broker.url, "--json", "-o", str(tmp_path / "r.json"))
    assert done.returncode == 1, done.stderr
    assert "attempts; Ctrl-C ends the watching only" in done.stderr
    assert json.loads(done.stdout) == json.loads((tmp_path / "r.json").read_text())
    assert json.loads(done.stdout)["verdict"] == "fail"
    assert not (tmp_path / "records/server.sqlite3").exists(), "nothing is embedded"
    refused = fleet.run("eval", *here, "--broker", broker.url, "--baseline", "x", "--leave-running")
    assert refused.returncode == 2
    assert "--leave-running cannot go with --broker" in refused.stderr


def test_i6_two_schedulers_share_the_plans_and_a_killed_ones_are_taken_over_within_15_s_and_a_look(
    tmp_path: Path, private_fleet: Fleet, broker: Broker
) -> None:
    fleet = private_fleet
    tree = make_tree(tmp_path / "tree", nap=0)
    (tree / "hold").touch()
    fleet.server(tree)
    fleet.worker("worker", "--concurrency", "4")
    schedulers = {name: fleet.scheduler(name) for name in ("a", "b")}
    submission = fleet.submit(tree)
    ledger = Ledger(broker.url)

    def drivers() -> list[str]:
        return [name for name, part in schedulers.items() if f"driving {submission}" in part.log]

    until(lambda: bool(drivers()), fleet.logs)
    drives = drivers()
    assert len(drives) == 1, "each plan is driven by one"
    doomed = schedulers.pop(drives[0])
    owner = ledger.lock_owner(f"drive:{submission}")
    [(name, heir)] = schedulers.items()
    os.kill(doomed.process.pid, signal.SIGKILL)
    killed = time.monotonic()
    until(lambda: ledger.lock_owner(f"drive:{submission}") not in {owner, None}, fleet.logs)
    took = time.monotonic() - killed
    ledger.close()
    assert took <= 15 + LOOK_EVERY_S + BUSY_S, "what is promised, and what a busy machine adds"
    heir.await_line(f"driving {submission}")
    assert fleet.metrics(name)["evalfleet_submissions_driven"] == 1
    (tree / "hold").unlink()
    assert fleet.watch(submission)[0] == 1
    assert len(calls(tree)) == CALLS


def test_a_results_folder_that_is_gone_for_a_moment_stops_nothing_and_costs_nothing(
    tmp_path: Path, private_fleet: Fleet
) -> None:
    """I4: what cannot be put in evidence is not recorded, and waits. The worker that said so is good for what comes
    next (decision 026)."""
    fleet = private_fleet
    tree = make_tree(tmp_path / "tree", nap=0)
    (tree / "hold").touch()
    fleet.server(tree)
    fleet.scheduler()
    worker = fleet.worker("worker", "--concurrency", "2")
    submission = fleet.submit(tree)
    until(lambda: fleet.metrics("worker")["evalfleet_conversations_held"] == 2, fleet.logs)
    results, away = tmp_path / "results", tmp_path / "away"
    results.rename(away)
    results.write_text("a file where the share was mounted")
    (tree / "hold").unlink()
    worker.await_line(rf"aggregate {submission} after .* s: .*results")
    status = json.loads(fleet.run("status", submission, "--json").stdout)
    assert status["state"] == "running", "it is found by the books alone"
    results.unlink()
    away.rename(results)

    assert fleet.watch(submission, within=120)[0] == 1, fleet.logs()
    made = [json.loads(line)[0] for line in calls(tree)]
    assert len(set(made)) == len(made) == CALLS
    assert worker.process.poll() is None


def test_enough_failures_stop_a_submission_that_goes_on_to_the_next_one(tmp_path: Path, private_fleet: Fleet) -> None:
    """`submit -x`: nobody waits for it, so the plan carries it; nothing is paid for twice."""
    fleet = private_fleet
    tree = make_tree(tmp_path / "tree", nap=0)
    fleet.server(tree)
    fleet.scheduler()
    fleet.worker("worker", "--concurrency", "2")
    submission = fleet.submit(tree, "-j", "1", "-x")
    done = fleet.run("watch", submission)
    assert done.returncode == 1, done.stderr
    assert "stopped: 1 scenario failed (parity/fails), and --max-failures is 1" in done.stderr
    begun = len(calls(tree))
    assert 0 < begun < CALLS

    resumed = fleet.run("resume", submission)
    assert resumed.returncode == 0, resumed.stderr
    done = fleet.run("watch", submission)
    assert done.returncode == 1
    assert "and --max-failures is 1" in done.stderr, "it has it from the plan"
    assert begun < len(calls(tree)) < CALLS

    assert fleet.submit(tree, "-j", "1") == submission
    code, document = fleet.watch(submission)
    assert (code, document["verdict"]) == (1, "fail"), fleet.logs()
    assert sum(s["passed"] + s["failed"] for s in document["scenarios"]) == ATTEMPTS
    assert len(calls(tree)) == CALLS
