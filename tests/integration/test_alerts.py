"""Is each alert's condition reached by its fault, and does every panel of the dashboard show something?

A real Prometheus asks a real fleet once a second, with deploy/rules.yml as it stands. Conditions are asked for as they
are written there; how long one has to last before somebody is woken (`for`) is Prometheus' own matter.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import signal
import sqlite3
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml

from evalfleet.queue import SENT_AT
from tests.deployments import DEPLOY
from tests.integration.fleet import TOKEN, Broker, Fleet, Part, free_port, make_tree, until
from tests.test_deploy import QUERIES

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(400),
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="Prometheus evaluates the rules"),
]

RULES = yaml.safe_load((DEPLOY / "rules.yml").read_text())
ALERTS = {rule["alert"]: rule["expr"] for group in RULES["groups"] for rule in group["rules"] if "alert" in rule}

JUDGED = """
scenarios:
  - {id: judged, user: hello, trials: 12, expect: [{grader: {name: judged.kind}}]}
"""
KIND = "def kind(t, case, run):\n    return t.llm('kind?') == 'yes'\n"
LOST = """
scenarios:
  - {id: lost, user: lost, trials: 6, expect: [no_error: true]}
"""
AGENT_LOST = """
if turn["message"] == "lost":
    print(json.dumps({"type": "error", "code": "proxy_down", "message": "away", "retryable": True}))
    raise SystemExit
"""


class Prometheus:
    """The real one, on a fleet of processes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.targets: dict[str, list[str]] = {}
        shutil.copy(DEPLOY / "rules.yml", folder)
        self.part: Part | None = None

    def ask(self, job: str, port: int) -> None:
        """Also ask this part, from now on."""
        self.targets.setdefault(job, []).append(f"127.0.0.1:{port}")
        for name, addresses in self.targets.items():
            file = self.folder / f"{name}.targets.json"
            file.with_suffix(".new").write_text(json.dumps([{"targets": addresses}]))
            file.with_suffix(".new").rename(file)

    def start(self) -> None:
        jobs = [
            {"job_name": job, "file_sd_configs": [{"files": [f"{job}.targets.json"]}]}
            for job in ("server", "scheduler", "worker")
        ]
        every = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config = {"global": every, "rule_files": ["rules.yml"], "scrape_configs": jobs}
        (self.folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        words = ["prometheus", f"--config.file={self.folder}/prometheus.yml", f"--storage.tsdb.path={self.folder}/data"]
        words.append(f"--web.listen-address=127.0.0.1:{self.port}")
        self.part = Part("prometheus", words, os.environ, self.folder)
        self.part.await_line("Server is ready to receive web requests")

    def query(self, expression: str) -> list[dict[str, Any]]:
        words = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/query?{words}", timeout=10) as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
            return found

    def holds(self, alert: str) -> bool:
        return bool(self.query(ALERTS[alert]))

    def await_alert(self, alert: str) -> None:
        def seen() -> str:
            names = set(re.findall(r"evalfleet_\w+", ALERTS[alert])) | {"up"}
            return f"{alert} is not reached: {ALERTS[alert]}\n" + "\n".join(str(self.query(name)) for name in names)

        until(lambda: self.holds(alert), seen, within=150)

    def close(self) -> None:
        if self.part is not None:
            self.part.kill()


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[Prometheus]:
    folder = tmp_path / "prometheus"
    folder.mkdir()
    made = Prometheus(folder)
    yield made
    made.close()


def a_tree(folder: Path) -> Path:
    tree = make_tree(folder, nap=0)
    for name, text in {"judged": JUDGED, "lost": LOST}.items():
        (tree / f"evals/cases/{name}.yaml").write_text(text)
    (tree / "evals/graders/judged.py").write_text(KIND)
    agent = (tree / "agent.py").read_text()
    (tree / "agent.py").write_text(agent.replace("trial = turn", f"{AGENT_LOST}trial = turn"))
    with (tree / "evalfleet.toml").open("a") as config:
        config.write('[judge]\nbase_url = "http://127.0.0.1:1/v1"\nmodel = "small"\n')
    text = (tree / "evalfleet.toml").read_text()
    text = text.replace('name = "counter"', 'name = "counter"\ninfra_codes = ["proxy_down"]')
    (tree / "evalfleet.toml").write_text(text)
    return tree


def test_every_alerts_condition_is_reached_by_its_fault(
    tmp_path: Path, private_fleet: Fleet, broker: Broker, prometheus: Prometheus
) -> None:
    fleet, seen = private_fleet, set()

    def reached(alert: str) -> None:
        prometheus.await_alert(alert)
        seen.add(alert)

    tree = a_tree(tmp_path / "tree")
    hold = tree / "hold"
    fleet.environment["EVALFLEET_AGENTS"] = "1"
    server = fleet.server(tree)
    fleet.scheduler()
    fleet.worker("first", "--concurrency", "8")
    prometheus.ask("server", int(fleet.environment["EVALFLEET_BASE_URL"].rpartition(":")[2]))
    prometheus.ask("scheduler", fleet.metrics_ports["scheduler"])
    prometheus.ask("worker", fleet.metrics_ports["first"])
    prometheus.start()

    # All is well: only what asks whether anything was judged lately may hold before anything is.
    until(lambda: len(prometheus.query("up == 1")) == 3, lambda: "all parts are asked")
    assert [alert for alert in ALERTS if prometheus.holds(alert)] == []

    hold.touch()
    submission = fleet.submit(tree, "greeting", "lost", "judged", "-j", "8")
    reached("EvalfleetRunsWait")
    reached("EvalfleetNothingMoves")
    fleet.parts[-1].send(signal.SIGKILL)  # the worker dies with what it holds
    fleet.parts[-1].end()
    reached("EvalfleetPartDown")
    reached("EvalfleetNoWorkers")
    reached("EvalfleetWorkersDie")

    # What waits has waited for six minutes, says its header.
    client = redis.Redis.from_url(broker.url)
    until(lambda: client.llen("ef:run") > 0, lambda: "a message waits")
    message = json.loads(client.lindex("ef:run", -1) or b"{}")
    message["headers"][SENT_AT] = time.time() - 400
    assert base64.b64decode(message["body"])
    client.lset("ef:run", -1, json.dumps(message))
    reached("EvalfleetQueueOld")

    fleet.worker("second", "--concurrency", "8")
    prometheus.ask("worker", fleet.metrics_ports["second"])
    second = f'up{{instance="127.0.0.1:{fleet.metrics_ports["second"]}"}} == 1'
    until(lambda: bool(prometheus.query(second)), lambda: "the second worker is asked")
    hold.unlink()
    reached("EvalfleetManyRetries")
    reached("EvalfleetGivenUp")
    reached("EvalfleetPaused")  # ten gradings in a row had no judge
    empty = [expression for expression in QUERIES if not prometheus.query(expression.replace("$__rate_interval", "1m"))]
    assert empty == [], "panels that show nothing"
    fleet.run("cancel", submission, "--tree", str(tree), "--state", str(tmp_path / "submissions"))

    used = int(client.info("memory")["used_memory"])
    client.config_set("maxmemory", int(used * 1.1))
    reached("EvalfleetBrokerNearlyFull")
    client.config_set("maxmemory", 0)

    database = next((tmp_path / "state").rglob("*.sqlite3"))
    with sqlite3.connect(database) as connection:
        connection.execute("ALTER TABLE runs RENAME TO runs_that_were")
    request = urllib.request.Request(f"{fleet.environment['EVALFLEET_BASE_URL']}/v2/runs")
    request.add_header("Authorization", f"Bearer {TOKEN}")
    with pytest.raises(urllib.error.HTTPError, match="50"):
        urllib.request.urlopen(request, timeout=10)
    reached("EvalfleetServerErrors")
    with sqlite3.connect(database) as connection:
        connection.execute("ALTER TABLE runs_that_were RENAME TO runs")

    hold.touch()
    fleet.submit(tree, "parity", "-j", "4")
    until(lambda: fleet.metrics("second")["evalfleet_conversations_held"] > 0, fleet.logs)
    server.send(signal.SIGKILL)
    reached("EvalfleetTargetDown")
    reached("EvalfleetWorkerImpaired")
    broker.part.kill()
    reached("EvalfleetBrokerAway")
    reached("EvalfleetHeartbeatUnconfirmed")
    next(part for part in fleet.parts if part.name == "scheduler").send(signal.SIGKILL)
    reached("EvalfleetNoScheduler")
    assert seen == set(ALERTS)
    assert not re.search("level=(error|warn)", prometheus.part.log if prometheus.part else "")
