"""Every part of a fleet is replaced while it works, one after the other, as an upgrade does it (issue 5).

SIGTERM, a clean end, another one in its place: nothing is lost and no agent is called a second time, but for those that
the server itself was running: they end with it, and their conversations are played again.
"""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from evalfleet.artifact import find, open_artifact
from evalfleet.ledger import Ledger
from evalfleet.results import results_store
from tests.integration.fleet import Broker, Fleet, Part, calls, free_port, make_tree, until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

TRIALS = 10
RUNS = TRIALS * (3 + 2)  # greeting: three turns; parity: two
AT_ONCE = 4


def test_a_rolling_restart_of_every_part_loses_nothing_and_pays_nothing_twice(
    tmp_path: Path, private_fleet: Fleet, broker: Broker
) -> None:
    fleet = private_fleet
    tree = make_tree(tmp_path / "tree", nap=0.3)
    port, state = str(free_port()), str(tmp_path / "state")
    words = ("server", "--tree", str(tree), "--port", port, "--state", state, "--ready-file")
    fleet.environment["EVALFLEET_BASE_URL"] = f"http://127.0.0.1:{port}"

    def server(name: str) -> Part:
        ready = tmp_path / f"{name}-is-ready"
        part = fleet.start(name, *words, str(ready))
        until(ready.exists, lambda: part.log)
        return part

    def replace(part: Part, follower: Callable[[], Part]) -> Part:
        part.send(signal.SIGTERM)
        assert part.end(30) == 0, part.log
        return follower()

    first = server("server-1")
    schedulers = [fleet.scheduler(f"scheduler-{name}") for name in "ab"]
    workers = {name: fleet.worker(name, "--concurrency", "2") for name in ("worker-a", "worker-b")}
    submission = fleet.submit(tree, "-k", str(TRIALS), "-j", str(AT_ONCE))
    for name, part in workers.items():
        until(lambda name=name: fleet.metrics(name)["evalfleet_conversations_held"] >= 1, fleet.logs)  # type: ignore[misc]
        replace(part, lambda name=name: fleet.worker(f"{name}-2", "--concurrency", "2"))  # type: ignore[misc]
    for number, part in enumerate(schedulers):
        replace(part, lambda number=number: fleet.scheduler(f"scheduler-{number}-2"))  # type: ignore[misc]
    ledger = Ledger(broker.url)
    until(lambda: ledger.progress(submission).running >= 2, fleet.logs)
    before = len(calls(tree))
    assert before < RUNS, "there is work left under which the server is restarted"
    assert max(Counter(json.loads(line)[0] for line in calls(tree)).values()) == 1, "a run is one call of its agent"
    replace(first, lambda: server("server-2"))
    code, document = fleet.watch(submission, within=200)
    ledger.close()

    assert code == 1, fleet.logs()
    assert {s["trials"]: s["missing"] + s["errors"] for s in document["scenarios"]} == {TRIALS: 0}
    assert {e["status"] for e in document["evaluations"]} == {"completed"}
    made = Counter(json.loads(line)[0] for line in calls(tree))
    assert max(made.values()) == 1, "no agent is called twice for a run"
    store = results_store(str(tmp_path / "results"))
    artifact = find(store, submission)
    assert artifact is not None
    again = {
        (line["case"], line["trial"]): [made["reason"] for made in line["tries"][:-1]]
        for line in open_artifact(store, artifact).lines()
    }
    repeated = {where: reasons for where, reasons in again.items() if reasons}
    assert all("server_lost" in str(reason) for reasons in repeated.values() for reason in reasons), repeated
    assert len(repeated) <= AT_ONCE, "only what the server ran at that moment"
    assert RUNS <= len(made) <= RUNS + 3 * len(repeated)
    assert "Traceback" not in "".join(part.log for part in fleet.parts)
