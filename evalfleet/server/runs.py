"""What is a run in the store, and how is it read? The SQL of runs and the documents that the wire shows.

Every function takes a connection and runs inside a `store.read` or `store.write`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Final

from sqlalchemy import Connection, Table, bindparam, insert, select, tuple_, update

from evalfleet.contract.ids import new_id
from evalfleet.money import by_currency, currency_of
from evalfleet.server import spending
from evalfleet.server.cursors import event_cursor, page_cursor, read_event_cursor, read_page_cursor
from evalfleet.server.documents import counted, milliseconds_between, now, page_of, text_of
from evalfleet.server.idempotency import Answer
from evalfleet.server.journal import TERMINAL, Appended, Entry, Event, Message, frame_of, rows_of
from evalfleet.server.refusal import field, not_found, refuse
from evalfleet.server.schema import chats, events, messages, outputs, runs
from evalfleet.server.spending import JudgeSpend, spent_text
from evalfleet.server.streams import PIECE, Piece

_SHOWN: Final = (
    runs.c.id,
    runs.c.harness_id,
    runs.c.harness_commit,
    runs.c.chat_id,
    runs.c.status,
    runs.c.created_at,
    runs.c.updated_at,
    runs.c.started_at,
    runs.c.completed_at,
    runs.c.failure,
    runs.c.metadata,
)

_MINE: Final = (runs.c.id == bindparam("p_run")) & (runs.c.account == bindparam("p_account"))
_GET: Final = select(*_SHOWN).where(_MINE)
_INSERT_RUN: Final = insert(runs)
_INSERT_CHAT: Final = insert(chats)
_NEXT_TURN: Final = (
    update(chats)
    .where(
        chats.c.id == bindparam("p_chat"),
        chats.c.account == bindparam("p_account"),
        chats.c.harness_id == bindparam("p_harness"),
    )
    .values(turns=chats.c.turns + 1)
    .returning(chats.c.turns)
)


def run_document(row: Any) -> str:
    """The run as the wire shows it, from a row of the `_SHOWN` columns."""
    started = f'"{row.started_at}"' if row.started_at else "null"
    completed = f'"{row.completed_at}"' if row.completed_at else "null"
    return (
        f'{{"id":"{row.id}","harness_id":"{row.harness_id}","harness_commit":"{row.harness_commit}",'
        f'"chat_id":"{row.chat_id}","parent_chat_id":null,"status":"{row.status}","created_at":"{row.created_at}",'
        f'"updated_at":"{row.updated_at}","started_at":{started},"completed_at":{completed},'
        f'"failure":{row.failure or "null"},"metadata":{row.metadata}}}'
    )


def get(connection: Connection, account: str, run_id: str) -> str:
    """The run's document, or 404."""
    row = connection.execute(_GET, {"p_run": run_id, "p_account": account}).first()
    if row is None:
        raise not_found("run")
    return run_document(row)


def tree(connection: Connection, account: str, run_id: str) -> bytes:
    """The run and what it started: no driver of ours starts runs, so it is the run alone."""
    run = get(connection, account, run_id)
    item = f'{{"run":{run},"depth":0,"child_run_ids":[]}}'
    return f'{{"root_run_id":"{run_id}","runs":[{item}],"generated_at":"{now()}"}}'.encode("ascii")


# -- creating


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run to create, checked in its shape. `chat_id` None starts a fresh chat."""

    account: str
    harness_id: str
    harness_commit: str
    chat_id: str | None
    input: dict[str, Any]
    metadata: dict[str, Any]

    def at(self, commit: str) -> NewRun:
        return replace(self, harness_commit=commit)


@dataclass(frozen=True, slots=True)
class Created:
    """What the runner needs to play the new run, and what its first streams see."""

    run_id: str
    chat_id: str
    turn: int
    harness_id: str
    new: NewRun
    message: str
    appended: Appended


def create(connection: Connection, new: NewRun, *, owner: str) -> tuple[Answer, Created]:
    """Make the run (and its chat) with the first two entries of its journal. 404 for a chat that is not there.

    `owner`: the server that will play it.
    """
    at = now()
    run_id = new_id("run")
    turn = 0
    if new.chat_id is None:
        chat_id = new_id("chat")
        connection.execute(
            _INSERT_CHAT,
            {"id": chat_id, "account": new.account, "harness_id": new.harness_id, "turns": 1, "created_at": at},
        )
    else:
        chat_id = new.chat_id
        parameters = {"p_chat": chat_id, "p_account": new.account, "p_harness": new.harness_id}
        row = connection.execute(_NEXT_TURN, parameters).first()
        if row is None:
            raise refuse(
                "not_found",
                "There is no such chat of this harness.",
                errors=[field("/chat_id", "no such chat of this harness", "not_found")],
            )
        turn = row.turns - 1
    data = f'{{"run_id":"{run_id}","chat_id":"{chat_id}","harness_id":"{new.harness_id}"}}'
    entries: list[Entry] = [Event("run.created", data, at), Message("user", text_of(new.input["content"]), at)]
    rows = rows_of(run_id, entries)
    message = text_of_input(new.input)
    values = {
        "id": run_id,
        "account": new.account,
        "harness_id": new.harness_id,
        "harness_commit": new.harness_commit,
        "chat_id": chat_id,
        "turn": turn,
        "status": "queued",
        "created_at": at,
        "updated_at": at,
        "metadata": text_of(new.metadata),
        "input": text_of(new.input),
        "message": text_of(message),
        "last_sequence": len(rows.events),
        "last_message": len(rows.messages),
        "owner": owner,
    }
    connection.execute(_INSERT_RUN, values)
    rows.insert(connection)
    document = (
        f'{{"id":"{run_id}","harness_id":"{new.harness_id}","harness_commit":"{new.harness_commit}",'
        f'"chat_id":"{chat_id}","parent_chat_id":null,"status":"queued","created_at":"{at}","updated_at":"{at}",'
        f'"started_at":null,"completed_at":null,"failure":null,"metadata":{values["metadata"]}}}'
    )
    answer = Answer(201, document.encode("ascii"), location=f"/v2/runs/{run_id}")
    appended = Appended(run_id, rows.frames, "queued")
    return answer, Created(run_id, chat_id, turn, new.harness_id, new, message, appended)


def text_of_input(value: dict[str, Any]) -> str:
    """What the agent is told: text parts as they are, `json` parts as compact JSON, `file` parts as their URL."""
    texts = []
    for part in value["content"]:
        if part["type"] == "text":
            texts.append(part["text"])
        elif part["type"] == "json":
            texts.append(json.dumps(part["value"], ensure_ascii=False, separators=(",", ":")))
        else:
            texts.append(part["url"])
    return "\n".join(texts)


_HISTORY: Final = (
    select(runs.c.message, runs.c.answer)
    .where(runs.c.chat_id == bindparam("p_chat"), runs.c.turn < bindparam("p_turn"))
    .order_by(runs.c.turn)
)


def history(connection: Connection, chat_id: str, turn: int) -> tuple[tuple[str, str], ...]:
    """The earlier turns of a chat, (role, text), oldest first; a turn without an answer has the user's part only."""
    said: list[tuple[str, str]] = []
    for row in connection.execute(_HISTORY, {"p_chat": chat_id, "p_turn": turn}):
        said.append(("user", json.loads(row.message)))
        if row.answer is not None:
            answer = json.loads(row.answer)
            text = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False, separators=(",", ":"))
            said.append(("assistant", text))
    return tuple(said)


# -- lists


@dataclass(frozen=True, slots=True)
class Listing:
    """Filters of the list of runs; times are normal forms of ours."""

    statuses: tuple[str, ...] = ()
    harness_id: str | None = None
    created_after: str | None = None
    created_before: str | None = None

    def filters(self) -> dict[str, str]:
        named = {
            "status": ",".join(sorted(self.statuses)),
            "harness_id": self.harness_id,
            "created_after": self.created_after,
            "created_before": self.created_before,
        }
        return {name: value for name, value in named.items() if value}


def page(connection: Connection, account: str, listing: Listing, cursor: str | None, limit: int) -> bytes:
    """Runs newest first by (created_at, id): rows that share a time are neither skipped nor repeated (E05)."""
    query = select(*_SHOWN).where(runs.c.account == account)
    if listing.statuses:
        query = query.where(runs.c.status.in_(listing.statuses))
    if listing.harness_id:
        query = query.where(runs.c.harness_id == listing.harness_id)
    if listing.created_after:
        query = query.where(runs.c.created_at > listing.created_after)
    if listing.created_before:
        query = query.where(runs.c.created_at < listing.created_before)
    filters = {"account": account, **listing.filters()}
    if cursor is not None:
        created_at, _, last_id = read_page_cursor(cursor, "/v2/runs", filters).partition(" ")
        query = query.where(tuple_(runs.c.created_at, runs.c.id) < tuple_(created_at, last_id))
    rows = connection.execute(query.order_by(runs.c.created_at.desc(), runs.c.id.desc()).limit(limit + 1)).all()
    more = len(rows) > limit
    rows = rows[:limit]
    following = page_cursor("/v2/runs", filters, f"{rows[-1].created_at} {rows[-1].id}") if more else None
    return page_of([run_document(row) for row in rows], next_cursor=following, has_more=more)


def _rows_after(table: Table, number: str) -> Any:
    column = table.c[number]
    return (
        select(column.label("number"), table.c.doc)
        .where(table.c.run_id == bindparam("p_run"), column > bindparam("p_after"))
        .order_by(column)
        .limit(bindparam("p_limit"))
    )


_MESSAGES: Final = _rows_after(messages, "position")
_OUTPUTS: Final = _rows_after(outputs, "position")
_EVENTS: Final = _rows_after(events, "sequence")
_EXISTS: Final = select(runs.c.last_sequence, runs.c.status).where(_MINE)


def page_of_rows(connection: Connection, account: str, run_id: str, kind: str, cursor: str | None, limit: int) -> bytes:
    """Messages or outputs of a run (`kind` names which), oldest first."""
    if connection.execute(_EXISTS, {"p_run": run_id, "p_account": account}).first() is None:
        raise not_found("run")
    endpoint = f"/v2/runs/{run_id}/{kind}"
    after = int(read_page_cursor(cursor, endpoint, {})) if cursor is not None else 0
    query = _MESSAGES if kind == "messages" else _OUTPUTS
    rows = connection.execute(query, {"p_run": run_id, "p_after": after, "p_limit": limit + 1}).all()
    more = len(rows) > limit
    rows = rows[:limit]
    following = page_cursor(endpoint, {}, str(rows[-1].number)) if more else None
    return page_of([row.doc for row in rows], next_cursor=following, has_more=more)


def last_sequence(connection: Connection, account: str, run_id: str) -> int:
    """How long the run's journal is; 404 if the run is not there."""
    row = connection.execute(_EXISTS, {"p_run": run_id, "p_account": account}).first()
    if row is None:
        raise not_found("run")
    return int(row.last_sequence)


def place_in_journal(
    connection: Connection, account: str, run_id: str, cursor: str | None, *, location: str = "query"
) -> int:
    """The sequence that a cursor stands after; 410 for one of a journal that was longer than ours is."""
    last = last_sequence(connection, account, run_id)
    if cursor is None:
        return 0
    after = read_event_cursor(run_id, cursor, location=location)
    if after > last:
        raise refuse("event_cursor_expired", "The journal does not reach this cursor any more: start without one.")
    return after


def event_page(connection: Connection, account: str, run_id: str, cursor: str | None, limit: int) -> bytes:
    """A page of the journal. `next_cursor` is the last row's even when there is no more: readers go on from it."""
    after = place_in_journal(connection, account, run_id, cursor)
    rows = connection.execute(_EVENTS, {"p_run": run_id, "p_after": after, "p_limit": limit + 1}).all()
    more = len(rows) > limit
    rows = rows[:limit]
    following = event_cursor(run_id, rows[-1].number) if rows else cursor
    return page_of([row.doc for row in rows], next_cursor=following, has_more=more)


_STATE: Final = select(runs.c.status).where(runs.c.id == bindparam("p_run"))


def frames_after(connection: Connection, run_id: str, after: int) -> Piece:
    """The next PIECE frames of a journal for a stream that lacks them."""
    rows = connection.execute(_EVENTS, {"p_run": run_id, "p_after": after, "p_limit": PIECE}).all()
    frames = [(row.number, frame_of(event_cursor(run_id, row.number), _type_in(row.doc), row.doc)) for row in rows]
    over = False
    if len(rows) < PIECE:  # read to its end; whether more will come, the same snapshot says
        status = connection.execute(_STATE, {"p_run": run_id}).scalar()
        over = status is None or status in TERMINAL  # None: pruned meanwhile
    return Piece(frames, over)


def states_of(connection: Connection, run_ids: Sequence[str]) -> list[Any]:
    """(id, last_sequence, status) of those of the runs that are there."""
    found: list[Any] = []
    for start in range(0, len(run_ids), IN_CHUNK):
        query = select(runs.c.id, runs.c.last_sequence, runs.c.status)
        found.extend(connection.execute(query.where(runs.c.id.in_(run_ids[start : start + IN_CHUNK]))))
    return found


def _type_in(doc: str) -> str:
    # Our own text: the first "type" is the event's, before any data (see journal.rows_of).
    start = doc.index('"type":"') + 8
    return doc[start : doc.index('"', start)]


# -- usage

_CHAT_OF: Final = select(runs.c.chat_id).where(_MINE)
_USED: Final = (
    runs.c.chat_id,
    runs.c.status,
    runs.c.started_at,
    runs.c.completed_at,
    runs.c.updated_at,
    runs.c.input_tokens,
    runs.c.output_tokens,
    runs.c.cache_read_tokens,
    runs.c.cache_write_tokens,
    runs.c.tool_calls,
    runs.c.amount,
    runs.c.currency,
    runs.c.judge_calls,
    runs.c.judge_tokens,
    runs.c.judge_amounts,
)
_USAGE: Final = select(*_USED).where(runs.c.chat_id == bindparam("p_chat"))
IN_CHUNK: Final = 500
"""How many ids one IN list holds: SQLite's limit on parameters is 32766 at best, 999 in old builds."""

TOKENS: Final = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")


@dataclass(frozen=True, slots=True)
class Usage:
    """What a whole chat has used. `duration_ms` is the time its runs ran; `final` when none of them is going.

    `amounts` for each currency that a run of it has reported; the judge's spend is apart (S15).
    """

    tokens: tuple[int, int, int, int]
    tool_calls: int
    duration_ms: int
    amounts: Mapping[str, Decimal]
    judge: JudgeSpend
    final: bool
    updated_at: str

    @property
    def total_tokens(self) -> int:
        return counted(*self.tokens)


_CURRENCY: Final = (
    select(runs.c.currency)
    .where(runs.c.chat_id == bindparam("p_chat"), runs.c.currency.is_not(None))
    .order_by(runs.c.turn)
    .limit(1)
)


def currency_of_chat(connection: Connection, chat_id: str) -> str | None:
    """The currency that its runs have reported; None where none of them has named one."""
    return currency_of(connection.execute(_CURRENCY, {"p_chat": chat_id}).scalar()) or None


def usage_of_chat(connection: Connection, chat_id: str) -> Usage:
    """Added up over the chat's runs."""
    return _added(connection.execute(_USAGE, {"p_chat": chat_id}).all())


def usage_of_chats(connection: Connection, chat_ids: Sequence[str]) -> list[Usage]:
    """The usage of each chat, in no order."""
    by_chat: dict[str, list[Any]] = {}
    for start in range(0, len(chat_ids), IN_CHUNK):
        chunk = chat_ids[start : start + IN_CHUNK]
        for row in connection.execute(select(*_USED).where(runs.c.chat_id.in_(chunk)).order_by(runs.c.chat_id)):
            by_chat.setdefault(row.chat_id, []).append(row)
    return [_added(rows) for rows in by_chat.values()]


def _added(rows: Sequence[Any]) -> Usage:
    at = now()
    return Usage(
        tokens=(
            counted(*(row.input_tokens for row in rows)),
            counted(*(row.output_tokens for row in rows)),
            counted(*(row.cache_read_tokens for row in rows)),
            counted(*(row.cache_write_tokens for row in rows)),
        ),
        tool_calls=sum(row.tool_calls for row in rows),
        duration_ms=sum(
            milliseconds_between(row.started_at, row.completed_at or at) for row in rows if row.started_at is not None
        ),
        amounts=by_currency(
            (currency_of(row.currency) or spending.DEFAULT, Decimal(row.amount))
            for row in rows
            if row.amount is not None
        ),
        judge=JudgeSpend.sum(
            JudgeSpend(row.judge_calls, row.judge_tokens, spending.read(row.judge_amounts)) for row in rows
        ),
        final=all(row.status in TERMINAL for row in rows),
        updated_at=max((row.updated_at for row in rows), default=at),
    )


def usage(connection: Connection, account: str, run_id: str) -> bytes:
    """The usage of the run's chat (wire.md): two turns of one chat report the same numbers."""
    chat = connection.execute(_CHAT_OF, {"p_run": run_id, "p_account": account}).first()
    if chat is None:
        raise not_found("run")
    used = usage_of_chat(connection, chat.chat_id)
    counts = ",".join(f'"{name}":{count}' for name, count in zip(TOKENS, used.tokens, strict=True))
    return (
        f'{{"run_id":"{run_id}",{counts},"total_tokens":{used.total_tokens},"tool_calls":{used.tool_calls},'
        f'"duration_ms":{used.duration_ms},{spent_text(used.amounts)},"final":{"true" if used.final else "false"},'
        f'"updated_at":"{used.updated_at}"{used.judge.member()}}}'
    ).encode("ascii")


# -- judge calls

_HARNESS_OF: Final = select(runs.c.harness_id).where(_MINE)


def harness_of(connection: Connection, account: str, run_id: str) -> str:
    harness_id = connection.execute(_HARNESS_OF, {"p_run": run_id, "p_account": account}).scalar()
    if harness_id is None:
        raise not_found("run")
    return str(harness_id)


_JUDGED: Final = select(runs.c.judge_calls, runs.c.judge_tokens, runs.c.judge_amounts).where(_MINE).with_for_update()


def add_judge_call(connection: Connection, account: str, run_id: str, call: JudgeSpend) -> None:
    """Note what a judge call has used on the run under test. It is kept apart from the agent's own usage (S15)."""
    row = connection.execute(_JUDGED, {"p_run": run_id, "p_account": account}).first()
    if row is None:
        raise not_found("run")
    total = JudgeSpend.sum([JudgeSpend(row.judge_calls, row.judge_tokens, spending.read(row.judge_amounts)), call])
    connection.execute(
        update(runs)
        .where(runs.c.id == run_id)
        .values(judge_calls=total.calls, judge_tokens=total.tokens, judge_amounts=spending.stored(total.amounts))
    )
