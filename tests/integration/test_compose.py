"""Does every command line of deploy/compose.yaml work as it stands there?

Each runs as a process: addresses, ports and folders of the containers are replaced by ones of this test, nothing else.
Each is then asked by its own health check, and the tree is submitted and watched by the service that is there for it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
import yaml

from evalfleet.ledger import Ledger
from scheduler.valkey import program
from tests.integration.fleet import Part, free_port, until
from tests.test_deploy import DEPLOY, ROOT, SERVICES, filled_in

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]


class Compose:
    """The services of one compose file, as processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = {"valkey": free_port(), "server": free_port()}
        self.metrics = {name: free_port() for name in ("server", "scheduler", "worker", "submit")}
        self.parts: list[Part] = []

    def here(self, service: str, word: str) -> str:
        """A word of the file, as it must be on this machine."""
        for there, here in {
            "redis://valkey:6379": f"redis://127.0.0.1:{self.ports['valkey']}",
            "http://server:8080": f"http://127.0.0.1:{self.ports['server']}",
            "127.0.0.1:8080": f"127.0.0.1:{self.ports['server']}",
            "127.0.0.1:9100": f"127.0.0.1:{self.metrics.get(service)}",
            "/tmp/alive": str(self.folder / "alive"),
        }.items():
            word = word.replace(there, here)
        whole = {
            "8080": str(self.ports["server"]),
            "9100": str(self.metrics.get(service)),
            "0.0.0.0": "127.0.0.1",
            "/tree": str(self.folder / "tree"),
            "/state": str(self.folder / f"state-{service}"),
            "/results": str(self.folder / "results"),
            "valkey-server": str(program()),
            "python": sys.executable,
        }
        return whole.get(word, word)

    def environment(self, service: str) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("EVALFLEET_", "SPLOX_"))}
        theirs = SERVICES[service].get("environment", {})
        return clean | {name: self.here(service, filled_in(value)) for name, value in theirs.items()}

    def command(self, service: str, *instead: str) -> list[str]:
        words = [self.here(service, word) for word in instead or SERVICES[service]["command"]]
        if service == "valkey":
            return [*words, "--port", str(self.ports["valkey"]), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        return [sys.executable, "-P", "-m", "scheduler.cli", *words]

    def up(self, service: str) -> None:
        part = Part(service, self.command(service), self.environment(service), self.folder)
        self.parts.append(part)

        def healthy() -> bool:
            assert part.process.poll() is None, f"{service} ended:\n{part.log}"
            return self.healthy(service)

        until(healthy, lambda: f"{service} is not healthy:\n{part.log}")

    def healthy(self, service: str) -> bool:
        """What its health check says."""
        words = [self.here(service, word) for word in SERVICES[service]["healthcheck"]["test"][1:]]
        if words[0] == "valkey-cli":  # not among our dependencies
            try:
                with redis.Redis(port=self.ports["valkey"]) as client:
                    return bool(client.ping())
            except redis.ConnectionError:
                return False
        return subprocess.run(words, capture_output=True, timeout=20).returncode == 0

    def run(self, service: str, *instead: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(service, *instead),
            env=self.environment(service),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )

    def down(self) -> None:
        for part in reversed(self.parts):
            if part.process.poll() is None:
                part.process.terminate()
        for part in reversed(self.parts):
            try:
                part.process.wait(15)  # stop_grace_period
            except subprocess.TimeoutExpired:
                part.kill()


@pytest.fixture
def compose(tmp_path: Path) -> Iterator[Compose]:
    for name in ("evals", "examples"):
        shutil.copytree(ROOT / name, tmp_path / "tree" / name, ignore=shutil.ignore_patterns("results", "__pycache__"))
    shutil.copy(ROOT / "evalfleet.toml", tmp_path / "tree")
    started = Compose(tmp_path)
    yield started
    started.down()


def test_every_command_line_runs_and_the_fleet_passes_the_demo_tree(compose: Compose) -> None:
    for service in SERVICES:
        if service not in {"submit", "prometheus"}:
            compose.up(service)
        if service == "valkey":
            ledger = Ledger(f"redis://127.0.0.1:{compose.ports['valkey']}/0")
            ledger.open_epoch(mine=True)  # nobody can hold a claim on it yet: the grace of 15 s shows nothing here
            ledger.close()
    handed_over = compose.run("submit")
    assert handed_over.returncode == 0, handed_over.stderr
    watched = compose.run("submit", "watch", handed_over.stdout.strip())  # as the file's head says to
    assert watched.returncode == 0, watched.stdout + watched.stderr
    assert "PASS" in watched.stdout

    jobs = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"]
    for job in jobs:
        with urllib.request.urlopen(f"http://127.0.0.1:{compose.metrics[job['job_name']]}/metrics") as answer:
            assert b"\nevalfleet_" in answer.read(), job
    assert all(compose.healthy(part.name) for part in compose.parts)

    started = {part.name: part for part in compose.parts}
    secret = compose.environment("server")["EVALFLEET_TOKEN"]
    compose.down()
    for name, part in started.items():
        assert part.process.returncode == 0, f"{name} does not leave on SIGTERM within its grace:\n{part.log}"
        assert secret not in part.log
