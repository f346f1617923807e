"""What queues on Redis are known to do wrong, done to a fleet: D01, D04, D05, D10 (D03, D08: `test_fleet`)."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from evalfleet.ledger import Ledger
from evalfleet.plan import Attempt, Conversation
from evalfleet.settings import Broker as BrokerSettings
from scheduler.publisher import CeleryPublisher
from tests.integration.fleet import Broker, Fleet, Part, until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

AGENT = """#!/bin/sh
# One line for each call; "long" goes on until it is let go.
read turn
said=$(printf %s "$turn" | sed 's/.*"message": "\\([^"]*\\)".*/\\1/')
echo "$said" >> calls.txt
case "$said" in long*) while ! [ -e go ]; do sleep 0.1; done;; esac
echo "said $said"
"""


def tree_of(root: Path, *cases: tuple[str, str, int]) -> Path:
    """A tree of cases (name, message, trials); each wants its own message back."""
    (root / "evals/cases").mkdir(parents=True)
    (root / "agent.sh").write_text(AGENT)
    (root / "agent.sh").chmod(0o755)
    for name, message, trials in cases:
        expect = [{"final_answer_contains": f"said {message}"}]
        scenario = {"id": "s", "user": message, "trials": trials, "expect": expect}
        (root / f"evals/cases/{name}.yaml").write_text(json.dumps({"scenarios": [scenario]}))
    (root / "evalfleet.toml").write_text(
        '[harness]\nname = "shell"\nfiles = ["agent.sh", "evalfleet.toml"]\n[harness.command]\nargv = ["./agent.sh"]\n'
    )
    return root


def calls(tree: Path) -> list[str]:
    file = tree / "calls.txt"
    return file.read_text().splitlines() if file.exists() else []


@pytest.fixture
def ledger(broker: Broker) -> Iterator[Ledger]:
    opened = Ledger(broker.url)
    yield opened
    opened.close()


def test_d01_a_message_that_comes_again_while_its_conversation_runs_changes_nothing(
    tmp_path: Path, private_fleet: Fleet, broker: Broker, ledger: Ledger
) -> None:
    """As a visibility timeout does it that passes while a trial runs: to the worker that runs it, and to others. And
    nothing is kept of a message that is taken, so no transport brings it again."""
    fleet = private_fleet
    tree = tree_of(tmp_path / "tree", ("one", "long", 1))
    fleet.server(tree)
    fleet.scheduler()
    submission = fleet.submit(tree)
    for name in ("a", "b"):
        fleet.worker(name, "--concurrency", "2")
    until(lambda: calls(tree) == ["long"], fleet.logs)
    assert not ledger.redis.exists("ef:unacked", "ef:unacked_index")
    publisher = CeleryPublisher(BrokerSettings.parse(broker.url), ledger)
    publisher.run(submission, [Conversation(0, 0)] * 8)

    def refused() -> float:
        seen = [fleet.metrics(name) for name in ("a", "b")]
        answers = [f'evalfleet_claims_total{{answer="{word}"}}' for word in ("duplicate", "own_duplicate")]
        return sum(metrics.get(answer, 0.0) for metrics in seen for answer in answers)

    until(lambda: refused() >= 8, fleet.logs)
    publisher.close()
    (tree / "go").touch()
    code, document = fleet.watch(submission)
    assert (code, document["scenarios"][0]["passed"]) == (0, 1)
    assert calls(tree) == ["long"]


def test_d04_a_long_conversation_holds_up_nobody_and_what_waits_obeys_a_stop(
    tmp_path: Path, private_fleet: Fleet, broker: Broker, ledger: Ledger
) -> None:
    """Two workers of one place each: the free one plays the nine short ones, whatever the other one has at hand."""
    fleet = private_fleet
    tree = tree_of(tmp_path / "tree", ("a", "long", 1), *((f"b{n}", f"short {n}", 1) for n in range(9)))
    fleet.server(tree)
    fleet.scheduler()
    for name in ("a", "b"):
        fleet.worker(name, "--concurrency", "1")
    submission = fleet.submit(tree, "-j", "10")
    until(lambda: ledger.progress(submission).recorded == 9, fleet.logs)
    assert len(calls(tree)) == 10
    (tree / "go").touch()
    assert fleet.watch(submission)[0] == 0

    (tree / "go").unlink()
    (tree / "calls.txt").unlink()
    again = fleet.submit(tree_of(tmp_path / "more", ("c", "long more", 12)), "-j", "10")
    until(lambda: calls(tree) == ["long more"] * 2, fleet.logs)
    publisher = CeleryPublisher(BrokerSettings.parse(broker.url), ledger)
    publisher.run(again, [Conversation(0, trial) for trial in range(12)])
    publisher.close()
    ledger.end(again, "stopped", "enough")
    until(lambda: not ledger.submissions(), fleet.logs)
    until(lambda: ledger.queue_length("run") == 0, fleet.logs)
    assert calls(tree) == ["long more"] * 2, "what waited in the queue was dropped"


def test_d04_a_full_worker_leaves_conversations_to_others_and_goes_on_grading(
    tmp_path: Path, private_fleet: Fleet, broker: Broker, ledger: Ledger
) -> None:
    fleet = private_fleet
    tree = tree_of(tmp_path / "tree", ("one", "long", 4))
    fleet.server(tree)
    fleet.scheduler()
    fleet.worker("full", "--concurrency", "2")
    submission = fleet.submit(tree, "-j", "4")
    until(lambda: calls(tree) == ["long"] * 2 and ledger.queue_length("run") > 0, fleet.logs)
    publisher = CeleryPublisher(BrokerSettings.parse(broker.url), ledger)
    publisher.grade(submission, Attempt(0, 0, 3))  # there is nothing to judge: it is looked at, and dropped
    publisher.close()
    until(lambda: ledger.queue_length("grade") == 0, fleet.logs)
    assert ledger.queue_length("run") == 2, "they wait where another worker can take them"
    fleet.worker("free", "--concurrency", "2")
    until(lambda: calls(tree) == ["long"] * 4, fleet.logs)
    (tree / "go").touch()
    assert fleet.watch(submission)[0] == 0
    assert [fleet.claimed(name) for name in ("full", "free")] == [2, 2]


def test_d05_a_conversation_that_kills_its_workers_is_given_up_by_name_and_all_others_finish(
    tmp_path: Path, private_fleet: Fleet, ledger: Ledger
) -> None:
    fleet = private_fleet
    fleet.environment["EVALFLEET_LOSSES"] = "3"
    tree = tree_of(tmp_path / "tree", ("poison", "long", 1), *((f"b{n}", f"short {n}", 2) for n in range(6)))
    fleet.server(tree)
    fleet.scheduler()
    alive: dict[str, Part] = {}
    begun = 0

    def replace_the_dead() -> None:
        nonlocal begun
        for name in [name for name, part in alive.items() if part.process.poll() is not None]:
            del alive[name]
        while len(alive) < 2:
            begun += 1
            alive[f"w{begun}"] = fleet.start(f"w{begun}", "worker", "--concurrency", "1")

    replace_the_dead()
    submission = fleet.submit(tree, "-j", "4")
    killed = 0

    def ended() -> bool:
        nonlocal killed
        owner = ledger.snapshot(submission).claims.get(str(Conversation(6, 0)))
        pid = next((int(w["pid"]) for w in ledger.workers() if w["incarnation"] == owner), None)
        if owner is not None and pid is not None:
            os.kill(pid, signal.SIGKILL)
            ledger.declare_dead(owner)  # as its supervisor does; its heartbeat would run out within 12 s
            killed += 1
        replace_the_dead()
        return not ledger.submissions()

    until(ended, fleet.logs, within=150)
    code, document = fleet.watch(submission)
    assert killed == 3
    assert code == 3
    missing = [s for s in document["scenarios"] if s["missing"]]
    assert [(s["case"], s["first_failure"]) for s in missing] == [("poison", "3 workers died while they worked on it")]
    assert all(s["passed"] == s["trials"] for s in document["scenarios"] if s not in missing)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts descriptors in /proc")
def test_d10_after_many_conversations_a_worker_has_as_many_sockets_as_after_few(
    tmp_path: Path, private_fleet: Fleet, ledger: Ledger
) -> None:
    fleet = private_fleet
    tree = tree_of(tmp_path / "tree", *((f"c{n:02}", f"message {n}", 10) for n in range(20)))
    fleet.server(tree)
    fleet.scheduler()
    worker = fleet.worker("worker", "--concurrency", "4")
    folder = Path(f"/proc/{worker.process.pid}/fd")

    def sockets() -> int:
        found = 0
        for entry in folder.iterdir():
            try:
                found += os.readlink(entry).startswith("socket:")
            except FileNotFoundError:
                continue
        return found

    submission = fleet.submit(tree, "-j", "4")
    until(lambda: ledger.progress(submission).recorded >= 40, fleet.logs)
    early = sockets()
    until(lambda: not ledger.submissions(), fleet.logs, within=150)
    assert sockets() <= early + 8, "160 conversations later: its pools are as large as what it does at once"
    code, document = fleet.watch(submission)
    assert (code, [s["passed"] for s in document["scenarios"]]) == (0, [10] * 20), "no answer crossed over to another"
    assert not [word for word in ("Event loop is closed", "Traceback", "never retrieved") if word in worker.log]
