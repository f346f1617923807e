"""What is evaluated while parts die: a suite whose every agent call leaves a line, so nothing is paid twice unseen.

A conversation has one to three turns; an agent takes 0.2 to 3 s, always the same for the same turn, and does not end
while the tree holds a file `hold`. Each call appends `[case, trial, turn, try, run, pid]` as it begins: the side effect
that must happen once.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

AGENT = """
import json, os, sys, time, zlib
turn = json.load(sys.stdin)
about = turn["metadata"]
what = [about["evalfleet.case"], about["evalfleet.trial"], turn["turn"], about["evalfleet.try"]]
descriptor = os.open("calls.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
os.write(descriptor, (json.dumps([*what, turn["run_id"], os.getpid()]) + "\\n").encode())
chance = zlib.crc32(json.dumps(what[:3]).encode()) / 2**32
time.sleep(0.2 + 2.8 * chance**3)
while os.path.exists("hold"):
    time.sleep(0.1)
print("said", turn["message"], "after", what[2])
"""

GRADER = '''
import time


def slow(t, case, run):
    """Takes long enough to be killed at work."""
    time.sleep(0.3)
    return {"pass": True, "score": 0.9, "why": "counted"}
'''

TRIALS = 5
_ONE = "  - {id: greets, user: hello, trials: %d, expect: [final_answer_contains: said hello]}\n"
_TWO = "  - {id: remembers, user: [one, two], trials: %d, expect: [final_answer_contains: after 1%s]}\n"
_THREE = "  - {id: goes on, user: [a, b, c], trials: %d, expect: [final_answer_contains: after 2%s]}\n"
_BOTH = "  - {id: goes on, user: again, trials: %d, expect: [final_answer_contains: after 2]}\n"
_GRADED = ", grader: {name: words.slow, pass_below: 0.5}"


@dataclass(frozen=True, slots=True)
class Call:
    """The agent was called: at this turn of this conversation, in this try."""

    case: str
    trial: int
    turn: int
    number: int
    run: str
    pid: int

    @property
    def place(self) -> tuple[str, int, int, int]:
        return self.case, self.trial, self.turn, self.number


def make(root: Path, cases: int) -> Path:
    """A tree with `cases` cases of TRIALS conversations each, of one to three turns; a third of them is graded, and a
    sixth has two scenarios, the second of which has a trial less than the others: that makes two evaluations."""
    (root / "evals/cases").mkdir(parents=True)
    (root / "evals/graders").mkdir()
    (root / "agent.py").write_text(AGENT)
    (root / "evals/graders/words.py").write_text(GRADER)
    kinds = (
        _ONE % TRIALS,
        _TWO % (TRIALS, _GRADED),
        _THREE % (TRIALS, ""),
        _ONE % TRIALS,
        _TWO % (TRIALS, "") + _BOTH % (TRIALS - 1),
        _THREE % (TRIALS, _GRADED),
    )
    for number in range(cases):
        (root / f"evals/cases/c{number:02}.yaml").write_text("scenarios:\n" + kinds[number % len(kinds)])
    (root / "evalfleet.toml").write_text(
        '[harness]\nname = "counter"\nfiles = ["agent.py", "evalfleet.toml"]\n[harness.command]\n'
        f'argv = ["{sys.executable}", "-S", "-E", "agent.py"]\n'
    )
    return root


def attempts(cases: int) -> int:
    """How many attempts the suite has."""
    return sum(TRIALS + (TRIALS - 1 if number % 6 == 4 else 0) for number in range(cases))


def calls(tree: Path) -> list[Call]:
    """What was really paid for, in the order of beginning."""
    file = tree / "calls.txt"
    return [Call(*json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []
