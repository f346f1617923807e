"""When has enough failed to stop playing? (`-x`, `--max-failures N`)

What counts is a scenario that loses the gate: by one trial that failed or ended in an error; with `--allow-flaky` by
an error, or by all trials. What is in quarantine does not count. Counted is what this command saw fail: a resume with
the same flag goes on to the next failure instead of stopping at the ones it knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from evalfleet.checks.near import folded
from evalfleet.plan import Attempt, Plan
from evalfleet.quarantine import by_key

STOPPED_BY = "max_failures"
"""The code of a submission that ended so."""
_NAMED = 3


class Outcomes(Protocol):
    """What is asked of the ledger."""

    def failures(self, submission: str) -> int: ...
    def outcomes(self, submission: str) -> Mapping[str, str]: ...
    def done(self, submission: str) -> Mapping[str, str]: ...


class Enough:
    """Called before each feeding: the sentence why nothing more is fed, "" while there is room. Cheap while nothing new
    has failed: one number is read."""

    def __init__(self, plan: Plan, most: int, *, allow_flaky: bool) -> None:
        self.plan, self.most, self.allow_flaky = plan, most, allow_flaky
        self._seen = 0

    def __call__(self, ledger: Outcomes) -> str:
        failures = ledger.failures(self.plan.id)
        if failures < self.most or failures == self._seen:
            return ""
        self._seen = failures
        before = ledger.done(self.plan.id) if self.allow_flaky else {}
        lost = lost_scenarios(self.plan, ledger.outcomes(self.plan.id), before, allow_flaky=self.allow_flaky)
        if len(lost) < self.most:
            return ""
        named = ", ".join(lost[:_NAMED]) + (f" and {len(lost) - _NAMED} more" if len(lost) > _NAMED else "")
        what = "1 scenario" if len(lost) == 1 else f"{len(lost)} scenarios"
        return f"{what} failed ({named}), and --max-failures is {self.most}"


def enough_of(plan: Plan) -> Enough | None:
    """What the plan says of it; None: it plays to its end, whatever fails."""
    most = plan.limits.max_failures
    return None if most is None else Enough(plan, most, allow_flaky=plan.limits.allow_flaky)


def lost_scenarios(
    plan: Plan, outcomes: Mapping[str, str], before: Mapping[str, str] | None = None, *, allow_flaky: bool
) -> list[str]:
    """The keys, in the plan's order, of scenarios that lose the gate by what this command judged.

    `outcomes`: attempt as text → outcome; `before`: the same of earlier commands, as far as it is known.
    """
    failed: dict[tuple[int, int], set[str]] = {}
    for text, outcome in outcomes.items():
        if outcome != "passed":
            attempt = Attempt.parse(text)
            failed.setdefault((attempt.case, attempt.scenario), set()).add(outcome)
    known = {**(before or {}), **outcomes}
    apart = by_key(plan.quarantine)
    lost = []
    for (case, scenario), words in sorted(failed.items()):
        trials = [Attempt(case, scenario, n) for n in range(plan.cases[case].scenarios[scenario].scenario.trials)]
        if "error" in words or not allow_flaky or all(known.get(str(trial)) == "failed" for trial in trials):
            lost.append(plan.key_of(trials[0]))
    return [key for key in lost if folded(key) not in apart]
