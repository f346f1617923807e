"""A fleet as its operator starts it: every part a process of its own, on loopback, ended with the test.

Tests await lines of logs, metrics and ends; each wait has a deadline and shows what was seen when it passes.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from evalfleet.ledger import Ledger
from scheduler.valkey import program

WITHIN = 60.0
TOKEN = "token-of-an-integration-test"
PLAN_KEY = "a-secret-of-this-test-fleet"
IMPATIENCE = re.compile(r"(Frequent restarts detected: .*|Error in timer: server:OutOfMemoryError.*)\nTraceback ")
"""Celery's and kombu's, with a broker that refuses them again and again or is full: no error of ours."""

AGENT = """
import json, os, sys, time
turn = json.load(sys.stdin)
descriptor = os.open("calls.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
os.write(descriptor, (json.dumps([turn["run_id"], turn["message"]]) + "\\n").encode())
time.sleep(float(os.environ["NAP"]))
while os.path.exists("hold"):
    time.sleep(0.05)
trial = turn["metadata"]["evalfleet.trial"]
print("even" if trial % 2 == 0 else "odd", turn["message"], "after", len(turn["history"]))
"""

CASES = {
    "greeting": """
scenarios:
  - id: answers
    user: hello
    trials: 4
    expect:
      - final_answer_contains: hello
      - grader: {name: words.few, pass_below: 0.5}
  - id: remembers
    user: [first, second]
    trials: 4
    expect:
      - final_answer_contains: after 4
""",
    "parity": """
scenarios:
  - id: flaky
    user: number
    trials: 4
    expect:
      - final_answer_contains: even
  - id: fails
    user: number
    trials: 2
    expect:
      - final_answer_contains: neither
""",
}
ATTEMPTS = 14
CALLS = 4 * 3 + 2 * 2 + 2  # greeting: 4 conversations of 3 turns; parity: 2 of 2 turns, 2 of one

GRADER = '''
def few(t, case, run):
    """Better the shorter. It reads the harness that it judges (S28), on whatever machine it runs."""
    open("agent.py").close()
    return {"pass": True, "score": 1.0 / len(run["final_answer"].split()) + 0.6, "why": "counted"}
'''


def until(what: Callable[[], bool], because: Callable[[], str], within: float = WITHIN) -> None:
    """For facts that send no event."""
    deadline = time.monotonic() + within
    while not what():
        assert time.monotonic() < deadline, f"not within {within:.0f} s: {because()}"
        time.sleep(0.05)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def make_tree(root: Path, *, nap: float) -> Path:
    """A harness with passing, failing and flaky scenarios, several turns, and a grader. Its agents answer after `nap`
    seconds, and not while the tree holds a file `hold`."""
    (root / "evals/cases").mkdir(parents=True)
    (root / "evals/graders").mkdir()
    (root / "agent.py").write_text(AGENT)
    (root / "evals/graders/words.py").write_text(GRADER)
    for name, text in CASES.items():
        (root / f"evals/cases/{name}.yaml").write_text(text)
    (root / "evalfleet.toml").write_text(
        '[harness]\nname = "counter"\nfiles = ["agent.py", "evalfleet.toml"]\n[harness.command]\n'
        f'argv = ["{sys.executable}", "-S", "agent.py"]\nenv = {{ NAP = "{nap}" }}\n'
    )
    return root


def calls(tree: Path) -> list[str]:
    """The agent's calls, one a line: what was really paid for."""
    file = tree / "calls.txt"
    return file.read_text().splitlines() if file.exists() else []


class Part:
    """A process with a log."""

    def __init__(self, name: str, argv: Sequence[str], env: Mapping[str, str], folder: Path) -> None:
        self.name = name
        self.log_file = folder / f"{name}.log"
        with self.log_file.open("wb") as log:
            self.process = subprocess.Popen(
                argv, env=dict(env), cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def await_line(self, pattern: str, within: float = WITHIN) -> re.Match[str]:
        """The first match in its log. Fails when the process ends without it."""

        def there() -> bool:
            assert re.search(pattern, self.log) or self.process.poll() is None, f"{self.name} ended:\n{self.log}"
            return re.search(pattern, self.log) is not None

        until(there, lambda: f"{pattern!r} in the log of {self.name}:\n{self.log}", within)
        found = re.search(pattern, self.log)
        assert found is not None
        return found

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self, within: float = WITHIN) -> int:
        """Its exit code, once it has ended by itself."""
        try:
            return self.process.wait(within)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} has not ended within {within:.0f} s:\n{self.log}") from None

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)


class Broker:
    """A private Valkey with an append-only file, which can be killed and started again."""

    def __init__(self, folder: Path, *more: str) -> None:
        self.folder, self.more = folder, more
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.starts = 0
        self.start()

    def start(self) -> None:
        command = [str(program()), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        command += ["--save", "", "--appendonly", "yes", *self.more]
        self.starts += 1
        self.part = Part(f"valkey-{self.starts}", command, os.environ, self.folder)
        self.part.await_line("Ready to accept connections")


class Fleet:
    """Starts parts on one broker, one results folder and one server. `close` ends whatever is left of it."""

    def __init__(self, folder: Path, broker_url: str) -> None:
        self.folder = folder
        self.parts: list[Part] = []
        self.metrics_ports: dict[str, int] = {}
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("EVALFLEET_", "SPLOX_"))}
        self.environment = {
            **clean,
            "NO_COLOR": "1",
            "EVALFLEET_BROKER_URL": broker_url,
            "EVALFLEET_RESULTS_URL": str(folder / "results"),
            "EVALFLEET_TOKEN": TOKEN,
            "EVALFLEET_PLAN_KEY": PLAN_KEY,
        }
        with_ledger = Ledger(broker_url)
        with_ledger.open_epoch(mine=True)  # nobody can hold a claim on it yet: no need to wait out the grace
        with_ledger.close()

    def start(self, name: str, *arguments: str, env: Mapping[str, str] | None = None) -> Part:
        argv = self.command(name, [sys.executable, "-P", "-m", "scheduler.cli", *arguments])
        part = Part(name, argv, {**self.environment, **(env or {})}, self.folder)
        self.parts.append(part)
        return part

    def command(self, name: str, argv: list[str]) -> list[str]:
        """The words that start a part."""
        return argv

    def server(self, tree: Path) -> Part:
        ready = self.folder / "server-url"
        ready.unlink(missing_ok=True)
        state = str(self.folder / "state")
        part = self.start(
            "server", "server", "--tree", str(tree), "--port", "0", "--state", state, "--ready-file", str(ready)
        )

        def there() -> bool:
            assert part.process.poll() is None, f"the server ended:\n{part.log}"
            return ready.exists()

        until(there, lambda: f"the server is not ready:\n{part.log}")
        self.environment["EVALFLEET_BASE_URL"] = ready.read_text().strip()
        return part

    def scheduler(self, name: str = "scheduler") -> Part:
        part = self.start(name, "scheduler", "--metrics-port", "0")
        self.metrics_ports[name] = int(part.await_line(r"metrics on port (\d+)\n")[1])
        return part

    def worker(self, name: str, *arguments: str, env: Mapping[str, str] | None = None) -> Part:
        part = self.start(name, "worker", "--metrics-port", "0", *arguments, env=env)
        self.metrics_ports[name] = int(part.await_line(r"takes .* metrics on port (\d+)\n")[1])
        return part

    def run(self, *arguments: str, within: float = WITHIN) -> subprocess.CompletedProcess[str]:
        """A command to its end."""
        return subprocess.run(
            self.command("person", [sys.executable, "-P", "-m", "scheduler.cli", *arguments]),
            env=self.environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=within,
        )

    def submit(self, tree: Path, *arguments: str) -> str:
        """The submission's id."""
        done = self.run("submit", "--tree", str(tree), "--state", str(self.folder / "submissions"), *arguments)
        assert done.returncode == 0, done.stderr
        assert re.fullmatch(r"sub_[0-9A-Z]{26}\n", done.stdout)
        return done.stdout.strip()

    def watch(self, submission: str, *arguments: str, within: float = WITHIN) -> tuple[int, dict[str, Any]]:
        """Exit code and the one object of `--json`."""
        done = self.run("watch", submission, "--json", *arguments, within=within)
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    def metrics(self, name: str) -> dict[str, float]:
        """`name{labels}` → value, as Prometheus would read it."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_ports[name]}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}

    def claimed(self, name: str) -> float:
        """Conversations that a worker has begun."""
        return self.metrics(name).get('evalfleet_claims_total{answer="claimed"}', 0.0)

    def logs(self) -> str:
        return "\n".join(f"== {part.name}\n{part.log}" for part in self.parts)

    def tracebacks(self) -> list[str]:
        """Parts in whose log one stands."""
        return [part.name for part in self.parts if "Traceback" in IMPATIENCE.sub("", part.log)]

    def close(self) -> None:
        for part in self.parts:
            if part.process.poll() is None:
                part.send(signal.SIGTERM)
        deadline = time.monotonic() + 10
        for part in self.parts:
            try:
                part.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                part.kill()


def results_of(document: Mapping[str, Any]) -> list[tuple[str, str, str, int, int, int, int]]:
    """What two ways of running the same checks must agree on."""
    return [
        (s["case"], s["scenario"], s["verdict"], s["passed"], s["failed"], s["errors"], s["missing"])
        for s in document["scenarios"]
    ]
