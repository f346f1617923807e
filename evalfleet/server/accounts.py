"""Whose token is this? Tokens: made, shown once, listed, revoked, and looked up at every request.

A token is `eft_` and 256 random bits. Only its SHA-256 is kept. A slow hash (bcrypt, argon2) protects secrets that
people choose, which can be guessed by trying; nobody tries 2^256, so a slow hash would cost every request its time and
protect nothing. The prefix lets scanners of repositories and logs find a token that leaked.

An account is a name. It owns what its tokens make: runs, chats, evaluations, keys. Harnesses belong to the server and
are every account's. The token of EVALFLEET_TOKEN is fixed: account `main`, without expiry, not in the database.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, Final

from sqlalchemy import Connection, insert, or_, select, update
from sqlalchemy.exc import DBAPIError

from evalfleet.contract.ids import new_id
from evalfleet.errors import StorageError, UnfitHost, UsageError
from evalfleet.server.account_tables import tokens
from evalfleet.server.documents import now, text_of, time_text
from evalfleet.server.migrate import prepare
from evalfleet.server.store import Store, read_url

_log = logging.getLogger(__name__)

PREFIX: Final = "eft_"
FRESH: Final = 2.0
"""Seconds that a server goes by what it has read of the table: a revoked token works at most that long."""
USE_NOTED_EVERY: Final = 60.0
"""Seconds: `last_used_at` is as exact as that, so that a busy token is not a write for each request."""

_ACCOUNT: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_EXPIRES: Final = re.compile(r"([1-9][0-9]{0,5})([smhdw])")
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
LONGEST: Final = timedelta(days=3660)


@dataclass(frozen=True, slots=True)
class Token:
    """What is known of a token; times as on the wire."""

    id: str
    account: str
    name: str
    created_at: str
    expires_at: str | None = None
    revoked_at: str | None = None
    last_used_at: str | None = None

    def state(self, at: str) -> str:
        """`active`, `expired` or `revoked`."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= at else "active"

    def document(self, at: str) -> dict[str, str | None]:
        return {
            "id": self.id,
            "name": self.name,
            "account": self.account,
            "state": self.state(at),
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            "revoked_at": self.revoked_at,
            "last_used_at": self.last_used_at,
        }


# -- what the operator does


def lifetime(text: str, flag: str = "--expires") -> timedelta:
    """`90d`, `12h`, `30m`, `45s`, `2w`: up to ten years. UsageError, naming the flag, for every other spelling."""
    found = _EXPIRES.fullmatch(text)
    span = timedelta(seconds=int(found[1]) * _UNITS[found[2]]) if found else None
    if span is None or span > LONGEST:
        raise UsageError(f"{flag} {text!r}: write it like 90d, 12h, 30m or 2w, up to ten years")
    return span


def create(
    connection: Connection, name: str, *, account: str = "main", expires: timedelta | None = None
) -> tuple[Token, str]:
    """A new token and its secret, which nothing can show again. UsageError for a name or account that cannot be."""
    if not name.strip() or len(name) > 100 or not name.isprintable():
        raise UsageError(f"the name {name[:100]!r}: write 1 to 100 printable characters that say who uses the token")
    if not _ACCOUNT.fullmatch(account):
        raise UsageError(f"--account {account[:100]!r}: write 1 to 64 of a-z 0-9 . _ -, a letter or digit first")
    secret = PREFIX + secrets.token_urlsafe(32)
    at = datetime.now(UTC)
    token = Token(
        id=new_id("tok"),
        account=account,
        name=name,
        created_at=time_text(at),
        expires_at=None if expires is None else time_text(at + expires),
    )
    connection.execute(
        insert(tokens).values(
            id=token.id,
            account=account,
            name=text_of(name),
            hash=sha256(secret.encode("ascii")).hexdigest(),
            created_at=token.created_at,
            expires_at=token.expires_at,
        )
    )
    return token, secret


def every(connection: Connection) -> list[Token]:
    """All tokens, newest first; ended ones too."""
    return [_token(row) for row in connection.execute(select(tokens).order_by(tokens.c.id.desc()))]


def revoke(connection: Connection, token_id: str) -> Token:
    """End a token for good; doing it again changes nothing. UsageError for an id that is not there."""
    row = connection.execute(select(tokens).where(tokens.c.id == token_id)).first()
    if row is None:
        raise UsageError(f"there is no token {token_id[:100]!r} in this database; `evalfleet token list` shows them")
    if row.revoked_at is not None:
        return _token(row)
    connection.execute(update(tokens).where(tokens.c.id == token_id).values(revoked_at=now()))
    return _token(connection.execute(select(tokens).where(tokens.c.id == token_id)).one())


def any_live(connection: Connection) -> bool:
    """Whether a token of the database works now."""
    at = now()
    return any(live.expires_at is None or live.expires_at > at for live in _live_tokens(connection))


@contextmanager
def changing(url: str) -> Iterator[Connection]:
    """One write on a server's database, also while that server runs. Makes the database when there is none."""
    store = Store(url)
    try:
        prepare(store.engine)
        with store.engine.connect().execution_options(writes=True) as connection, connection.begin():
            yield connection
    except DBAPIError as problem:
        raise UnfitHost(f"the database {read_url(url).render_as_string()} cannot be used: {problem.orig}") from problem
    finally:
        store.engine.dispose()


def _token(row: Any) -> Token:
    return Token(
        row.id, row.account, json.loads(row.name), row.created_at, row.expires_at, row.revoked_at, row.last_used_at
    )


# -- what a running server asks


@dataclass(frozen=True, slots=True)
class _Live:
    id: str
    account: str
    digest: bytes
    expires_at: str | None


_LIVE: Final = select(tokens.c.id, tokens.c.account, tokens.c.hash, tokens.c.expires_at).where(
    tokens.c.revoked_at.is_(None)
)


class Accounts:
    """Token → account. `fixed`: tokens that are not in the database.

    The table is read anew when what is known of it is older than FRESH, and before any token is called unknown: a new
    one works at once. Wrong tokens share those reads, one at a time, so a flood of them is no flood of queries.
    """

    def __init__(self, store: Store, fixed: Mapping[str, str]) -> None:
        self._store = store
        self._fixed = [(sha256(token.encode()).digest(), account) for token, account in fixed.items()]
        self._live: dict[bytes, _Live] = {}
        self._read_at = float("-inf")
        self._reading = asyncio.Lock()
        self._noted: dict[str, float] = {}
        self._notes: set[asyncio.Task[None]] = set()

    async def account_of(self, token: bytes) -> str | None:
        """The account of a bearer token as it was sent; None for one that is unknown, expired or revoked.

        StorageError when it takes the database to know, and that cannot be read.
        """
        given = sha256(token).digest()
        found = None
        for digest, account in self._fixed:  # all of them, so that the time says nothing
            if hmac.compare_digest(digest, given):
                found = account
        if found is not None or not token.startswith(PREFIX.encode("ascii")):
            return found
        live = await self._find(given)
        if live is None or (live.expires_at is not None and live.expires_at <= now()):
            return None
        self._note_use(live.id)
        return live.account

    async def _find(self, given: bytes) -> _Live | None:
        asked_at = time.monotonic()
        live = self._known(given)
        if live is not None and asked_at - self._read_at < FRESH:
            return live
        async with self._reading:
            if self._read_at < asked_at:
                began = time.monotonic()
                self._live = {one.digest: one for one in await self._store.read(_live_tokens)}
                self._read_at = began
        return self._known(given)

    def _known(self, given: bytes) -> _Live | None:
        # Found by its digest: what the look-up's time could tell is about a hash, which leads to no token.
        live = self._live.get(given)
        return live if live is not None and hmac.compare_digest(live.digest, given) else None

    def _note_use(self, token_id: str) -> None:
        at = time.monotonic()
        if at - self._noted.get(token_id, float("-inf")) < USE_NOTED_EVERY:
            return
        self._noted[token_id] = at
        task = asyncio.get_running_loop().create_task(self._write_use(token_id))
        self._notes.add(task)  # the loop itself holds tasks weakly
        task.add_done_callback(self._notes.discard)

    async def _write_use(self, token_id: str) -> None:
        at = now()
        newer = or_(tokens.c.last_used_at.is_(None), tokens.c.last_used_at < at)
        change = update(tokens).where(tokens.c.id == token_id, newer).values(last_used_at=at)
        try:
            await self._store.write(lambda connection: _execute(connection, change))
        except StorageError as problem:  # the request itself goes on: only the note is lost
            _log.warning("the use of token %s is not noted: %s", token_id, problem.message)


def _live_tokens(connection: Connection) -> list[_Live]:
    return [_Live(row.id, row.account, bytes.fromhex(row.hash), row.expires_at) for row in connection.execute(_LIVE)]


def _execute(connection: Connection, statement: Any) -> None:
    connection.execute(statement)
