"""Which runs are old enough to go, and how do they go without holding anybody up?

A chat goes as a whole: its runs with their journals, messages, outputs, and the keys that made them. Usage covers a
chat, and a later turn is told what was said before, so half a chat would be a lie. It goes when no run of it is open,
the last one ended longer ago than the span, and no evaluation has an attempt recorded with one of them. Evaluations
never go, nor do the keys that made them.

A pass walks the chats in the order of their creation, LOOKED_AT at a time, on a reader: what stays costs no write. What
may go is deleted by small writes, and after each piece the pass rests longer than the piece took. Several servers may
do so at once: in Postgres each chat is locked and looked at again before it goes, and one that anybody else is at work
with (a new turn, a batch that records its run, another server's pass) is passed over until the next time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

from sqlalchemy import Connection, Select, delete, exists, func, or_, select

from evalfleet.errors import StorageError
from evalfleet.server.documents import time_text
from evalfleet.server.runs import IN_CHUNK
from evalfleet.server.schema import chats, evaluation_chats, events, idempotency, messages, outputs, runs
from evalfleet.server.store import Store

_log = logging.getLogger(__name__)

EVERY: Final = 3600.0
"""Seconds from the end of a pass to the next one."""

LOOKED_AT: Final = 200
"""Chats that one read looks at."""

AT_A_TIME: Final = 2000
"""Events that one write deletes at most, with what belongs to them; a chat that has more is a write of its own."""

RESTS: Final = 4.0
"""A pass rests this many times as long as it worked: the most it takes of the one writer of SQLite is a fifth."""


@dataclass(frozen=True, slots=True)
class Looked:
    """What one look found: chats that may go, with how many events each has, and where to look next (None: done)."""

    going: list[tuple[str, int]]
    after: str | None


class Retention:
    """Prunes what ended longer than `span` ago. `keep_up()` runs until it is cancelled."""

    def __init__(self, store: Store, span: timedelta) -> None:
        self._store = store
        self._span = span

    async def keep_up(self) -> None:
        """A pass at once, and another one every EVERY seconds."""
        while True:
            try:
                await self.make_pass()
            except StorageError as problem:
                _log.warning("old runs are not pruned now: %s", problem.message)
            await asyncio.sleep(EVERY)

    async def make_pass(self) -> int:
        """Prune all that is old enough now; how many runs went. StorageError if the database refuses."""
        before = time_text(datetime.now(UTC) - self._span)
        pruned = 0
        after: str | None = ""
        while after is not None:
            began = time.monotonic()
            looked = await self._store.read(partial(look, after=after, before=before))
            await _rest(began)
            for chat_ids in _pieces(looked.going):
                began = time.monotonic()
                pruned += await self._store.write(partial(prune, chat_ids=chat_ids, before=before))
                await _rest(began)
            after = looked.after
        if pruned:
            _log.info("%d runs of chats whose last run ended before %s are pruned", pruned, before)
        return pruned


async def _rest(began: float) -> None:
    await asyncio.sleep(RESTS * (time.monotonic() - began))


def _pieces(going: Sequence[tuple[str, int]]) -> Iterator[list[str]]:
    piece: list[str] = []
    size = 0
    for chat_id, count in going:
        if piece and size + count > AT_A_TIME:
            yield piece
            piece, size = [], 0
        piece.append(chat_id)
        size += count
    if piece:
        yield piece


def look(connection: Connection, after: str, before: str) -> Looked:
    """The next LOOKED_AT chats after `after` that were made before `before`, as far as they may go."""
    made = select(chats.c.id, chats.c.created_at).where(chats.c.id > after).order_by(chats.c.id).limit(LOOKED_AT)
    rows = connection.execute(made).all()
    old = [row.id for row in rows if row.created_at < before]
    # Ids sort by creation: behind one that is young there is none that is old.
    following = rows[-1].id if len(rows) == LOOKED_AT and rows[-1].created_at < before else None
    going = connection.execute(_may_go(old, before)).scalars().all()
    counted = select(runs.c.chat_id, func.sum(runs.c.last_sequence)).where(runs.c.chat_id.in_(going))
    sizes = {chat_id: int(size) for chat_id, size in connection.execute(counted.group_by(runs.c.chat_id))}
    return Looked([(chat_id, sizes[chat_id]) for chat_id in going], following)


def prune(connection: Connection, chat_ids: Sequence[str], before: str) -> int:
    """Delete those of the chats that (still) may go, with all that belongs to them; how many runs went."""
    asked = _may_go(chat_ids, before)
    locked = connection.execute(asked.with_for_update(of=chats, skip_locked=True)).scalars().all()
    # Only a statement that begins under the locks sees what was committed while they were being taken.
    going = connection.execute(_may_go(locked, before)).scalars().all()
    run_ids = connection.execute(select(runs.c.id).where(runs.c.chat_id.in_(going))).scalars().all()
    for start in range(0, len(run_ids), IN_CHUNK):
        some = run_ids[start : start + IN_CHUNK]
        for table in (events, messages, outputs):
            connection.execute(delete(table).where(table.c.run_id.in_(some)))
        made = [f"/v2/runs/{run_id}" for run_id in some]
        connection.execute(delete(idempotency).where(idempotency.c.location.in_(made)))
        connection.execute(delete(runs).where(runs.c.id.in_(some)))
    connection.execute(delete(chats).where(chats.c.id.in_(going)))
    return len(run_ids)


def _may_go(chat_ids: Sequence[str], before: str) -> Select[Any]:
    """Which of the chats are over since before `before`, and held by no evaluation."""
    going_on = or_(runs.c.completed_at.is_(None), runs.c.completed_at >= before)
    return select(chats.c.id).where(
        chats.c.id.in_(chat_ids),
        ~exists().where(runs.c.chat_id == chats.c.id, going_on),
        ~exists().where(evaluation_chats.c.chat_id == chats.c.id),
    )
