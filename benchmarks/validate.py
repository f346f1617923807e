"""How long does `evalfleet validate` take for 2,000 scenarios?

    python -m benchmarks.validate [--scenarios 2000] [--repeat 3]

The whole command with its imports and the graders' check, over the same scenarios in one file, in a hundred, in a file
each, and as rows of a suite. CPU is the command's and its children's; on a busy machine that is the number to look at.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SCENARIO = """\
  - id: scenario-{n}
    user:
      - What is the capital of country number {n}? Answer in one line.
      - And how many people live there?
    expect:
      - final_answer_contains: answer {n}
      - final_answer_max_chars: 120
      - tool_called: {{name: shell__run, args: {{country: c{n}, n: {n}}}}}
      - grader: {{name: q.ok, pass_below: 0.7}}
      - no_error: true
"""
SUITE = """\
rows: rows.jsonl
expect:
  - final_answer_contains: ${expected}
  - final_answer_max_chars: 120
  - tool_called: {name: shell__run, args: {country: "${country}"}}
  - grader: {name: q.ok, pass_below: 0.7}
  - no_error: true
"""


def tree_of(root: Path, scenarios: int, files: int) -> None:
    (root / "evals/cases").mkdir(parents=True)
    (root / "evals/graders").mkdir()
    (root / "evals/graders/q.py").write_text("def ok(t, case, run):\n    return True\n")
    (root / "evalfleet.toml").write_text('[harness.command]\nargv = ["echo", "done"]\n')
    for file in range(files):
        numbers = range(file, scenarios, files)
        text = "scenarios:\n" + "".join(SCENARIO.format(n=n) for n in numbers)
        (root / f"evals/cases/case{file:04d}.yaml").write_text(text)
    (root / "suite.yaml").write_text(SUITE)
    rows = ({"input": f"Capital of {n}?", "expected": f"answer {n}", "country": f"c{n}"} for n in range(scenarios))
    (root / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def timed(root: Path, *words: str) -> tuple[float, float]:
    """Wall and CPU seconds of one command."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-P", "-m", "scheduler.cli", "validate", *words]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=600, check=False)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        sys.exit(f"the command ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.validate")
    parser.add_argument("--scenarios", type=int, default=2000)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    print(f"{'':31}  wall s (min–max)    CPU s")
    for name, files, words in (
        ("one file", 1, ()),
        ("100 files", 100, ()),
        ("a file each", options.scenarios, ()),
        ("rows of a suite", 1, ("--suite", "suite.yaml")),
    ):
        folder = Path(tempfile.mkdtemp(prefix="evalfleet-bench-"))
        try:
            tree_of(folder, options.scenarios, files)
            walls, cpu = zip(*(timed(folder, *words) for _ in range(options.repeat)), strict=True)
        finally:
            shutil.rmtree(folder)
        wall = statistics.median(walls)
        shown = f"{options.scenarios} scenarios, {name}"
        print(f"{shown:31}  {wall:6.2f} ({min(walls):.2f}–{max(walls):.2f})  {statistics.median(cpu):6.2f}")


if __name__ == "__main__":
    main()
