"""What does a fleet do with more workers, and what does an attempt cost each of its parts?

    python -m benchmarks.fleet [--workers 1,2,4,8] [--slots 20] [--seconds 1.0] [--rounds 10] [--attempts N]

For each number of workers a whole fleet of processes, started fresh: Valkey, the server on SQLite, a scheduler, the
workers, and the stub as the agents' model. Its slots play `--rounds` runs of `--seconds` each, or `--attempts` in all.
One row: attempts/s between the first tenth and the last, against slots ÷ seconds; how busy the machine was meanwhile,
with everything else that ran on it; CPU and peak memory of each part; what Redis held and did. Linux only.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evalfleet.ledger import Ledger
from scheduler.valkey import program

TICKS = os.sysconf("SC_CLK_TCK")
ROOT = Path(__file__).resolve().parent.parent
TOKEN = "token-of-the-benchmark"
MOST_TRIALS = 100
EVERY_S = 0.5


@dataclass
class Seen:
    """A sample: seconds since the submission, attempts recorded, bytes of Redis, conversations in flight."""

    at: float
    recorded: int
    redis: int
    running: int


@dataclass
class Meter:
    """CPU and memory of processes by part, sampled until `stop`."""

    ledger: Ledger
    pids: Mapping[str, Sequence[int]]
    seen: list[Seen] = field(default_factory=list)
    peak: dict[str, int] = field(default_factory=dict)

    def start(self, submission: str, began: float) -> None:
        self.submission, self.began = submission, began
        self.over = threading.Event()
        self.cpu_before, self.busy_before = self.cpu(), busy()
        self.ops_before = self.operations()
        self.thread = threading.Thread(target=self._main, daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.over.set()
        self.thread.join()

    def cpu(self) -> dict[str, float]:
        return {part: sum(cpu_of(pid) for pid in pids) for part, pids in self.pids.items()}

    def operations(self) -> int:
        return int(self.ledger.redis.info("stats")["total_commands_processed"])

    def _main(self) -> None:
        while not self.over.wait(EVERY_S):
            self.look()

    def look(self) -> None:
        for part, pids in self.pids.items():
            self.peak[part] = max(self.peak.get(part, 0), max(rss_of(pid) for pid in pids))
        meta, progress = self.ledger.meta(self.submission), self.ledger.progress(self.submission)
        done = progress.recorded if meta is None or meta.recorded is None else meta.recorded
        self.seen.append(Seen(time.monotonic() - self.began, done, self.ledger.memory()[0], progress.running))


def cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def rss_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def busy() -> tuple[int, int]:
    """Ticks of all CPUs: busy, and in all."""
    times = [int(word) for word in Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:9]]
    return sum(times) - times[3] - times[4], sum(times)


class Fleet:
    """One broker, one server, one scheduler, some workers."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self.stack = folder, stack
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("EVALFLEET_", "SPLOX_"))}
        self.env = {
            **kept,
            "EVALFLEET_BROKER_URL": f"redis://127.0.0.1:{port}/0",
            "EVALFLEET_RESULTS_URL": str(folder / "results"),
            "EVALFLEET_TOKEN": TOKEN,
            "EVALFLEET_LOG_LEVEL": "warning",
        }
        words = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", "", "--appendonly", "yes"]
        self.valkey = self.process("valkey", [str(program()), *words])
        self.ledger = Ledger(self.env["EVALFLEET_BROKER_URL"])
        stack.callback(self.ledger.close)
        self.ledger.open_epoch(mine=True)

    def process(self, name: str, argv: list[str]) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("wb") as log:
            made = subprocess.Popen(argv, env=self.env, cwd=self.folder, stdout=log, stderr=log)
        self.stack.callback(end, made)
        return made

    def part(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        return self.process(name, [sys.executable, "-P", "-m", "scheduler.cli", *words])

    def serve(self, tree: Path, agents: int) -> subprocess.Popen[bytes]:
        ready = self.folder / "url"
        words = ["--tree", str(tree), "--port", "0", "--state", str(self.folder / "state"), "--ready-file", str(ready)]
        made = self.part("server", "server", *words, "--agents", str(agents), "--log-level", "warning")
        await_(ready.exists, self)
        self.env["EVALFLEET_BASE_URL"] = ready.read_text(encoding="ascii").strip()
        return made

    def submit(self, tree: Path, concurrency: int) -> str:
        words = ["submit", "--tree", str(tree), "--state", str(self.folder / "records"), "-j", str(concurrency)]
        command = [sys.executable, "-P", "-m", "scheduler.cli", *words]
        done = subprocess.run(command, env=self.env, cwd=self.folder, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stderr)
        return done.stdout.strip()


def end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def await_(what: Any, fleet: Fleet, within: float = 120.0) -> None:
    deadline = time.monotonic() + within
    while not what():
        if time.monotonic() > deadline:
            sys.exit("\n".join(file.read_text() for file in fleet.folder.glob("*.log")))
        time.sleep(0.05)


@contextmanager
def stub(seconds: float) -> Iterator[tuple[str, int]]:
    command = [sys.executable, "-m", "benchmarks.stub", str(seconds)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip(), process.pid
    finally:
        process.communicate("")


def tree_of(folder: Path, url: str, attempts: int) -> int:
    """A tree with at least so many attempts; how many."""
    cases = folder / "evals" / "cases"
    cases.mkdir(parents=True)
    (folder / "evalfleet.toml").write_text(
        f'[harness]\nname = "bench"\n[harness.openai]\nbase_url = "{url}"\nmodel = "stub"\n', encoding="utf-8"
    )
    trials = min(attempts, MOST_TRIALS)
    files = -(-attempts // trials)
    scenario = f"{{id: one, user: hi, trials: {trials}, expect: [{{final_answer_contains: done}}]}}"
    for number in range(files):
        (cases / f"c{number:05}.yaml").write_text(f"scenarios: [{scenario}]\n", encoding="utf-8")
    return files * trials


def measure(workers: int, slots: int, seconds: float, asked: int) -> None:
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="evalfleet-bench-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        url, agents = stack.enter_context(stub(seconds))
        attempts = tree_of(folder / "tree", url, asked)
        fleet = Fleet(folder, stack)
        server = fleet.serve(folder / "tree", workers * slots)
        scheduler = fleet.part("scheduler", "scheduler")
        crews = [fleet.part(f"worker{n}", "worker", "--concurrency", str(slots)) for n in range(workers)]
        await_(lambda: fleet.ledger.slots() == workers * slots, fleet)
        idle = fleet.ledger.memory()[0]
        pids = {"valkey": [fleet.valkey.pid], "server": [server.pid], "scheduler": [scheduler.pid]}
        pids |= {"worker": [crew.pid for crew in crews], "stub": [agents]}
        meter = Meter(fleet.ledger, pids)
        before = {part: max(rss_of(pid) for pid in each) for part, each in pids.items()}
        began = time.monotonic()
        submission = fleet.submit(folder / "tree", workers * slots)
        meter.start(submission, began)
        await_(lambda: not fleet.ledger.submissions(), fleet, within=3600)
        meter.stop()
        wall = time.monotonic() - began
        used, all_ = (after - then for after, then in zip(busy(), meter.busy_before, strict=True))
        cpu = {part: after - meter.cpu_before[part] for part, after in meter.cpu().items()}
        operations = meter.operations() - meter.ops_before
        report(workers, slots, seconds, attempts, wall, meter)
        ours = 100 * sum(cpu.values()) * TICKS / all_
        print(f"  the machine was busy to {100 * used / all_:.0f} %, to {ours:.0f} % with this")
        spent = (f"{part} {1000 * seconds_ / attempts:.1f}" for part, seconds_ in cpu.items())
        print(f"  CPU, ms an attempt: {', '.join(spent)}")
        memory = (f"{part} {before[part] / 1e6:.0f} {most / 1e6:.0f}" for part, most in meter.peak.items())
        print(f"  memory, MB at rest and at most: {', '.join(memory)}")
        print(f"  Redis: {operations / attempts:.0f} operations an attempt, {idle / 1e6:.2f} MB at rest")


def report(workers: int, slots: int, seconds: float, attempts: int, wall: float, meter: Meter) -> None:
    ideal = workers * slots / seconds if seconds else 0.0
    first = next((seen for seen in meter.seen if seen.recorded), None)
    steady = [seen for seen in meter.seen if attempts * 0.1 <= seen.recorded <= attempts * 0.9]
    rate = (steady[-1].recorded - steady[0].recorded) / (steady[-1].at - steady[0].at) if len(steady) > 1 else 0.0
    against = f" = {100 * rate / ideal:.0f} % of {ideal:.0f}/s" if ideal else ""
    print(
        f"{workers} × {slots} slots, {attempts} attempts of {seconds:g} s: {wall:.1f} s in all, "
        f"first recorded after {first.at if first else 0:.1f} s, {rate:.1f}/s between{against}",
        flush=True,
    )
    tenths = (next((s for s in meter.seen if s.recorded >= attempts * share / 10), None) for share in range(1, 10))
    print("  Redis, MB by tenths recorded: " + " ".join(f"{seen.redis / 1e6:.2f}" for seen in tenths if seen))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet", description="A fleet with more workers.")
    parser.add_argument("--workers", default="1,2,4,8")
    parser.add_argument("--slots", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--attempts", type=int)
    options = parser.parse_args()
    for word in options.workers.split(","):
        asked = options.attempts or int(word) * options.slots * options.rounds
        measure(int(word), options.slots, options.seconds, asked)


if __name__ == "__main__":
    main()
