"""A results store that goes away in the middle of a submission: it waits, everybody is told why, and it goes on by
itself; after the stall limit it ends with nothing lost (I4, I8)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from evalfleet.artifact import attempts_index, find
from evalfleet.ledger import Ledger
from evalfleet.results import FolderResults, shared_results
from tests.integration.fleet import ATTEMPTS, CALLS, Broker, Fleet, calls, make_tree, until
from tests.relay import Relay
from tests.s3 import make_bucket, s3

__all__ = ["s3"]

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

GAUGE = 'evalfleet_worker_unreachable{what="results"}'


def test_a_bucket_that_is_away_is_waited_for_and_the_submission_goes_on_by_itself(
    tmp_path: Path, private_fleet: Fleet, s3: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet, alive = private_fleet, tmp_path / "alive"
    make_bucket("weekly", s3)
    tree = make_tree(tmp_path / "tree", nap=0)
    hold = tree / "hold"
    with Relay(urlsplit(s3["AWS_ENDPOINT_URL"]).port or 0) as road:
        fleet.environment |= {**s3, "AWS_ENDPOINT_URL": road.url, "EVALFLEET_RESULTS_URL": "s3://weekly/checks"}
        fleet.server(tree)
        scheduler = fleet.scheduler()
        worker = fleet.worker("worker", "--concurrency", "8", "--liveness-file", str(alive))
        hold.touch()
        submission = fleet.submit(tree, "-j", "4")
        until(lambda: fleet.metrics("worker")["evalfleet_conversations_held"] == 4, fleet.logs)
        assert fleet.metrics("worker")[GAUGE] == 0
        watching = fleet.start("watch", "watch", submission, "--json")
        watching.await_line("watching")
        road.down()
        hold.unlink()

        worker.await_line(r"not healthy: the results store: s3://weekly/checks/\S+: .*Could not connect")
        said = scheduler.await_line(rf"{submission}: (nothing can be recorded since \S+ UTC: s3://.*)")[1]
        watching.await_line(re.escape(said))
        until(lambda: alive.read_text().startswith("results: s3://weekly/checks/"), fleet.logs)
        assert fleet.metrics("worker")[GAUGE] == 1
        paused = f'evalfleet_paused{{submission="{submission}"}}'
        until(lambda: fleet.metrics("scheduler")[paused] == 1, fleet.logs)
        status = json.loads(fleet.run("status", submission, "--json").stdout)
        assert (status["state"], status["note"], status["artifact"]) == ("running", said, None)
        assert re.fullmatch(r"worker \S+ does not reach the results: s3://.*", status["unreachable"][0])
        at_most = 2 * 4
        until(lambda: json.loads(fleet.run("status", submission, "--json").stdout)["running"] == 0, fleet.logs)
        waiting = json.loads(fleet.run("status", submission, "--json").stdout)["waiting"]
        assert at_most <= waiting < ATTEMPTS, "what is judged waits, and no more is begun than may wait"

        road.up()
        assert watching.end(within=120) == 1, fleet.logs()
        worker.await_line(r"healthy again: the results store, after \d+ s")
        until(lambda: alive.read_text() == "", fleet.logs)
        assert fleet.metrics("worker")[GAUGE] == 0
        document = json.loads(watching.log[watching.log.index("{") :])
        assert [e["status"] for e in document["evaluations"]] == ["completed", "completed"]
        assert sum(s["passed"] + s["failed"] for s in document["scenarios"]) == ATTEMPTS
        assert len(calls(tree)) == CALLS, "nothing is paid twice"
        assert worker.log.count("not healthy") == scheduler.log.count("nothing can be recorded") == 1, "it is said once"
        assert "Traceback" not in fleet.logs()

        for name, value in fleet.environment.items():
            if name.startswith("AWS_"):
                monkeypatch.setenv(name, value)
        store = shared_results("s3://weekly/checks")
        artifact = find(store, submission)
        assert artifact is not None
        assert sum(1 for entry in attempts_index(store, artifact).values() if entry.verdict) == ATTEMPTS


def test_i8_a_folder_that_stays_unwritable_ends_the_submission_and_a_resume_pays_for_nothing_again(
    tmp_path: Path, private_fleet: Fleet, broker: Broker
) -> None:
    """The folder of the evidence is a file for a while: nobody can write there, root no more than others."""
    fleet = private_fleet
    fleet.environment["EVALFLEET_STALL"] = "5"
    tree = make_tree(tmp_path / "tree", nap=0)
    hold = tree / "hold"
    fleet.server(tree)
    scheduler = fleet.scheduler()
    worker = fleet.worker("worker", "--concurrency", "8")
    hold.touch()
    submission = fleet.submit(tree, "-j", "4")
    until(lambda: fleet.metrics("worker")["evalfleet_conversations_held"] == 4, fleet.logs)
    store = FolderResults(tmp_path / "results")
    artifact = find(store, submission)
    assert artifact is not None
    folder = store.root / artifact / "trials"
    kept = folder.rename(store.root / "kept")
    folder.touch()
    hold.unlink()

    done = fleet.run("watch", submission)
    assert done.returncode == 3, done.stderr
    assert re.search(r"stopped: nothing could be recorded for \d+ s: results folder .*Not a directory", done.stderr)
    paid = calls(tree)
    ledger = Ledger(broker.url)
    judged = len(ledger.records(submission))
    assert judged > 0
    scheduler.await_line(rf"ERROR .*{submission}: results folder .*Not a directory")

    folder.unlink()
    kept.rename(folder)
    scheduler.await_line(rf"{submission} is stopped \(nothing could be recorded")
    assert len(ledger.records(submission)) == judged, "what was judged waits for the resume"
    ledger.close()
    assert fleet.run("resume", submission).returncode == 0
    code, document = fleet.watch(submission)
    assert (code, document["verdict"]) == (1, "fail"), fleet.logs()
    assert sum(s["passed"] + s["failed"] for s in document["scenarios"]) == ATTEMPTS
    assert calls(tree)[: len(paid)] == paid
    assert len(calls(tree)) == CALLS, "nothing is paid twice"
    assert worker.log.count("not healthy") == 1
    assert "Traceback" not in fleet.logs()
