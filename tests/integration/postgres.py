"""A database of one's own, for as long as a test (or all of them) lasts: a schema with a random name."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from uuid import uuid4

import psycopg
from psycopg.sql import SQL, Identifier
from sqlalchemy.engine import make_url

from evalfleet.server.schema import metadata


@contextlib.contextmanager
def own_schema(postgres_url: str) -> Iterator[str]:
    """The URL under which everything happens in the new schema. It is dropped at the end.

    Its name is the `application_name` of all connections, too: so a test finds its own, and no other's.
    """
    name = f"evalfleet_test_{uuid4().hex}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(SQL("CREATE SCHEMA {}").format(Identifier(name)))
    url = make_url(postgres_url).update_query_dict({"options": f"-csearch_path={name}", "application_name": name})
    try:
        yield url.render_as_string(hide_password=False)
    finally:
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            # Whoever was killed in the middle of a transaction must not hold up the drop.
            connection.execute("SET lock_timeout = '30s'")
            connection.execute(SQL("DROP SCHEMA {} CASCADE").format(Identifier(name)))


def connect(url: str) -> psycopg.Connection[tuple[object, ...]]:
    """A plain connection to the same schema."""
    return psycopg.connect(url, autocommit=True)


OURS = "pid <> pg_backend_pid() AND application_name = current_schema()"
"""In pg_stat_activity: the connections of this schema's servers and tests, but for the one that asks."""


def end_connections(url: str, where: str = "true") -> None:
    """The database ends the connections to the schema, as a restart of it does."""
    with connect(url) as connection:
        ended = f"SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE {OURS} AND {where}"
        connection.execute(ended.encode())


def emptied(url: str) -> None:
    """The tables as after a first start."""
    with connect(url) as connection:
        made = {
            name
            for (name,) in connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")
        }
        for table in metadata.tables.keys() & made - {"installation"}:
            connection.execute(SQL("DELETE FROM {}").format(Identifier(table)))
