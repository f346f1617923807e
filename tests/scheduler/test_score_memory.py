"""An artifact of any size is scored in the same memory (issue 4): peak RSS of a process of its own, small and ten times
as large. What may grow is about 60 bytes for an attempt, which is under a tenth of what an interpreter takes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from evalfleet.artifact import FolderResults, append_segment, write_plan
from tests.scheduler.samples import ARTIFACT, line, plan, scenario, trial_record

SCORING = """
import json, resource, sys
from evalfleet.artifact import open_result
from scheduler.score import rescored, Today
result = open_result(sys.argv[1])
found = rescored(result, Today(result.plan, None))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps([peak, sum(row.passed for row in found.summary.scenarios), found.summary.spend.tokens]))
"""
TRIALS, CASES = 100, 8
SAID = "Paris is the capital of France. " * 60
GRADERS = [{"name": "q.a", "kind": "answered", "passed": True, "score": 0.5, "why": "so " * 200}]


def scored(folder: Path, cases: int) -> tuple[int, int, int]:
    """(peak, passed, tokens) of scoring `cases` × 100 trials of some 5 KB; every third one failed then and now."""
    names = [f"case{number}" for number in range(cases)]
    expect = ({"final_answer_contains": "Paris"}, {"grader": {"name": "q.a", "pass_below": 0.5}})
    store = FolderResults(folder)
    write_plan(store, plan({name: [scenario("a", trials=TRIALS, expect=expect)] for name in names}, ks=[TRIALS]))
    for trial in range(TRIALS):
        good = trial % 3 != 0
        record = trial_record(answer=SAID if good else SAID.replace("Paris", f"Rome {trial}"))
        append_segment(
            store,
            ARTIFACT,
            [
                line(
                    "a",
                    trial,
                    "passed" if good else "failed",
                    case=name,
                    reason=None if good else SAID,
                    trial_record=record,
                    graders=GRADERS,
                    judge_score="0.5",
                    judge_feedback=SAID,
                    usage={"chat_id": f"chat_{name}_{trial}", "total_tokens": 7, "amount": "0.1", "final": True},
                )
                for name in names
            ],
        )
    command = [sys.executable, "-c", SCORING, str(store.root / ARTIFACT)]
    peak, passed, tokens = json.loads(subprocess.check_output(command, text=True))
    return peak, passed, tokens


def test_ten_times_the_trials_are_scored_in_the_same_memory(tmp_path: Path) -> None:
    small, *_ = scored(tmp_path / "small", CASES)
    large, passed, tokens = scored(tmp_path / "large", CASES * 10)
    assert (passed, tokens) == (66 * CASES * 10, 7 * TRIALS * CASES * 10), "all of it was read"
    assert large < small * 1.15
