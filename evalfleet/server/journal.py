"""How does something that happened to a run become rows: an event with its number, a message, an output?

Everything about a run goes through `append`: inside one write it takes the next numbers (from 1, without gaps), inserts
the rows and moves the run on. Taking the numbers locks the run's row, so two writers follow one another, and nothing is
added to a run that has ended. What it returns is what the streams are woken with after the commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, bindparam, insert, update

from evalfleet.contract.ids import new_id
from evalfleet.errors import StorageError
from evalfleet.server.cursors import event_cursor
from evalfleet.server.documents import now, text_of
from evalfleet.server.schema import events, messages, outputs, runs

TERMINAL: Final = frozenset({"succeeded", "failed", "cancelled"})
OPEN: Final = frozenset({"queued", "running", "waiting", "cancelling"})
STATUSES: Final = OPEN | TERMINAL

_INSERT_EVENTS: Final = insert(events)
_INSERT_MESSAGES: Final = insert(messages)
_INSERT_OUTPUTS: Final = insert(outputs)


@dataclass(frozen=True, slots=True)
class Event:
    """Something for the journal. `data` is ready JSON text."""

    type: str
    data: str
    at: str


@dataclass(frozen=True, slots=True)
class Message:
    """A message of the transcript, and its `message.created`. `content` is ready JSON text (a list of parts)."""

    role: str
    content: str
    at: str


@dataclass(frozen=True, slots=True)
class Output:
    """An output, and its `output.created`. `value` is ready JSON text."""

    type: str
    name: str
    value: str
    at: str


Entry = Event | Message | Output


@dataclass(frozen=True, slots=True)
class Appended:
    """What a write put into a run's journal: numbered frames for its streams, and the run's status if it is new."""

    run_id: str
    frames: tuple[tuple[int, bytes], ...]
    status: str | None = None

    @property
    def over(self) -> bool:
        return self.status in TERMINAL


@dataclass(frozen=True, slots=True)
class Rows:
    """Entries with their numbers, ready to insert."""

    events: list[dict[str, Any]]
    messages: list[dict[str, Any]]
    outputs: list[dict[str, Any]]
    frames: tuple[tuple[int, bytes], ...]

    def insert(self, connection: Connection) -> None:
        if self.events:
            connection.execute(_INSERT_EVENTS, self.events)
        if self.messages:
            connection.execute(_INSERT_MESSAGES, self.messages)
        if self.outputs:
            connection.execute(_INSERT_OUTPUTS, self.outputs)


def status_changed(to: str, at: str) -> Event:
    return Event("run.status_changed", f'{{"to":"{to}"}}', at)


def rows_of(run_id: str, entries: Sequence[Entry], *, sequence: int = 0, message: int = 0, output: int = 0) -> Rows:
    """Number `entries` after the given last numbers."""
    event_rows: list[dict[str, Any]] = []
    message_rows: list[dict[str, Any]] = []
    output_rows: list[dict[str, Any]] = []
    frames: list[tuple[int, bytes]] = []
    for entry in entries:
        at = entry.at
        if isinstance(entry, Message):
            message += 1
            message_id = new_id("msg")
            doc = (
                f'{{"id":"{message_id}","run_id":"{run_id}","role":"{entry.role}",'
                f'"content":{entry.content},"created_at":"{at}"}}'
            )
            message_rows.append({"run_id": run_id, "position": message, "doc": doc})
            kind, data = "message.created", f'{{"message_id":"{message_id}","role":"{entry.role}"}}'
        elif isinstance(entry, Output):
            output += 1
            output_id = new_id("out")
            name = text_of(entry.name)
            doc = (
                f'{{"id":"{output_id}","run_id":"{run_id}","type":"{entry.type}",'
                f'"name":{name},"value":{entry.value},"created_at":"{at}"}}'
            )
            output_rows.append({"run_id": run_id, "position": output, "doc": doc})
            kind, data = "output.created", f'{{"output_id":"{output_id}","type":"{entry.type}","name":{name}}}'
        else:
            kind, data = entry.type, entry.data
        sequence += 1
        cursor = event_cursor(run_id, sequence)
        doc = (
            f'{{"id":"{new_id("evt")}","cursor":"{cursor}","run_id":"{run_id}","sequence":{sequence},'
            f'"type":"{kind}","created_at":"{at}","data":{data}}}'
        )
        event_rows.append({"run_id": run_id, "sequence": sequence, "doc": doc})
        frames.append((sequence, frame_of(cursor, kind, doc)))
    return Rows(event_rows, message_rows, output_rows, tuple(frames))


def frame_of(cursor: str, kind: str, doc: str) -> bytes:
    """One event as it goes over the stream; `doc` is ASCII JSON and so always one line."""
    return f"id: {cursor}\nevent: {kind}\ndata: {doc}\n\n".encode("ascii")


def append(
    connection: Connection, run_id: str, entries: Sequence[Entry], changes: Mapping[str, Any] | None = None
) -> Appended:
    """Add `entries` to a run and set `changes` (columns of `runs`). StorageError for a run that has ended.

    Who moves a run on looks at its status first, under the row's lock; only a report of an agent can come too late,
    after another server took this one for dead.
    """
    new_messages = sum(isinstance(entry, Message) for entry in entries)
    new_outputs = sum(isinstance(entry, Output) for entry in entries)
    values: dict[str, Any] = {"updated_at": now(), **(changes or {})}
    row = connection.execute(
        _advance(frozenset(values)),
        {
            "p_run": run_id,
            "p_events": len(entries),
            "p_messages": new_messages,
            "p_outputs": new_outputs,
            **{f"v_{name}": value for name, value in values.items()},
        },
    ).first()
    if row is None:
        raise StorageError(f"{run_id} has ended meanwhile: another server took this one for dead, or ended the run")
    rows = rows_of(
        run_id,
        entries,
        sequence=row.last_sequence - len(entries),
        message=row.last_message - new_messages,
        output=row.last_output - new_outputs,
    )
    rows.insert(connection)
    return Appended(run_id, rows.frames, values.get("status"))


_statements: dict[frozenset[str], Any] = {}


def _advance(columns: frozenset[str]) -> Any:
    """The UPDATE for one set of columns; few sets exist, so each statement is built (and compiled) once."""
    statement = _statements.get(columns)
    if statement is None:
        statement = (
            update(runs)
            .where(runs.c.id == bindparam("p_run"), runs.c.completed_at.is_(None))
            .values(
                last_sequence=runs.c.last_sequence + bindparam("p_events"),
                last_message=runs.c.last_message + bindparam("p_messages"),
                last_output=runs.c.last_output + bindparam("p_outputs"),
                **{name: bindparam(f"v_{name}", type_=runs.c[name].type) for name in sorted(columns)},
            )
            .returning(runs.c.last_sequence, runs.c.last_message, runs.c.last_output)
        )
        _statements[columns] = statement
    return statement
