"""How does a run move from state to state? Each move is one write, and looks at the state it leaves.

    queued ──> running ──> succeeded | failed
       │          │
       └──────────┴──> cancelling ──> cancelled

A run whose cancelling was written before its end ends `cancelled`, whatever the agent said in between: who was told
`cancelling` sees `cancelled`. A run that no server plays any more ends `failed`, `server_lost`, retryable. Terminal
runs never change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, bindparam, select

from evalfleet.server import runs as stored
from evalfleet.server.documents import now, text_of
from evalfleet.server.driving import Failure
from evalfleet.server.journal import TERMINAL, Appended, Entry, append, status_changed
from evalfleet.server.refusal import not_found
from evalfleet.server.schema import runs

SERVER_LOST: Final = Failure("server_lost", "The server that played this run stopped before the run had ended.", True)

_STATUS: Final = select(runs.c.status).where(runs.c.id == bindparam("p_run"))
_STATUS_OF_MINE: Final = select(runs.c.status).where(
    runs.c.id == bindparam("p_run"), runs.c.account == bindparam("p_account")
)


@dataclass(frozen=True, slots=True)
class Begun:
    """A run that now runs, with what its chat has said before."""

    history: tuple[tuple[str, str], ...]
    appended: Appended


def begin(connection: Connection, run_id: str, chat_id: str, turn: int) -> Begun | None:
    """queued → running. None if the run is not queued any more: it was cancelled while it waited."""
    if connection.execute(_STATUS, {"p_run": run_id}).scalar_one() != "queued":
        return None
    history = stored.history(connection, chat_id, turn) if turn else ()
    at = now()
    changes = {"status": "running", "started_at": at, "updated_at": at}
    return Begun(history, append(connection, run_id, [status_changed("running", at)], changes))


@dataclass(frozen=True, slots=True)
class Cancelled:
    """What a cancel request found or did. `appended` None: nothing changed."""

    document: str
    status: str
    appended: Appended | None


def request_cancel(connection: Connection, account: str, run_id: str, *, played: bool) -> Cancelled:
    """Idempotent; 404 for a run that is not there. `played`: an agent may be at work on it in this server."""
    status = connection.execute(_STATUS_OF_MINE, {"p_run": run_id, "p_account": account}).scalar()
    if status is None:
        raise not_found("run")
    appended = None
    if status not in TERMINAL:
        at = now()
        entries = [] if status == "cancelling" else [status_changed("cancelling", at)]
        status = "cancelling"
        changes: dict[str, Any] = {"status": status, "updated_at": at}
        if not played:
            status = "cancelled"
            entries.append(status_changed(status, at))
            changes |= {"status": status, "completed_at": at}
        if entries:
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
) -> Appended | None:
    """→ succeeded, failed or cancelled, with the last `entries` before. None if the run had ended already."""
    status = connection.execute(_STATUS, {"p_run": run_id}).scalar_one()
    if status in TERMINAL:
        return None
    at = now()
    to = "cancelled" if cancelled or status == "cancelling" else "failed" if failure is not None else "succeeded"
    ended = {**changes, "status": to, "completed_at": at, "updated_at": at}
    if to == "failed" and failure is not None:
        ended["failure"] = failure_text(failure)
    before = [status_changed("cancelling", at)] if to == "cancelled" and status != "cancelling" else []
    return append(connection, run_id, [*entries, *before, status_changed(to, at)], ended)


def failure_text(failure: Failure) -> str:
    return text_of({"code": failure.code, "message": failure.message, "retryable": failure.retryable})


def lose(connection: Connection, failure: Failure = SERVER_LOST) -> list[Appended]:
    """Every run that is not terminal → failed (cancelling ones → cancelled): called where no agent is at work."""
    query = select(runs.c.id).where(runs.c.status.not_in(TERMINAL))
    ended = [
        finish(connection, run_id, [], failure, cancelled=False, changes={})
        for run_id in connection.execute(query).scalars().all()
    ]
    return [appended for appended in ended if appended is not None]
