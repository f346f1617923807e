"""Does every command line of deploy/ work as it stands there?

Each runs as a process: addresses, ports and folders of the containers are replaced by ones of this test, nothing else.
Each is then asked by its own health check, and the tree is submitted and watched by what is there for it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from evalfleet.ledger import Ledger
from tests.deployments import KEYS, ROOT, Part, compose, kubernetes, kustomized
from tests.integration.fleet import Broker, free_port, until
from tests.integration.fleet import Part as Process
from tests.integration.postgres import own_schema

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


class Deployment:
    """The parts of one deployment, as processes on a broker and a database of the test's."""

    def __init__(self, folder: Path, parts: Mapping[str, Part], broker: str, database: str) -> None:
        self.folder, self.parts, self.broker, self.database = folder, parts, broker, database
        self.server_port = free_port()
        self.metrics = {name: free_port() for name in parts}
        self.processes: dict[str, Process] = {}

    def here(self, name: str, word: str) -> str:
        """A word of the files, as it must be on this machine."""
        for there, here in {
            "redis://valkey:6379/0": self.broker,
            "http://server:8080": f"http://127.0.0.1:{self.server_port}",
            "127.0.0.1:8080": f"127.0.0.1:{self.server_port}",
            "127.0.0.1:9100": f"127.0.0.1:{self.metrics[name]}",
            "/tmp/alive": str(self.folder / f"alive-{name}"),
        }.items():
            word = word.replace(there, here)
        whole = {
            "8080": str(self.server_port),
            "9100": str(self.metrics[name]),
            "0.0.0.0": "127.0.0.1",
            "/tree": str(self.folder / "tree"),
            "/state": str(self.folder / f"state-{name}"),
            "/results": str(self.folder / "results"),
            "python": sys.executable,
            KEYS["database-url"]: self.database,
        }
        return whole.get(word, word)

    def environment(self, name: str) -> dict[str, str]:
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("EVALFLEET_", "SPLOX_"))}
        return clean | {key: self.here(name, value) for key, value in self.parts[name].environment.items()}

    def command(self, name: str, *instead: str) -> list[str]:
        words = [self.here(name, word) for word in instead or self.parts[name].words]
        return [sys.executable, "-P", "-m", "scheduler.cli", *words]

    def up(self, name: str) -> None:
        process = Process(name, self.command(name), self.environment(name), self.folder)
        self.processes[name] = process

        def healthy() -> bool:
            assert process.process.poll() is None, f"{name} ended:\n{process.log}"
            return self.healthy(name)

        until(healthy, lambda: f"{name} is not healthy:\n{process.log}")

    def healthy(self, name: str) -> bool:
        """What its health check says."""
        part = self.parts[name]
        if part.address:
            try:
                with urllib.request.urlopen(self.here(name, part.address), timeout=5) as answer:
                    return bool(answer.status == 200)
            except (urllib.error.URLError, TimeoutError):
                return False
        words = [self.here(name, word) for word in part.health]
        return subprocess.run(words, capture_output=True, timeout=20).returncode == 0

    def run(self, name: str, *words: str, like: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(name, *words),
            env=self.environment(like),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )

    def down(self) -> None:
        for process in reversed(self.processes.values()):
            if process.process.poll() is None:
                process.process.terminate()
        for process in reversed(self.processes.values()):
            try:
                process.process.wait(15)  # the grace that the files give
            except subprocess.TimeoutExpired:
                process.kill()


@pytest.fixture(params=["compose", "kubernetes"])
def deployment(
    request: pytest.FixtureRequest, tmp_path: Path, broker: Broker, postgres_url: str
) -> Iterator[Deployment]:
    if request.param == "compose":
        parts = {name: part for name, part in compose().items() if name != "submit"}
    else:
        resources = kustomized()
        if resources is None:
            pytest.skip("kubectl builds the kustomization")
        parts = kubernetes(resources)
    for name in ("evals", "examples"):
        shutil.copytree(ROOT / name, tmp_path / "tree" / name, ignore=shutil.ignore_patterns("results", "__pycache__"))
    shutil.copy(ROOT / "evalfleet.toml", tmp_path / "tree")
    ledger = Ledger(broker.url)
    ledger.open_epoch(mine=True)  # nobody can hold a claim on it yet: the grace of 15 s shows nothing here
    ledger.close()
    with own_schema(postgres_url) as database:
        started = Deployment(tmp_path, parts, broker.url, database)
        yield started
        started.down()


def test_every_command_line_runs_and_the_fleet_passes_the_demo_tree(deployment: Deployment) -> None:
    for name in ("server", *sorted(set(deployment.parts) - {"server"})):
        deployment.up(name)
    tree, state = str(deployment.folder / "tree"), str(deployment.folder / "state-submit")
    handed_over = deployment.run("scheduler", "submit", "--tree", tree, "--state", state, like="scheduler")
    assert handed_over.returncode == 0, handed_over.stderr
    watched = deployment.run("scheduler", "watch", handed_over.stdout.strip(), like="scheduler")
    assert watched.returncode == 0, watched.stdout + watched.stderr
    assert "PASS" in watched.stdout

    for name in deployment.parts:
        with urllib.request.urlopen(f"http://127.0.0.1:{deployment.metrics[name]}/metrics") as answer:
            assert b"\nevalfleet_" in answer.read(), name
    assert all(deployment.healthy(name) for name in deployment.parts)

    secret = deployment.environment("server")["EVALFLEET_TOKEN"]
    deployment.down()
    for name, process in deployment.processes.items():
        assert process.process.returncode == 0, f"{name} does not leave on SIGTERM within its grace:\n{process.log}"
        assert secret not in process.log
