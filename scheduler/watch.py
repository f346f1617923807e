"""How does somebody see how far a fleet's submission is, and why it stands still?

`watch` reads the ledger only: it drives nothing, and ends without any effect on what it watched, unless it was told
how much may be missing.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from evalfleet.artifact import find, finish, open_artifact, read_plan
from evalfleet.errors import ResultsAway, TargetUnreachable, UsageError
from evalfleet.ledger import GRACE_MS, Ledger, Meta, Progress
from evalfleet.plan import Plan
from evalfleet.results import ResultsStore, shared_results
from evalfleet.settings import Settings
from scheduler.allowed import AllowedMissing, are_over, ended_by_itself
from scheduler.compare import Baseline, Compared, FailOn, baseline_of, planned_baseline
from scheduler.dispatch import Ended
from scheduler.evaluate import Reporter
from scheduler.fleet import documents, end, summarize_fleet
from scheduler.interrupt import Interrupts
from scheduler.summary import Summary, exit_code

EVERY_S = 0.5
SAY_AFTER_S = 4.0
AWAY_S = 60.0
"""A broker that does not answer is waited for this long."""
RETIRES_S = 20.0
"""A scheduler takes what has ended off the books within a moment; a killed one is replaced within 15 s."""


def watch(
    submission: str,
    settings: Settings,
    reporter: Reporter,
    *,
    allow_flaky: bool,
    allow_missing: AllowedMissing | None = None,
    baseline: str | Baseline | None = None,
    fail_on: FailOn | None = None,
    root: Path | None = None,
) -> tuple[Summary, int, Compared | None]:
    """Follow a submission to its end; its summary, its exit code, and how it compares with its baseline: the one that
    is given, as on the command line (`root`: of the tree whose commits it may name) or opened, else the one that it was
    submitted with. A signal ends the watching, not the submission: then the summary is how far it is. Where no more is
    missing at its end than `allow_missing`, its evaluations are ended with what is recorded (S18): the one thing that
    watching does. UsageError when nobody knows it."""
    store = shared_results(settings.require_results_url())
    try:
        store.check()
    except ResultsAway as away:  # it is needed at the end, and the submission waits for it, too
        reporter.warn(str(away))
    if isinstance(baseline, str):  # whatever is wrong with it is said before the watching
        result = baseline_of(baseline, store, root or Path.cwd(), apart_from=find(store, submission))
        baseline = Baseline(result, fail_on)
    ledger = Ledger(settings.require_broker().redis_url)
    with Interrupts() as interrupts:
        ended = _follow(submission, store, ledger, interrupts, reporter)
        if ended is not None:
            _until_written(submission, ledger, interrupts, retired=allow_missing is not None)
    reporter.done()
    if ended is not None and ended.state == "stopped" and ended.reason:
        reporter.warn(f"stopped: {ended.reason}")
    artifact = find(store, submission)
    if artifact is None:
        raise UsageError(f"{store.shown()} holds no artifact of {submission}; is EVALFLEET_RESULTS_URL the fleet's?")
    plan = read_plan(store, artifact)
    older = baseline or planned_baseline(plan, store, fail_on, reporter.warn)
    found = documents(settings, plan)
    summary = summarize_fleet(plan, store, found, ended or Ended("left"))
    over = allow_missing is not None and ended is not None and allow_missing.covers(summary)
    if over and ended is not None and ended_by_itself(ended, ledger.progress(submission)):
        found = end(settings, plan, found)
        over = are_over(found)
        summary = replace(summarize_fleet(plan, store, found, ended), missing_allowed=over)
    elif are_over(found):  # somebody may have ended it so before
        stored = open_artifact(store, artifact).summary or {}
        summary = replace(summary, missing_allowed=stored.get("missing_allowed") is True)
    if ended is None:
        reporter.note(f"not watching any more; {submission} goes on (`evalfleet watch {submission}`)")
    ledger.close()
    compared = None if older is None or ended is None else older.against(plan, summary)
    code = exit_code(
        summary,
        allow_flaky=allow_flaky,
        regressed=compared is not None and compared.is_lost,
        fault=ended is not None and ended.is_our_fault,
        stopped=ended is not None and ended.is_by_limit,
        signal=interrupts.first if ended is None else None,
    )
    if over and summary.missing_allowed:
        finish(
            store, artifact, summary.stored(code) | ({} if compared is None else {"comparison": compared.document()})
        )
    return summary, code, compared


def _until_written(submission: str, ledger: Ledger, interrupts: Interrupts, *, retired: bool) -> None:
    """What was judged when it was stopped is in the artifact. `retired`: its scheduler has written its summary, too:
    one that says what may be missing is to be the last."""
    deadline = time.monotonic() + RETIRES_S
    for _ in ledger.wake_ups(EVERY_S):
        if interrupts.first is not None or time.monotonic() > deadline:
            return
        with contextlib.suppress(TargetUnreachable):  # it is asked again
            if submission not in ledger.submissions() or (not retired and ledger.is_settled(submission)):
                return


def _follow(
    submission: str, store: ResultsStore, ledger: Ledger, interrupts: Interrupts, reporter: Reporter
) -> Ended | None:
    """Show progress until it ends; None when a signal came first. A broker that is away, or has lost the submission, is
    waited for."""
    notes = _Notes()
    known: Plan | None = None
    total = 0
    away_since: float | None = None
    progress = Progress()
    pause = 0.0
    while not interrupts.wait(pause):
        pause = EVERY_S
        try:
            meta = ledger.meta(submission)
            if meta is None:
                return _forgotten(submission, store, ran=known is not None)
            if meta.state != "running":
                return Ended(meta.state, meta.reason, meta.code, ledger.given_up(submission))
            if known is None:
                known = ledger.plan(submission)
                total = 0 if known is None else sum(1 for _ in known.all_attempts())
                reporter.note(f"watching {submission}: {total} attempts; Ctrl-C ends the watching only")
            progress = ledger.progress(submission)
            note = notes.settled(why_idle(ledger, submission, meta), time.monotonic())
            away_since = None
        except TargetUnreachable as away:
            now = time.monotonic()
            away_since = now if away_since is None else away_since
            if now - away_since > AWAY_S:
                raise
            note = str(away)
        reporter.progress(progress, total, note)
    return None


def _forgotten(submission: str, store: ResultsStore, *, ran: bool) -> Ended:
    """What the broker does not know has ended if there is a summary, unless it `ran` before our eyes. Else it comes
    back: TargetUnreachable. UsageError when it is nowhere."""
    artifact = find(store, submission)
    if artifact is None:
        raise UsageError(f"nobody knows a submission {submission}; `evalfleet list` shows what was started here")
    if ran or not store.exists(f"{artifact}/summary.json"):
        raise TargetUnreachable(f"the broker has lost {submission}; a scheduler puts it back on the books")
    return Ended("unknown")


def why_idle(ledger: Ledger, submission: str, meta: Meta) -> str:
    """What a running submission waits for, in words; "" when all is well."""
    grace = ledger.grace_ms()
    if grace:
        return f"the broker is new to the fleet: work begins within {GRACE_MS // 1000} s"
    used, limit = ledger.memory()
    if 0 < limit <= used:
        return "the broker is full and refuses writes; everything waits until it has room"
    if meta.paused:
        return "paused"
    workers = ledger.workers()
    if not workers:
        return "no worker is alive; start one with `evalfleet worker`"
    if ledger.lock_owner(f"drive:{submission}") is None:
        said = f"; the last word was: {meta.note}" if meta.note else ""
        return f"no scheduler drives it; start one with `evalfleet scheduler`{said}"
    return meta.note or "; ".join(out_of_reach(workers)[:2])


def out_of_reach(workers: Sequence[Mapping[str, Any]]) -> list[str]:
    """What workers say that they do not reach, a sentence for each."""
    return sorted(
        f"worker {worker.get('host')}-{worker.get('pid')} does not reach the {what}: {why}"
        for worker in workers
        for what, why in dict(worker.get("unreachable") or {}).items()
    )


class _Notes:
    """Says a thing only when it has been so for a while: a scheduler needs two seconds to find what was submitted."""

    def __init__(self) -> None:
        self.said, self.since = "", 0.0

    def settled(self, note: str, now: float) -> str:
        if note != self.said:
            self.said, self.since = note, now
        return note if now - self.since >= SAY_AFTER_S else ""
