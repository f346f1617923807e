"""How is a submission driven to its end, also when somebody presses Ctrl-C, or enough has failed?

`drive` steps the dispatcher until it ends: a scheduler's way. `drive_to_end` is one command's: it shows progress, and
on a signal walks the steps of S38: feed nothing more, give runs in flight their 10 s, cancel them, wait for what is
judged to be recorded. The dispatcher's `stopping` walks them too.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable

from evalfleet.errors import BrokerFull, EvalfleetError, ResultsAway, TargetUnreachable
from evalfleet.ledger import Ledger, Progress
from scheduler.dispatch import Dispatcher, Ended
from scheduler.enough import STOPPED_BY
from scheduler.interrupt import Interrupts

log = logging.getLogger(__name__)

TICK_S = 0.5
IN_FLIGHT_S = 10.0
"""Runs in flight at the first signal may end by themselves for this long."""
CANCEL_S = 8.0
"""Cancelled runs and unrecorded attempts are waited for this long; what is not done then stays missing."""
HURRY_S = 1.0
SETTLES_S = 10.0
"""What is in hand when a submission is stopped is waited for so long."""
COMPLETES_S = 3.0
"""The evaluations are completed right after their last attempts are recorded; for this long it is waited for."""

Tick = Callable[[Progress, str], None]


def drive(
    dispatcher: Dispatcher,
    *,
    tick: Callable[[Progress, str], bool],
    every: float = TICK_S,
) -> Ended:
    """Drive one submission to its end. `tick(progress, note)` is called about twice a second; True ends the drive
    early (state `left`). A broker that is away, or takes no write, is waited for, as long as the plan's stall limit; so
    are results that are to be read again because it has lost them."""
    ledger, sub = dispatcher.ledger, dispatcher.plan.id
    away_since: float | None = None
    progress = Progress()
    shown_at = 0.0
    for _ in ledger.wake_ups(every):
        note = dispatcher.note
        try:
            ended = dispatcher.step()
            if ended is not None:
                if ended.state == "stopped" and not _settles(dispatcher, tick):
                    return Ended("left")
                tick(ledger.progress(sub), "")
                return ended
            away_since = None
            if dispatcher.clock() - shown_at >= every:
                progress = ledger.progress(sub)
        except (TargetUnreachable, BrokerFull, ResultsAway) as away:
            now = dispatcher.clock()
            away_since = away_since if away_since is not None else now
            note = str(away)
            if now - away_since > dispatcher.plan.limits.stall:
                reason = f"{away} (for {now - away_since:.0f} s)"
                code = "storage" if isinstance(away, ResultsAway) else "broker_away"
                with contextlib.suppress(EvalfleetError):  # one that is full hears this all the same
                    ledger.end(sub, "stopped", reason, code)
                return Ended("stopped", reason, code)
        except EvalfleetError as error:
            log.warning("dispatching %s: %s", sub, error)
            with contextlib.suppress(EvalfleetError):  # else its workers go on, and everybody else waits for them
                ledger.end(sub, "stopped", error.message, type(error).__name__)
            return Ended("stopped", error.message, type(error).__name__)
        if dispatcher.clock() - shown_at >= every:
            shown_at = dispatcher.clock()
            if tick(progress, note):
                return Ended("left")
    raise AssertionError("wake_ups never ends")


def _settles(dispatcher: Dispatcher, tick: Callable[[Progress, str], bool]) -> bool:
    """Whoever stops a submission does not wait for what its workers have in hand: what they judged still becomes
    evidence and is recorded, and belongs in the summary and the merged artifact. False: `tick` ended the wait."""
    ledger, sub = dispatcher.ledger, dispatcher.plan.id
    end = dispatcher.clock() + SETTLES_S
    for _ in ledger.wake_ups(0.2):
        if ledger.is_settled(sub) or dispatcher.clock() > end:
            return True
        if tick(ledger.progress(sub), "recording what is judged already"):
            return False
    raise AssertionError("wake_ups never ends")


def drive_to_end(
    dispatcher: Dispatcher,
    interrupts: Interrupts,
    *,
    tick: Tick,
    check: Callable[[], None] = lambda: None,
    leave_running: bool = False,
) -> Ended:
    """`tick(progress, note)` shows how far it is; `check` raises when the stack below cannot go on."""

    def on_tick(progress: Progress, note: str) -> bool:
        check()
        tick(progress, note)
        return interrupts.first is not None or bool(dispatcher.stopping)

    ended = drive(dispatcher, tick=on_tick)
    if ended.state != "left":
        return ended
    return _leave(dispatcher, interrupts, tick, leave_running=leave_running)


def _leave(dispatcher: Dispatcher, interrupts: Interrupts, tick: Tick, *, leave_running: bool) -> Ended:
    ledger, sub = dispatcher.ledger, dispatcher.plan.id
    stopping = dispatcher.stopping if interrupts.first is None else ""
    code = "leave_running" if leave_running else STOPPED_BY if stopping else "interrupted"
    reason = stopping or "interrupted"
    try:
        ledger.drain(sub)
        if not leave_running and interrupts.count < 2:
            again = "Ctrl-C" if stopping else "again"
            note = f"{reason}: waiting up to {IN_FLIGHT_S:.0f} s for runs in flight ({again} to leave at once)"
            _wait(ledger, sub, interrupts, IN_FLIGHT_S, lambda p: tick(p, note))
            if _completes(dispatcher):
                return Ended("completed")
        ledger.end(sub, "stopped", reason, code)
        limit = HURRY_S if interrupts.count > 1 else CANCEL_S
        _wait(ledger, sub, interrupts, limit, lambda p: tick(p, "cancelling what still runs" if p.running else ""))
    except EvalfleetError as error:
        return Ended("stopped", f"{reason}; {error.message}", code)
    return Ended("stopped", reason, code, ledger.given_up(sub))


def _completes(dispatcher: Dispatcher) -> bool:
    """Whether all was in flight or done when the signal came, and is recorded now: there is nothing to interrupt."""
    ledger, sub = dispatcher.ledger, dispatcher.plan.id
    if ledger.progress(sub).recorded < sum(1 for _ in dispatcher.plan.all_attempts()):
        return False
    end = time.monotonic() + COMPLETES_S
    for _ in ledger.wake_ups(0.2):
        meta = ledger.meta(sub)
        if meta is None or meta.state != "running" or time.monotonic() > end:
            return meta is not None and meta.state == "completed"
    raise AssertionError("wake_ups never ends")


def _wait(ledger: Ledger, sub: str, interrupts: Interrupts, limit: float, tick: Callable[[Progress], None]) -> None:
    """Until nothing is in flight or unrecorded, the limit has passed, or one more signal came."""
    end = time.monotonic() + limit
    count = interrupts.count
    for _ in ledger.wake_ups(0.2):
        progress = ledger.progress(sub)
        tick(progress)
        if progress.running == 0 and progress.waiting == 0 and ledger.is_settled(sub):
            return
        if time.monotonic() > end or (interrupts.count > count and time.monotonic() > end - limit + HURRY_S):
            return
