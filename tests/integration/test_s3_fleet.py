"""A whole fleet whose results are in an S3 bucket (I4): submit, workers, watch, what an aggregator leaves that is
killed between evidence and record, and that no key of the bucket is anywhere but in the environment."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from evalfleet.artifact import append_segment, attempts_index, find, open_artifact, read_plan
from evalfleet.evidence import segments_to_read
from evalfleet.results import shared_results
from tests.integration.fleet import ATTEMPTS, CALLS, Fleet, Part, calls, make_tree, results_of, until
from tests.s3 import CREDENTIALS, make_bucket, s3

__all__ = ["s3"]

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

NONE_OF_IT = {**dict.fromkeys(CREDENTIALS, ""), "EVALFLEET_RESULTS_URL": "", "AWS_ENDPOINT_URL": ""}
DIES_BEFORE_IT_RECORDS = """
import os, signal, sys
import worker.aggregate
worker.aggregate.Aggregator._record = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
from worker.app import main
sys.exit(main(["--queues", "aggregate"]))
"""


def test_a_fleet_keeps_its_results_in_a_bucket_though_an_aggregator_dies_between_evidence_and_record(
    tmp_path: Path, private_fleet: Fleet, s3: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = private_fleet
    make_bucket("nightly", s3)
    url = "s3://nightly/checks/main"
    fleet.environment |= {**s3, "EVALFLEET_RESULTS_URL": url}
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    store = shared_results(url)
    tree = make_tree(tmp_path / "tree", nap=0)
    fleet.server(tree)
    fleet.scheduler()
    submission = fleet.submit(tree, "-j", "4")
    artifact = find(store, submission)
    assert artifact is not None
    for queue in ("run", "grade"):
        fleet.worker(queue, "--queues", queue, env=NONE_OF_IT)
    doomed = Part("doomed", [sys.executable, "-P", "-c", DIES_BEFORE_IT_RECORDS], fleet.environment, fleet.folder)
    fleet.parts.append(doomed)
    until(lambda: doomed.process.poll() is not None, fleet.logs)
    assert doomed.process.returncode == -9
    written = attempts_index(store, artifact)
    assert written, "evidence before record"
    assert sorted(segments_to_read(store, artifact)) == [1]

    fleet.worker("aggregate", "--queues", "aggregate")
    code, document = fleet.watch(submission)
    assert (code, document["verdict"]) == (1, "fail"), fleet.logs()
    assert document["artifact"] == f"{url}/{artifact}"
    assert [e["status"] for e in document["evaluations"]] == ["completed", "completed"]
    assert sum(s["passed"] + s["failed"] for s in document["scenarios"]) == ATTEMPTS
    assert len(calls(tree)) == CALLS, "nothing is paid twice"
    kept = {key: entry for key, entry in attempts_index(store, artifact).items() if key in written}
    assert kept == written, "the dead one's lines are the attempts"
    result = open_artifact(store, artifact)
    assert result.summary is not None
    assert len(list(result.lines())) >= ATTEMPTS
    assert append_segment(store, artifact, []) == 0

    address = f"{url}/{artifact}"
    at = ("--tree", str(tree))
    shown = fleet.run("show", address, *at, "parity/fails")
    assert shown.returncode == 0, shown.stderr
    assert address in shown.stdout
    assert "final_answer_contains" in shown.stdout, "the transcript of what failed"
    scored = fleet.run("score", address, *at, "--json")
    assert scored.returncode == 1, scored.stderr
    assert results_of(json.loads(scored.stdout)) == results_of(document)
    traced = fleet.run("hook-trace", "parity/fails", "--result", address, *at)
    assert (traced.returncode, traced.stdout) == (0, "no hook was reached\n"), traced.stderr
    report = tmp_path / "report.json"
    assert fleet.run("watch", submission, "-o", str(report)).returncode == 1
    assert json.loads(report.read_text())["artifact"] == address
    refused = fleet.run("score", address, *at, "--record")
    assert refused.returncode == 2
    assert f"copy {address} into evals/results first" in refused.stderr

    again = fleet.submit(tree, "-j", "4")  # it is finished: the same command asks anew
    assert again != submission
    assert fleet.watch(again)[0] == 1
    newer = find(store, again)
    compared = fleet.run("compare", address, f"{url}/{newer}", *at, "--json")
    assert compared.returncode == 0, compared.stderr
    assert json.loads(compared.stdout)["paired"] == len(document["scenarios"])
    said = fleet.logs() + read_plan(store, artifact).dumps().decode()
    assert CREDENTIALS["AWS_SECRET_ACCESS_KEY"] not in said
    assert "Traceback" not in fleet.logs()


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"EVALFLEET_RESULTS_URL": "s3://absent/x"}, "there is no bucket absent"),
        ({"EVALFLEET_RESULTS_URL": "s3://forbidden/x"}, "refused (AccessDenied); look at the AWS credentials"),
        ({"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "HOME": "/nonexistent"}, "no credentials; set AWS_"),
    ],
    ids=["no bucket", "no access", "no credentials"],
)
def test_each_part_says_at_its_start_what_is_wrong_with_its_bucket(
    private_fleet: Fleet, s3: Mapping[str, str], changed: Mapping[str, str], reason: str
) -> None:
    private_fleet.environment |= {
        **s3,
        "EVALFLEET_RESULTS_URL": "s3://results/x",
        "EVALFLEET_BASE_URL": "http://127.0.0.1:1",
    }
    private_fleet.environment |= changed
    for words in (["worker", "--queues", "aggregate"], ["scheduler"], ["watch", "sub_1"]):
        done = private_fleet.run(*words)
        assert done.returncode == 2, done.stderr
        assert reason in done.stderr
        assert CREDENTIALS["AWS_SECRET_ACCESS_KEY"] not in done.stderr
        assert "Traceback" not in done.stderr
    assert os.environ.get("AWS_SECRET_ACCESS_KEY") is None
