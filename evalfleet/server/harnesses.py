"""Which harnesses does this server know, and which version of each?

A harness is a served tree. Its id is derived from a random id of this installation and its name, so it is the same at
every start. A version is a commit; a commit that was not seen before gets the next number, with the harness files as
they are then. A version never changes.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, bindparam, func, insert, select, tuple_

from evalfleet.contract.ids import public_id
from evalfleet.server.cursors import page_cursor, read_page_cursor
from evalfleet.server.documents import now, page_of, text_of
from evalfleet.server.refusal import not_found
from evalfleet.server.schema import harness_versions, harnesses, installation

FILE_LIMIT: Final = 1024 * 1024
TOTAL_LIMIT: Final = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Version:
    """What an evaluation or a run is pinned to."""

    harness_id: str
    number: int
    commit: str

    def reference(self) -> str:
        return f'{{"number":{self.number},"commit":"{self.commit}"}}'


def register(connection: Connection, name: str, commit: str, message: str, files: Mapping[str, str] | None) -> Version:
    """Make the harness and the version known; nothing happens when they are. `files` None: only look."""
    at = now()
    harness_id = _harness_id(connection, name)
    if connection.execute(select(harnesses.c.id).where(harnesses.c.id == harness_id)).first() is None:
        connection.execute(insert(harnesses).values(id=harness_id, name=name, created_at=at))
    known = find_version(connection, harness_id, commit)
    if known is not None:
        return known
    highest = connection.execute(
        select(func.max(harness_versions.c.number)).where(harness_versions.c.harness_id == harness_id)
    ).scalar()
    number = (highest or 0) + 1
    connection.execute(
        insert(harness_versions).values(
            harness_id=harness_id,
            number=number,
            commit_id=commit,
            message=message,
            created_at=at,
            files=text_of(dict(files or {})),
        )
    )
    return Version(harness_id, number, commit)


def is_known(connection: Connection, name: str, commit: str) -> bool:
    """Whether `register` would have nothing to do (and needs no files)."""
    return find_version(connection, _harness_id(connection, name), commit) is not None


def _harness_id(connection: Connection, name: str) -> str:
    root = connection.execute(select(installation.c.id)).scalar_one()
    return public_id("h", uuid.uuid5(uuid.UUID(root), name))


_VERSION: Final = select(harness_versions.c.number).where(
    harness_versions.c.harness_id == bindparam("p_harness"), harness_versions.c.commit_id == bindparam("p_commit")
)


def find_version(connection: Connection, harness_id: str, commit: str) -> Version | None:
    number = connection.execute(_VERSION, {"p_harness": harness_id, "p_commit": commit}).scalar()
    return None if number is None else Version(harness_id, number, commit)


def newest_version(connection: Connection, harness_id: str) -> Version | None:
    row = connection.execute(
        select(harness_versions.c.number, harness_versions.c.commit_id)
        .where(harness_versions.c.harness_id == harness_id)
        .order_by(harness_versions.c.number.desc())
        .limit(1)
    ).first()
    return None if row is None else Version(harness_id, row.number, row.commit_id)


def exists(connection: Connection, harness_id: str) -> bool:
    return connection.execute(select(harnesses.c.id).where(harnesses.c.id == harness_id)).first() is not None


def page(connection: Connection, cursor: str | None, limit: int) -> bytes:
    """Index entries `{id, name}`, newest first."""
    query = select(harnesses.c.id, harnesses.c.name, harnesses.c.created_at)
    if cursor is not None:
        created_at, _, last_id = read_page_cursor(cursor, "/v2/harnesses", {}).partition(" ")
        query = query.where(tuple_(harnesses.c.created_at, harnesses.c.id) < tuple_(created_at, last_id))
    query = query.order_by(harnesses.c.created_at.desc(), harnesses.c.id.desc()).limit(limit + 1)
    rows = connection.execute(query).all()
    more = len(rows) > limit
    rows = rows[:limit]
    following = page_cursor("/v2/harnesses", {}, f"{rows[-1].created_at} {rows[-1].id}") if more else None
    documents = [text_of({"id": row.id, "name": row.name}) for row in rows]
    return page_of(documents, next_cursor=following, has_more=more)


def get(connection: Connection, harness_id: str) -> bytes:
    """`{id, name, versions: [{number, commit}]}`, versions newest first."""
    row = connection.execute(select(harnesses.c.name).where(harnesses.c.id == harness_id)).first()
    if row is None:
        raise not_found("harness")
    versions = connection.execute(
        select(harness_versions.c.number, harness_versions.c.commit_id)
        .where(harness_versions.c.harness_id == harness_id)
        .order_by(harness_versions.c.number.desc())
    )
    document: dict[str, Any] = {
        "id": harness_id,
        "name": row.name,
        "versions": [{"number": version.number, "commit": version.commit_id} for version in versions],
    }
    return text_of(document).encode("ascii")


def version(connection: Connection, harness_id: str, commit: str) -> bytes:
    """One version with its files."""
    row = connection.execute(
        select(harness_versions).where(
            harness_versions.c.harness_id == harness_id, harness_versions.c.commit_id == commit
        )
    ).first()
    if row is None:
        raise not_found("version of this harness")
    head = text_of(
        {
            "harness_id": harness_id,
            "number": row.number,
            "commit": row.commit_id,
            "message": row.message,
            "created_at": row.created_at,
        }
    )
    return f'{head[:-1]},"files":{row.files}}}'.encode("ascii")
