"""Is the database of this server's version, and if not, how does it get there?

A new database is made in one go from `schema`. An old one is moved by Alembic, which is imported only then: it costs
0.3 s of every start. The recorded version is read with plain SQL first. A newer database than this program is refused.
Servers that start at the same time on one Postgres do this one after the other.
"""

from __future__ import annotations

import uuid
from pathlib import Path

from sqlalchemy import Connection, Engine, func, insert, inspect, select, text

from evalfleet.errors import UnfitHost
from evalfleet.server import account_tables  # noqa: F401  - its tables join the schema's metadata
from evalfleet.server.engines import is_postgres, writing
from evalfleet.server.schema import SCHEMA_VERSION, installation, metadata

MIGRATIONS = Path(__file__).parent / "migrations"
_LOCK = 0x6576616C  # Postgres' advisory locks have numbers: "eval"


def alone(connection: Connection) -> None:
    """Until the end of the transaction no other server changes the schema or registers trees."""
    if is_postgres(connection):
        connection.execute(text("SET LOCAL lock_timeout = '60s'"))
        connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))


def prepare(engine: Engine) -> None:
    """Bring the database to SCHEMA_VERSION. UnfitHost when it is from a newer evalfleet."""
    with writing(engine) as connection, connection.begin():
        alone(connection)
        recorded = None
        if inspect(connection).has_table("alembic_version"):
            recorded = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
        if recorded == SCHEMA_VERSION:
            return
        if recorded is None:
            metadata.create_all(connection)
            connection.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)"))
            connection.execute(text("INSERT INTO alembic_version VALUES (:version)"), {"version": SCHEMA_VERSION})
            connection.execute(insert(installation).values(id=str(uuid.uuid4())))
            return
    upgrade(engine, recorded)


def upgrade(engine: Engine, recorded: str | None, to: str = "head") -> None:
    """Run the migrations from `recorded` (None: from nothing) to the newest, or `to` another one."""
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    known = ScriptDirectory.from_config(config)
    if recorded is not None:
        try:
            known.get_revision(recorded)
        except CommandError as problem:
            raise UnfitHost(
                f"the database is of version {recorded}, which this evalfleet does not know: a newer one used it. "
                "Update evalfleet, or name another --database."
            ) from problem
    with writing(engine) as connection, connection.begin():
        alone(connection)  # who comes second finds the newest version, and nothing to do
        if is_postgres(connection):
            connection.execute(text("SET LOCAL statement_timeout = 0"))  # a large table takes what it takes
        config.attributes["connection"] = connection
        command.upgrade(config, to)
