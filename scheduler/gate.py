"""Is the gate won or lost, and with which exit code does the command end (S36)?"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scheduler.summary import ScenarioSummary, Summary


def lost(scenario: ScenarioSummary, *, allow_flaky: bool = False, allow_missing: bool = False) -> bool:
    """Is the gate lost by this scenario, whatever its missing attempts give?

    Errors lose it even where flaky is allowed: S36 names them apart. With `allow_missing` the missing attempts were
    given up and give nothing (S18), so one that never passed is lost too.
    """
    if scenario.errors or scenario.verdict == "fail":
        return True
    if allow_missing and scenario.failed and not scenario.passed:
        return True
    return not allow_flaky and (scenario.failed > 0 or scenario.verdict == "flaky")


def exit_code(
    summary: Summary,
    *,
    allow_flaky: bool = False,
    regressed: bool = False,
    stopped: bool = False,
    usage: bool = False,
    fault: bool = False,
    signal: int | None = None,
) -> int:
    """The first that applies: 130/143 · 70 · 2 · 1 if lost whatever the missing give · 4 · 3 · 0. What is in quarantine
    does not count.

    `signal` that ended the command (2 or 15); `fault` of ours; `usage`: nothing matched; `stopped` by budget or time;
    `regressed`: the comparison says so and it counts. Evidence that the evaluation does not hold yet is an open end,
    too: exit 3, and a resume records it.
    """
    if signal is not None:
        return 128 + signal
    if fault:
        return 70
    if usage or not summary.scenarios:
        return 2
    allowed = summary.missing_allowed
    gating = [scenario for scenario in summary.scenarios if scenario.quarantine is None]
    if regressed or any(lost(s, allow_flaky=allow_flaky, allow_missing=allowed) for s in gating):
        return 1
    if stopped:
        return 4
    given_up = (allowed and scenario.missing for scenario in gating)
    still_open = (scenario.verdict == "incomplete" for scenario in gating)
    unfinished = any(is_open and not up for is_open, up in zip(still_open, given_up, strict=True))
    unrecorded = summary.unrecorded - (summary.refused if allowed else 0)
    return 3 if unfinished or unrecorded else 0
