"""How long does `evalfleet eval` take against the ideal, and which process spends the CPU?

    python -m benchmarks [--conversations 200] [--concurrency 50] [--seconds 1.0] [--repeat 3]

Two rows: a cold command with one trivial scenario, and many conversations of a slow stub. Each is a whole command,
started fresh, in a new folder; wall and CPU are the operating system's. Linux only (it reads /proc).
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


class Sampler:
    """CPU seconds by part, read from /proc ten times a second until the parts are gone."""

    def __init__(self, tree: Path) -> None:
        self.tree = str(tree)
        self.seen: dict[int, tuple[str, float]] = {}
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._main, daemon=True)
        self.thread.start()

    def _main(self) -> None:
        while not self.stopping.wait(0.1):
            for entry in Path("/proc").iterdir():
                if entry.name.isdigit():
                    self._look(int(entry.name))

    def _look(self, pid: int) -> None:
        try:
            if pid not in self.seen:
                if self.tree not in str(Path(f"/proc/{pid}/cwd").readlink()):
                    return
                self.seen[pid] = (name_of(Path(f"/proc/{pid}/cmdline").read_bytes()), 0.0)
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            self.seen[pid] = (self.seen[pid][0], (int(fields[11]) + int(fields[12])) / TICKS)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            return

    def stop(self) -> dict[str, float]:
        self.stopping.set()
        self.thread.join()
        parts: dict[str, float] = {}
        for name, seconds in self.seen.values():
            parts[name] = parts.get(name, 0.0) + seconds
        return parts


def name_of(command: bytes) -> str:
    for mark, name in ((b"evalfleet.server", "server"), (b"-m\0worker", "worker"), (b"valkey-server", "valkey")):
        if mark in command:
            return name
    return "command" if b"scheduler.cli" in command or b"evalfleet\0" in command else "other"


@contextmanager
def tree_of(toml: str, case: str) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="evalfleet-bench-"))
    try:
        (folder / "evals" / "cases").mkdir(parents=True)
        (folder / "evals" / "cases" / "bench.yaml").write_text(case, encoding="utf-8")
        (folder / "evalfleet.toml").write_text(toml, encoding="utf-8")
        yield folder
    finally:
        shutil.rmtree(folder)


def run(tree: Path, *words: str) -> tuple[float, dict[str, float]]:
    """Wall seconds of one command, and CPU seconds by part."""
    sampler = Sampler(tree)
    began = time.perf_counter()
    command = [sys.executable, "-P", "-m", "scheduler.cli", "eval", "-q", "--fresh", *words]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=600, check=False)
    wall = time.perf_counter() - began
    parts = sampler.stop()
    if done.returncode != 0:
        sys.exit(f"the command ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return wall, parts


def row(name: str, walls: list[float], parts: list[dict[str, float]], ideal: float | None) -> str:
    cpu = {
        part: statistics.median(p.get(part, 0.0) for p in parts) for part in ("command", "server", "worker", "valkey")
    }
    wall = statistics.median(walls)
    against = f"{wall / ideal:5.2f}×" if ideal else "     –"
    spent = "  ".join(f"{part} {seconds:5.2f}" for part, seconds in cpu.items())
    return f"{name:34}  {wall:6.2f} ({min(walls):.2f}–{max(walls):.2f})  {against}  {sum(cpu.values()):6.2f}  {spent}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("--conversations", type=int, default=200)
    parser.add_argument("--concurrency", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    print(f"{'':34}  wall s (min–max)   ÷ ideal  CPU s  by process")
    agent = '[harness]\nname = "bench"\n[harness.command]\nargv = ["echo", "done"]\n'
    expect = "expect: [{final_answer_contains: done}]"
    with tree_of(agent, f"scenarios:\n  - {{id: one, user: hi, {expect}}}\n") as tree:
        results = [run(tree) for _ in range(options.repeat)]
        print(row("one trivial scenario", [w for w, _ in results], [p for _, p in results], None))
    stub = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.stub", str(options.seconds)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).resolve().parent.parent,
    )  # fmt: skip
    assert stub.stdout is not None
    url = stub.stdout.readline().strip()
    openai = f'[harness]\nname = "bench"\n[harness.openai]\nbase_url = "{url}"\nmodel = "stub"\n'
    trials = min(options.conversations, 100)
    cases = -(-options.conversations // trials)
    try:
        with tree_of(openai, f"scenarios:\n  - {{id: one, user: hi, trials: {trials}, {expect}}}\n") as tree:
            case = tree / "evals" / "cases" / "bench.yaml"
            for number in range(1, cases):
                (case.parent / f"bench{number}.yaml").write_text(case.read_text())
            results = [run(tree, "-j", str(options.concurrency)) for _ in range(options.repeat)]
            ideal = options.seconds * -(-trials * cases // options.concurrency)
            name = f"{trials * cases} × {options.seconds:g} s at {options.concurrency}"
            print(row(name, [w for w, _ in results], [p for _, p in results], ideal))
    finally:
        stub.communicate("")


if __name__ == "__main__":
    main()
