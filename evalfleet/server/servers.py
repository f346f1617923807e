"""Which servers are on this database, and whose runs does nobody play any more?

A server is an incarnation: a row with a new id at each start, whose `seen` it brings up to date every BEAT seconds. All
times are the database's own, so the clocks of the machines do not matter. A server that has not been seen for SILENCE
is dead to the others: they take its row away, and end its open runs as `server_lost`. Should it come back after all, it
finds its row gone, puts it back, and ends the agents of the runs that it has lost.

A restarted server does not wait for that: its *node* (this machine, this boot, this state folder, which one server at a
time holds locked) names its earlier incarnation. With SQLite there is one server: every row but its own is of the past.
"""

from __future__ import annotations

import hashlib
import os
import socket
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, bindparam, delete, exists, func, insert, literal, select

from evalfleet.server import lifecycle
from evalfleet.server.documents import now
from evalfleet.server.engines import is_postgres
from evalfleet.server.journal import OPEN, Appended
from evalfleet.server.schema import runs, servers

BEAT: Final = 3.0
"""Seconds between two signs of life, and between two looks for dead servers."""

SILENCE: Final = 15.0
"""Seconds after which a server is taken for dead. With a BEAT and the ending itself: well under 30 s."""

AT_A_TIME: Final = 200
"""How many lost runs are ended in one transaction."""


@dataclass(frozen=True, slots=True)
class Server:
    """One incarnation. `node`: what a restart has in common with it; None for one that has no state folder."""

    id: str
    node: str | None
    host: str
    pid: int


@dataclass(frozen=True, slots=True)
class Note:
    """A run goes to `last` now. `status`: its new one, if that matters to others (cancelling, or terminal), or ""."""

    run_id: str
    last: int
    status: str


def this_server(state: Path | None) -> Server:
    """A new incarnation of this process."""
    return Server(uuid.uuid4().hex, None if state is None else _node(state), socket.gethostname(), os.getpid())


def _node(state: Path) -> str:
    # Machines that were cloned have the same names, paths and inodes, but not the same boot.
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        boot = ""  # not Linux
    place = state.resolve()
    folder = place.stat()
    words = [socket.gethostname(), boot, str(place), str(folder.st_dev), str(folder.st_ino)]
    return hashlib.sha256("\n".join(words).encode("utf-8", "surrogateescape")).hexdigest()


def enter(connection: Connection, server: Server) -> None:
    """Take a place among the servers; the earlier incarnation of this node loses its own."""
    if not is_postgres(connection):
        connection.execute(delete(servers))
    elif server.node is not None:
        connection.execute(delete(servers).where(servers.c.node == server.node))
    connection.execute(
        insert(servers).values(
            id=server.id,
            node=server.node,
            host=server.host,
            pid=server.pid,
            started_at=now(),
            seen=_clock(connection),
        )
    )


def end_lost_runs(connection: Connection) -> list[Appended]:
    """Take away the servers that are dead; end at most AT_A_TIME of the open runs that no server owns.

    Several servers may do so at the same time: what one has taken, the others pass over.
    """
    if is_postgres(connection):
        connection.execute(delete(servers).where(servers.c.seen < _clock(connection) - SILENCE))
    lost = connection.execute(_LOST, {"p_limit": AT_A_TIME}).scalars().all()
    return lifecycle.lose(connection, lost)


_LOST: Final = (
    select(runs.c.id)
    .where(runs.c.status.in_(tuple(sorted(OPEN))), ~exists().where(servers.c.id == runs.c.owner))
    .order_by(runs.c.id)
    .limit(bindparam("p_limit"))
    .with_for_update(of=runs, skip_locked=True)
)


def _clock(connection: Connection) -> ColumnElement[Any]:
    if is_postgres(connection):
        return func.date_part("epoch", func.clock_timestamp())
    return literal(time.time())
