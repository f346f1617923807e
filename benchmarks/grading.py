"""What does a grade cost beyond the judge's own work, and how soon is the place of one that hangs free again?

    python -m benchmarks.grading [--grades 500] [--hangs 20]

A grade is a worker's whole way with one message: claim the played scenario in the ledger (a Valkey of its own), run
the grader in its cage, judge the trial, hand the attempt line in. One after the other, so that a time is a time and no
queue. The grader sleeps and answers with the seconds that it took, which are taken off; so all the CPU is ours. On a
machine that does other things beside, the times show them, too: look at the CPU.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from evalfleet.checks.case import parse_case
from evalfleet.checks.outcome import Meaning, RunMeaning
from evalfleet.checks.trial import Trial
from evalfleet.contract import jsontext
from evalfleet.contract.ids import new_id
from evalfleet.graders.bundle import Bundle, build_bundle, unpack
from evalfleet.graders.pool import GraderPool, GraderSettings
from evalfleet.plan import (
    Attempt,
    Limits,
    Plan,
    PlannedCase,
    PlannedEvaluation,
    PlannedGraders,
    PlannedScenario,
    PlannedTarget,
    Scorer,
    SuiteName,
)
from evalfleet.settings import Settings
from scheduler.valkey import READY, arguments
from worker.evidence import Play
from worker.tasks import Crew

LIMIT_S = 1.0
"""Of the graders that hang: the limit itself is not what is measured."""

JUDGES = """
import subprocess, time

def works(t, case, run):
    began = time.perf_counter()
    time.sleep(0.002)
    return {"pass": True, "why": repr(time.perf_counter() - began)}

def sleeps(t, case, run):
    time.sleep(600)

def hangs_with_a_family(t, case, run):
    for _ in range(5):
        subprocess.Popen(["sleep", "600"], start_new_session=True)
    while True:
        pass
"""
CASE = "defaults: {trials: 100}\nscenarios:\n  - {id: one, user: a, expect: [grader: {name: j.works}]}\n"
ARTIFACT = "bench"


class Silent:
    """The messages of a worker, to nobody."""

    def grade(self, plan: str, attempt: Attempt) -> None: ...

    def aggregate(self, plan: str) -> None: ...


@contextmanager
def valkey(folder: Path) -> Iterator[str]:
    """A Valkey as the embedded stack starts it, by its URL."""
    socket = folder / "v.sock"
    command = arguments(socket, folder)
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        while READY not in process.stdout.readline():
            if process.poll() is not None:
                raise SystemExit("Valkey did not start")
        yield f"unix://{socket}?db=0"
    finally:
        process.terminate()
        process.communicate()


def bundle_of(folder: Path) -> Bundle:
    (folder / "evals" / "graders").mkdir(parents=True)
    (folder / "evals" / "graders" / "j.py").write_text(JUDGES)
    return build_bundle(folder, ["j.works"], [])


def plan_of(bundle: Bundle, number: int) -> Plan:
    [case] = parse_case(CASE.encode(), name="c", file="evals/cases/c.yaml").cases
    return Plan(
        id=f"sub_{number:026d}",
        pin="0" * 64,
        generation=0,
        created_at="2026-01-01T00:00:00Z",
        evalfleet="0",
        suite="checks",
        artifact=ARTIFACT,
        target=PlannedTarget(None, new_id("h"), None, "bench"),
        commit="0" * 40,
        concurrency=4,
        limits=Limits(),
        scorer=Scorer("evalfleet-checks", "1"),
        infra_codes=(),
        evaluations=(PlannedEvaluation(100, "eval_1", SuiteName("checks/k100", "v", "checks")),),
        cases=(PlannedCase("c", case.file, tuple(PlannedScenario(s, 0) for s in case.scenarios)),),
        graders=PlannedGraders(bundle.digest, None, (), network=False, memory_mb=1024, judge=True),
    )


def cage_cpu() -> float:
    """Seconds of the children that were waited for: the cage's, once that is closed."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def grade(folder: Path, count: int) -> None:
    """`count` grades through a worker; prints what they cost."""
    bundle = bundle_of(folder / "tree")
    with valkey(folder) as url:
        variables = {"EVALFLEET_BROKER_URL": url, "EVALFLEET_BASE_URL": "http://127.0.0.1:9", "EVALFLEET_TOKEN": "t"}
        settings = Settings.from_env(variables)
        crew = Crew(settings, Silent(), queues="grade", slots=4)
        crew.ledger.open_epoch(mine=True)
        crew.start()
        grades: list[tuple[float, float]] = []
        before = cage_cpu()
        try:
            for number in range(-(-count // 100)):
                plan = plan_of(bundle, number)
                crew.ledger.add(plan, {})
                crew.ledger.put_graders(plan.id, bundle.digest, lambda: bundle.data)
                grades += [_grade_one(crew, plan, trial) for trial in range(100)]
        finally:
            crew.stop()
        in_cage = 1000 * (cage_cpu() - before) / count
    beyond_ms = sorted(1000 * seconds for seconds, _ in grades[1:])  # the first starts the cage
    median, slowest = statistics.median(beyond_ms), beyond_ms[-1]
    print(
        f"{len(beyond_ms)} grades beyond the judge's own work: median {median:.1f} ms, slowest {slowest:.1f}", end="; "
    )
    print(f"the first, with the cage's start, {1000 * grades[0][0]:.0f}")
    in_worker = statistics.mean(1000 * used for _, used in grades[1:])
    print(f"CPU of a grade: {in_worker:.1f} ms in the worker, {in_cage:.1f} in its cage")


def _grade_one(crew: Crew, plan: Plan, trial: int) -> tuple[float, float]:
    """(seconds beyond the judge's own, CPU seconds of this process)"""
    attempt = Attempt(0, 0, trial)
    seen = Trial((), (), (), "It is Paris.", None, 0)
    play = Play(attempt, seen, RunMeaning(Meaning.RESULT, ""), new_id("run"), new_id("chat"), (), None)
    crew.ledger.put_play(plan.id, attempt, jsontext.dumps(play.to_json()))
    began, used = time.perf_counter(), time.process_time()
    crew.grade(plan.id, attempt)
    took, used = time.perf_counter() - began, time.process_time() - used
    return took - float(_record(crew, plan, attempt)["graders"][0]["why"]), used


def _record(crew: Crew, plan: Plan, attempt: Attempt) -> dict[str, Any]:
    document: dict[str, Any] = jsontext.loads(crew.ledger.records(plan.id, 1000)[attempt])
    return document


async def hang(folder: Path, count: int) -> None:
    """Graders that hang in the one place of a pool; prints when it was free again."""
    bundle = bundle_of(folder / "hanging")
    root = unpack(bundle.data, bundle.digest, folder / "unpacked")
    pool = GraderPool(workers=1, limit_s=LIMIT_S)
    case: dict[str, Any] = {"id": "one", "user": ["a"], "expect": []}
    run: dict[str, Any] = {"final_answer": "x", "tool_calls": [], "error": None, "turns": 1, "duration_ms": 1}

    async def ended(name: str) -> float:
        began = time.perf_counter()
        answer = await pool.grade(root, GraderSettings(), name, case, run, None)
        assert answer.error is None or "ran over" in answer.error, answer
        return time.perf_counter() - began

    await ended("j.works")
    for name in ("j.sleeps", "j.hangs_with_a_family"):
        late = sorted([1000 * (await ended(name) - LIMIT_S) for _ in range(count)])
        print(f"{name}, {count} times: its place is free after its limit by {statistics.median(late):.0f} ms", end=" ")
        print(f"(slowest {late[-1]:.0f} ms)")
    await pool.aclose()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.grading")
    parser.add_argument("--grades", type=int, default=500)
    parser.add_argument("--hangs", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ef-", ignore_cleanup_errors=True) as folder:  # a socket's path is short
        grade(Path(folder), options.grades)
        asyncio.run(hang(Path(folder), options.hangs))


if __name__ == "__main__":
    main()
