"""Where are the accounts' tokens kept? Only their hashes: whoever reads the database can call nothing with it."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Column, Table, Text

from evalfleet.server.schema import metadata

tokens: Final = Table(
    "tokens",
    metadata,
    Column("id", Text, primary_key=True),
    Column("account", Text, nullable=False),
    Column("name", Text, nullable=False),  # JSON string: what its maker calls it
    Column("hash", Text, nullable=False, unique=True),  # SHA-256 of the token, in hex
    Column("created_at", Text, nullable=False),
    Column("expires_at", Text, nullable=True),
    Column("revoked_at", Text, nullable=True),
    Column("last_used_at", Text, nullable=True),
)
