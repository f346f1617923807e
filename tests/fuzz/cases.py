"""Is there a file that makes the reader of case files or of suites raise, take over a second, or over 200 MB, or lie?

    python -m tests.fuzz.cases --seconds 600 --seed 1

Files come from `tests.fuzz.writing`, one for each number from the seed on. They are read in a child process under a
limit of address space; CPU time is counted, so that a busy machine changes nothing. What is accepted must mean the same
after it was dumped and loaded again: as our own document, and as YAML. Exit code 1 and the number of each file with a
finding; `--one NUMBER` writes that file.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import select
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from evalfleet.checks import Case, case_key, parse_case
from evalfleet.checks.suite import parse_suite
from tests.fuzz.writing import Writer

SECONDS = 1.0
MEGABYTES = 200
WALL = 60.0
"""Seconds without a word from the child after which it hangs, on however busy a machine."""

_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


@dataclass(slots=True)
class Found:
    """`findings`: the number of a file and what is wrong with how it was read."""

    files: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    slowest: tuple[float, int] = (0.0, 0)
    findings: list[tuple[int, str]] = field(default_factory=list)


def judged(data: bytes, suite: str | None = None) -> tuple[str, float]:
    """`accepted` or `refused`, and CPU seconds. AssertionError, or whatever the reader raises, for a finding. `suite`:
    its file's name, where the data are rows."""
    began = time.process_time()
    if suite is None:
        loaded = parse_case(data, name="a", file="evals/cases/a.yaml")
    else:
        loaded = parse_suite(data, name="a", file=suite, beside=lambda name: (name, data))
    said = "\n".join(problem.render() for problem in (*loaded.problems, *loaded.warnings))
    documents = [problem.document("error") for problem in (*loaded.problems, *loaded.warnings)]
    spent = time.process_time() - began
    assert bool(loaded.cases) is not bool(loaded.problems)
    said.encode()
    json.dumps(documents)
    if loaded.problems:
        return "refused", spent
    for case in loaded.cases[:50]:
        _means_the_same(case)
    keys = [case_key(case.name, scenario.id) for case in loaded.cases for scenario in case.scenarios]
    assert len(keys) == len(set(keys)), "two scenarios of one key"
    return "accepted", spent


def _means_the_same(case: Case) -> None:
    assert Case.from_json(json.loads(json.dumps(case.to_json()))) == case, "another case after to_json → from_json"
    again = parse_case(dumped(case), name="a", file="evals/cases/a.yaml")
    assert not again.problems, f"refused after a dump: {again.problems[0].render()}"
    plain = Case(case.name, case.file, tuple(replace(s, given=None) for s in case.scenarios))
    before, after = ([s.content() for s in c.scenarios] for c in (plain, again.cases[0]))
    assert before == after, "another case after dump → load"


def dumped(case: Case) -> bytes:
    """The case as somebody's YAML writer has it."""
    plain = [replace(scenario, given=None) for scenario in case.scenarios]
    scenarios = [{**s.content(), "timeout": f"{int(s.timeout)}s"} for s in plain]
    # To PyYAML, which writes YAML 1.1, these end a line: it would fold what stands beside them.
    plainly = not re.search("[\x85\u2028\u2029]", json.dumps(scenarios, ensure_ascii=False))
    text = yaml.dump({"scenarios": scenarios}, Dumper=_DUMPER, allow_unicode=plainly, sort_keys=False)
    return str(text).encode()


def fuzz(seed: int, *, files: int | None = None, seconds: float | None = None) -> Found:
    """Read so many files, or for so long. A child that dies or hangs is a finding; the next one goes on."""
    found = Found()
    until = None if seconds is None else time.monotonic() + seconds
    number, end = seed, None if files is None else seed + files
    while (end is None or number < end) and (until is None or time.monotonic() < until):
        for event in _child(number, min(500, (end or number + 500) - number)):
            if event["is"] == "at":
                number = event["file"] + 1
                found.files += 1
                continue
            found.counts[event["is"]] += 1
            if event["is"] == "finding":
                found.findings.append((number - 1, event["what"]))
            elif event["seconds"] > found.slowest[0]:
                found.slowest = (event["seconds"], number - 1)
            if event["is"] != "finding" and event["seconds"] > SECONDS:
                found.findings.append((number - 1, f"took {event['seconds']:.2f} s"))
            if until is not None and time.monotonic() > until:
                break
    return found


def _child(first: int, count: int) -> Iterator[dict[str, Any]]:
    """What a child says of its files, one line before each and one after."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        try:
            _read_files(first, count, writing)
        finally:
            os._exit(0)
    os.close(writing)
    buffer, ended = b"", False
    try:
        while not ended:
            if not select.select([reading], [], [], WALL)[0]:
                yield {"is": "finding", "what": f"hung for {WALL:g} s"}
                break
            chunk = os.read(reading, 65536)
            ended = not chunk
            *lines, buffer = (buffer + chunk).split(b"\n")
            for line in lines:
                yield json.loads(line)
    finally:
        os.close(reading)
        if not ended:
            os.kill(pid, 9)
        _, status = os.waitpid(pid, 0)
    if status and ended:
        yield {"is": "finding", "what": f"the child ended with {status}"}


def _read_files(first: int, count: int, out: int) -> None:
    writer = Writer()
    size = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    limit = size + MEGABYTES * 2**20

    def say(**event: object) -> None:
        os.write(out, json.dumps(event).encode() + b"\n")

    for number in range(first, first + count):
        say(**{"is": "at", "file": number})
        data = writer.file(number)
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        try:
            what, spent = judged(data, writer.suite(number))
        except BaseException:
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            say(**{"is": "finding", "what": traceback.format_exc()[-1500:]})
        else:
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            say(**{"is": what, "seconds": spent})


def report(found: Found) -> str:
    """What was found, and how much was read, for people."""
    counts = ", ".join(f"{count} {what}" for what, count in sorted(found.counts.items()))
    took, number = found.slowest
    lines = [f"file {number}: {what}\n" for number, what in found.findings]
    return "\n".join([*lines, f"{found.files} files: {counts}; the slowest took {took:.2f} s of CPU (file {number})"])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.cases")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--one", type=int, help="write this file to stdout and read nothing")
    options = parser.parse_args()
    if options.one is not None:
        sys.stdout.buffer.write(Writer().file(options.one))
        return 0
    found = fuzz(options.seed, seconds=options.seconds)
    print(report(found))
    return 1 if found.findings else 0


if __name__ == "__main__":
    sys.exit(main())
