"""How does a run move from state to state? Each move is one write, and looks at the state it leaves, under
the lock of the run's row.

    queued <─> running ──> succeeded | failed
       │          │
       └──────────┴──> cancelling ──> cancelled

A queued run is cancelled at once. A running one whose agent's endpoint asks to wait is queued again. A run whose
cancelling was written before its end ends `cancelled`, whatever the agent said in between. Only the server that owns a
run plays it; a run that no server plays any more, or whose server does not know how long its agent took, ends `failed`,
`server_lost`, retryable, also where it was cancelling: its times are not the agent's and must not be read as a timeout
(S12, S17). Terminal runs never change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, bindparam, select

from evalfleet.server import runs as stored
from evalfleet.server.documents import now, text_of
from evalfleet.server.driving import HARNESS_CHANGED, Failure
from evalfleet.server.journal import OPEN, TERMINAL, Appended, Entry, Event, append, status_changed
from evalfleet.server.refusal import not_found
from evalfleet.server.schema import runs

SERVER_LOST: Final = Failure("server_lost", "The server that played this run stopped before the run had ended.", True)

# FOR UPDATE is Postgres': SQLite has one writer, and its SQL no such words.
_STATUS: Final = select(runs.c.status).where(runs.c.id == bindparam("p_run")).with_for_update()
_STATUS_OF_MINE: Final = (
    select(runs.c.status)
    .where(runs.c.id == bindparam("p_run"), runs.c.account == bindparam("p_account"))
    .with_for_update()
)
_BEFORE: Final = (
    select(runs.c.id)
    .where(runs.c.chat_id == bindparam("p_chat"), runs.c.turn < bindparam("p_turn"), runs.c.completed_at.is_(None))
    .order_by(runs.c.turn.desc())
    .limit(1)
)


@dataclass(frozen=True, slots=True)
class Begun:
    """A run that now runs, with what its chat has said before, and the currency in which it has reported its usage.
    `at`: the start that was written."""

    history: tuple[tuple[str, str], ...]
    currency: str | None
    appended: Appended
    at: str


@dataclass(frozen=True, slots=True)
class Behind:
    """A run that cannot begin yet: an earlier one of its chat, played by another server, has not ended."""

    run_id: str


def begin(connection: Connection, run_id: str, chat_id: str, turn: int) -> Begun | Behind | None:
    """queued → running. None if the run is not queued any more: it was cancelled while it waited."""
    if connection.execute(_STATUS, {"p_run": run_id}).scalar_one() != "queued":
        return None
    if turn and (before := connection.execute(_BEFORE, {"p_chat": chat_id, "p_turn": turn}).scalar()) is not None:
        return Behind(before)
    history = stored.history(connection, chat_id, turn) if turn else ()
    currency = stored.currency_of_chat(connection, chat_id) if turn else None
    at = now()
    changes = {"status": "running", "started_at": at, "updated_at": at}
    return Begun(history, currency, append(connection, run_id, [status_changed("running", at)], changes), at)


def queue_again(connection: Connection, run_id: str, seconds: float, why: str) -> Appended | None:
    """running → queued: the agent's endpoint has not taken the turn, and is asked again in `seconds`. Its time begins
    anew, since waiting does not count (S12). None if the run is cancelling or has ended."""
    if connection.execute(_STATUS, {"p_run": run_id}).scalar_one() != "running":
        return None
    at = now()
    data = text_of({"to": "queued", "retry_after": round(seconds, 3), "reason": why})
    changes = {"status": "queued", "started_at": None, "updated_at": at}
    return append(connection, run_id, [Event("run.status_changed", data, at)], changes)


@dataclass(frozen=True, slots=True)
class Cancelled:
    """What a cancel request found or did. `appended` None: nothing changed."""

    document: str
    status: str
    appended: Appended | None


def request_cancel(connection: Connection, account: str, run_id: str) -> Cancelled:
    """Idempotent; 404 for a run that is not there. A running one's agent is then ended by the server that owns it."""
    status = connection.execute(_STATUS_OF_MINE, {"p_run": run_id, "p_account": account}).scalar()
    if status is None:
        raise not_found("run")
    appended = None
    if status in OPEN and status != "cancelling":
        at = now()
        entries = [status_changed("cancelling", at)]
        changes: dict[str, Any] = {"status": "cancelling", "updated_at": at}
        if status == "queued":  # no agent is at work: who wanted to begin it finds it ended
            entries.append(status_changed("cancelled", at))
            changes |= {"status": "cancelled", "completed_at": at}
        status = str(changes["status"])
        appended = append(connection, run_id, entries, changes)
    return Cancelled(stored.get(connection, account, run_id), status, appended)


def finish(
    connection: Connection,
    run_id: str,
    entries: Sequence[Entry],
    failure: Failure | None,
    *,
    cancelled: bool,
    changes: Mapping[str, Any],
    ended_at: str | None = None,
) -> Appended | None:
    """→ succeeded, failed or cancelled, with the last `entries` before. None if the run had ended already.

    `ended_at`: when the agent ended, by the clock of its server; without it, now.
    That the harness changed is said of a cancelled run, too: the time it spent would be taken for a timeout (S12, S33).
    """
    status = connection.execute(_STATUS, {"p_run": run_id}).scalar_one()
    if status in TERMINAL:
        return None
    at = ended_at or now()
    lost = failure is not None and failure.code == SERVER_LOST.code
    if lost:
        to = "failed"
    elif cancelled or status == "cancelling":
        to = "cancelled"
    else:
        to = "failed" if failure is not None else "succeeded"
    ended = {**changes, "status": to, "completed_at": at, "updated_at": now()}
    if failure is not None and (to == "failed" or failure.code == HARNESS_CHANGED):
        ended["failure"] = failure_text(failure)
    before = [status_changed("cancelling", at)] if to == "cancelled" and status != "cancelling" else []
    return append(connection, run_id, [*entries, *before, status_changed(to, at)], ended)


def failure_text(failure: Failure) -> str:
    return text_of({"code": failure.code, "message": failure.message, "retryable": failure.retryable})


_OF: Final = select(runs.c.id, runs.c.status).where(
    runs.c.status.in_(tuple(OPEN)), runs.c.owner == bindparam("p_owner")
)


def open_runs_of(connection: Connection, owner: str) -> dict[str, str]:
    """The runs that this server has not brought to their end yet: id → status."""
    return {row.id: row.status for row in connection.execute(_OF, {"p_owner": owner})}


def lose(connection: Connection, run_ids: Sequence[str], failure: Failure = SERVER_LOST) -> list[Appended]:
    """Those of the runs that are not terminal → failed: where no agent is at work."""
    ended = [finish(connection, run_id, [], failure, cancelled=False, changes={}) for run_id in run_ids]
    return [appended for appended in ended if appended is not None]
