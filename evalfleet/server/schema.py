"""Which tables does the server keep? One definition, which the migrations are held against by a test.

What the wire shows is stored as the JSON text it is answered with, ASCII only: a NUL or a lone surrogate in an agent's
words is an escape (`\\u0000`) in a column of text, so that SQLite and Postgres both take it and give it back unchanged
(E07). Times are RFC 3339 UTC with six decimals, which sorts as text. Money is a decimal in text, never a float.
Ids are public ids as text; ours are UUIDv7, so they sort by creation.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)

SCHEMA_VERSION: Final = "0006"
"""The newest revision under `migrations/versions`; a test compares the two."""

metadata: Final = MetaData()


def _text(name: str, *, null: bool = False, key: bool = False) -> Column[Any]:
    return Column(name, Text, nullable=null, primary_key=key)


def _object(name: str) -> Column[Any]:
    return Column(name, Text, nullable=False, server_default="{}")  # JSON


def _count(name: str, *, key: bool = False) -> Column[Any]:
    # The key columns are never generated: autoincrement would make a lone Integer key one in Postgres.
    if key:
        return Column(name, Integer, nullable=False, primary_key=True, autoincrement=False)
    return Column(name, Integer, nullable=False, default=0, server_default="0")


def _tokens(name: str) -> Column[Any]:
    # An agent may report up to 2**53, and they add up. SQLite's integers have 64 bits in any case.
    return Column(name, BigInteger().with_variant(Integer(), "sqlite"), nullable=False, default=0, server_default="0")


installation: Final = Table(
    "installation",
    metadata,
    _text("id", key=True),  # a random UUID, made once: harness ids are derived from it
)

harnesses: Final = Table(
    "harnesses",
    metadata,
    _text("id", key=True),
    _text("name"),
    _text("created_at"),
    UniqueConstraint("name", name="harnesses_name"),
)

harness_versions: Final = Table(
    "harness_versions",
    metadata,
    _text("harness_id", key=True),
    _count("number", key=True),
    _text("commit_id"),
    _text("message"),
    _text("created_at"),
    _text("files"),  # JSON: {path: text}
    UniqueConstraint("harness_id", "commit_id", name="harness_versions_commit"),
)

servers: Final = Table(
    "servers",
    metadata,
    _text("id", key=True),  # an incarnation: a new one at each start
    _text("node", null=True),  # what stays the same from start to start
    _text("host"),
    Column("pid", Integer, nullable=False),
    _text("started_at"),
    Column("seen", Float(53), nullable=False),  # seconds since 1970 by the database's clock: when it last said so
)

chats: Final = Table(
    "chats",
    metadata,
    _text("id", key=True),
    _text("account"),
    _text("harness_id"),
    _count("turns"),
    _text("created_at"),
)

runs: Final = Table(
    "runs",
    metadata,
    _text("id", key=True),
    _text("account"),
    _text("harness_id"),
    _text("harness_commit"),
    _text("chat_id"),
    _count("turn"),  # from 0 inside the chat
    _text("status"),
    _text("created_at"),
    _text("updated_at"),
    _text("started_at", null=True),
    _text("completed_at", null=True),
    _text("failure", null=True),  # JSON
    _text("metadata"),  # JSON
    _text("input"),  # JSON, as posted
    _text("message"),  # JSON string: the text of the user's parts
    _text("answer", null=True),  # JSON: the last answer
    _count("last_sequence"),
    _count("last_message"),
    _count("last_output"),
    _tokens("input_tokens"),
    _tokens("output_tokens"),
    _tokens("cache_read_tokens"),
    _tokens("cache_write_tokens"),
    _count("tool_calls"),
    _text("amount", null=True),
    _text("currency", null=True),
    _count("judge_calls"),
    _tokens("judge_tokens"),
    _text("owner", null=True),  # the server (servers.id) that plays it
    _text("judge_amounts", null=True),  # JSON: currency → amount
    Index("runs_newest", "account", "created_at", "id"),
    Index("runs_chat", "chat_id", "turn"),
    Index("runs_status", "status"),
)


def _rows_of_a_run(name: str, number: str) -> Table:
    # One clustered tree in SQLite: a run's rows lie side by side, and there is no second index to write.
    return Table(
        name, metadata, _text("run_id", key=True), _count(number, key=True), _text("doc"), sqlite_with_rowid=False
    )


messages: Final = _rows_of_a_run("messages", "position")
outputs: Final = _rows_of_a_run("outputs", "position")
events: Final = _rows_of_a_run("events", "sequence")

idempotency: Final = Table(
    "idempotency",
    metadata,
    _text("account", key=True),
    _text("route", key=True),
    _text("key", key=True),
    _text("fingerprint"),
    _count("status"),
    _text("location", null=True),
    Column("body", LargeBinary, nullable=False),
    Column("packed", Boolean, nullable=False),  # zlib, for long bodies
    _text("created_at"),
    Index("idempotency_location", "location"),  # a key goes with the run that it made
)

evaluations: Final = Table(
    "evaluations",
    metadata,
    _text("id", key=True),
    _text("account"),
    _text("harness_id"),
    _text("harness_commit"),
    _count("harness_number"),
    _text("baseline_commit", null=True),
    Column("baseline_number", Integer, nullable=True),
    _text("suite_key"),  # JSON string
    _text("suite"),  # JSON
    _text("suite_name"),  # JSON string
    _text("scorer", null=True),  # JSON
    _count("k"),
    _text("status"),
    _text("created_at"),
    _text("completed_at", null=True),
    _count("cases_done"),
    _count("cases_total"),
    _count("attempts"),
    # what the attempts so far add up to; complete and cancel count everything anew (S30)
    _count("scored"),
    _text("score_sum"),
    _tokens("tokens"),
    _text("metrics", null=True),  # JSON
    _text("comparison", null=True),  # JSON, once terminal
    _object("amounts"),  # currency → amount, of the agents
    _object("judge"),  # what their judge calls have used
    Index("evaluations_commit", "account", "harness_commit", "created_at", "id"),
    Index("evaluations_harness", "account", "harness_id", "created_at", "id"),
)

evaluation_cases: Final = Table(
    "evaluation_cases",
    metadata,
    _text("evaluation_id", key=True),
    _count("position", key=True),
    _text("id"),
    _text("key"),  # JSON string; unique in its evaluation, but too long for an index of Postgres
    _text("name"),  # JSON string
    _text("input"),  # JSON
    _text("expected"),  # JSON
    _text("verdicts"),  # one letter for each of the k attempts: "-" missing, "p" passed, "f" failed
    UniqueConstraint("id", name="evaluation_cases_id"),
)

attempts: Final = Table(
    "attempts",
    metadata,
    _text("evaluation_id", key=True),
    _count("position", key=True),  # of the case
    _count("attempt_index", key=True),
    _text("run_id"),
    _text("chat_id"),
    _text("verdict"),
    _text("judge_score", null=True),
    _text("judge_feedback", null=True),  # JSON string
    _text("scorer_id"),  # JSON string
    _text("scorer_version"),  # JSON string
    _text("created_at"),
    Index("attempts_run", "evaluation_id", "run_id"),  # a run is evidence for one attempt only
    sqlite_with_rowid=False,
)

evaluation_chats: Final = Table(
    "evaluation_chats",
    metadata,
    _text("evaluation_id", key=True),
    _text("chat_id", key=True),
    Index("evaluation_chats_chat", "chat_id"),  # what an evaluation holds is not pruned
    sqlite_with_rowid=False,
)
