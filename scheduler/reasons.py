"""Why does a submission wait, or stand still, or end for what others lack, in words?  (S17, I8)

How much may be begun is for the claim to say (`evalfleet/ledger/lua/_target.lua`). Here is what people read of it,
while it lasts and when it lasted too long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from evalfleet.contract.tasks import AGGREGATE_QUEUE, GRADE_QUEUE, RUN_QUEUE, kind_of, queue_name
from evalfleet.credentials import needs
from evalfleet.ledger import Target, queues_of

CUT_SHOWN_MS = 60_000
"""A cut is told of for so long, unless the limit has risen above what the submission wants."""


def trouble(name: str, target: Target, concurrency: int, now: datetime) -> str:
    """What a submission waits for at its target, "" when it does not. Says the same thing for as long as it is the same
    trouble: times are told by the clock."""
    if target.down:
        since = _clock(now, -target.since_ms)
        return f"{name} is down since {since} ({target.down}); one conversation goes on asking, none is given up"
    if target.wait_ms >= 1000:
        return f"{name} asked everybody to wait until {_clock(now, target.wait_ms)} ({target.why})"
    limited = target.most is not None and target.cut and target.most < concurrency
    if limited and target.cut_ms < CUT_SHOWN_MS:
        at = _clock(now, -target.cut_ms)
        return f"{name} refused runs at {at} ({target.why}): {target.cut} at once since then, one more each second"
    return ""


def gave_out(name: str, target: Target) -> str:
    """Why a submission ends whose target has taken nothing for too long."""
    why = target.down or target.why
    return f"{name} has taken no run for {target.since_ms / 1000:.0f} s: {why}; nothing was given up, a resume goes on"


def unwritten(why: str, since_ms: int) -> str:
    """What a submission waits for whose results are not taken. `since_ms`: since the epoch."""
    since = datetime.fromtimestamp(since_ms / 1000, UTC)
    return f"nothing can be recorded since {since:%H:%M:%S} UTC: {why}; what is judged waits, and goes on by itself"


def unwritten_too_long(why: str, seconds: float) -> str:
    """Why a submission ends whose results were not taken for too long."""
    return f"nothing could be recorded for {seconds:.0f} s: {why}; what is judged waits, a resume goes on"


def nobody_takes(
    account: str | None, workers: Sequence[Mapping[str, Any]], published: int, waiting: int, note: str
) -> str:
    """Why messages wait: `published` conversations, and `waiting` attempts for graders and the aggregator. `workers`:
    the living, as their heartbeats describe them; `account`: the profile whose key the plan needs; `note`: what is
    known already of attempts that wait."""
    if not workers:
        return "no worker is alive; start one with `evalfleet worker`"
    asked = ((RUN_QUEUE, published), (GRADE_QUEUE, waiting), (AGGREGATE_QUEUE, waiting))
    taken = set().union(*map(queues_of, workers))
    absent = [kind for kind, wanted in asked if wanted and queue_name(kind, account) not in taken]
    able = [worker for worker in workers if any(kind_of(queue) in absent for queue in queues_of(worker))]
    if able:  # they take such work, but of other accounts
        return f"{needs(account)} is not set on any worker that could take its messages: {_named(able)}"
    if absent:
        return f"no worker takes the queue {' or '.join(absent)}"
    if waiting:
        return note or "judged attempts are not recorded; do the target and the results store answer?"
    return "messages are queued and no worker takes them"


def _named(workers: Sequence[Mapping[str, Any]]) -> str:
    """As their logs name them."""
    names = sorted(f"{worker['host']}-{worker['pid']}-{worker['incarnation'][:8]}" for worker in workers)
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _clock(now: datetime, ms: int) -> str:
    at = datetime.fromtimestamp(now.timestamp() + ms / 1000, UTC)
    return f"{at:%H:%M:%S} UTC"
