"""How does a request that is sent twice have its effect once (E01–E03)?

A key belongs to one account and one route (method and path). The claim and the effect are one transaction, so there is
never a key without its effect, and a server that dies on the way has done neither. Who comes with the same key
meanwhile waits: with SQLite because there is one writer, with Postgres at the claim, at whichever server it comes in,
until that transaction has ended; then it gets its answer, or the claim. Only answers of success are kept.
Two bodies are the same when their JSON is: white space, the order of keys, escapes and `1` against `1.0` don't count.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from typing import Any, Final

from sqlalchemy import Connection, bindparam, insert, select, update
from starlette.requests import Request

from evalfleet.server.documents import canonical, now
from evalfleet.server.engines import is_postgres
from evalfleet.server.refusal import field, refuse
from evalfleet.server.schema import idempotency

HEADER: Final = "Idempotency-Key"
_VISIBLE: Final = re.compile(r"[\x21-\x7e]{1,255}")
_PACK_OVER: Final = 4096

_INSERT: Final = insert(idempotency)
_MINE: Final = (
    (idempotency.c.account == bindparam("p_account"))
    & (idempotency.c.route == bindparam("p_route"))
    & (idempotency.c.key == bindparam("p_key"))
)
_FIND: Final = select(
    idempotency.c.fingerprint, idempotency.c.status, idempotency.c.location, idempotency.c.body, idempotency.c.packed
).where(_MINE)
_FILL_IN: Final = (
    update(idempotency)
    .where(_MINE)
    .values(
        status=bindparam("v_status"),
        location=bindparam("v_location"),
        body=bindparam("v_body"),
        packed=bindparam("v_packed"),
    )
)


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished answer: status, ready JSON, where the thing is, and whether this is a replay."""

    status: int
    body: bytes
    location: str | None = None
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class Key:
    """One use of a key: whose it is, where it was sent, and what the body was."""

    account: str
    route: str
    key: str
    fingerprint: str


def key_in(request: Request, *, required: bool) -> str | None:
    """The request's key, checked: 400 `idempotency_key_required` or `idempotency_key_invalid`."""
    values = request.headers.getlist(HEADER)
    if not values:
        if required:
            raise refuse(
                "idempotency_key_required",
                f"Send an {HEADER} header: a value of your own for this request, the same on a retry.",
                errors=[field(HEADER, "required", "required", "header")],
            )
        return None
    if len(values) > 1 or not _VISIBLE.fullmatch(values[0]):
        raise refuse(
            "idempotency_key_invalid",
            f"{HEADER} must be one header of 1 to 255 visible ASCII characters.",
            errors=[field(HEADER, "not 1 to 255 visible ASCII characters", "invalid", "header")],
        )
    return values[0]


def fingerprint_of(body: Any) -> str:
    """Equal for equal JSON."""
    return sha256(canonical(body).encode("ascii")).hexdigest()


def once(connection: Connection, key: Key | None, act: Callable[[], Answer]) -> Answer:
    """What the first use of `key` was answered; or act now and keep the answer. Without a key: just act.

    Runs inside a write. 409 `idempotency_key_conflict` for another body under the same key.
    """
    if key is None:
        return act()
    place = {"p_account": key.account, "p_route": key.route, "p_key": key.key}
    claims = is_postgres(connection)
    claimed, row = False, None
    if not claims:
        row = connection.execute(_FIND, place).first()
    while claims and not claimed and row is None:  # again only if the key went between the two, with its old run
        claimed = connection.execute(_claim(), _row(key, Answer(0, b""))).first() is not None
        row = None if claimed else connection.execute(_FIND, place).first()
    if row is not None:
        if row.fingerprint != key.fingerprint:
            raise refuse(
                "idempotency_key_conflict",
                f"This {HEADER} was used here with another body: take a new key for a new request.",
                errors=[field(HEADER, "used with another body", "conflict", "header")],
            )
        return Answer(row.status, zlib.decompress(row.body) if row.packed else row.body, row.location, replayed=True)
    answer = act()
    values = _row(key, answer)
    if claims:
        filled = {f"v_{name}": values[name] for name in ("status", "location", "body", "packed")}
        connection.execute(_FILL_IN, {**place, **filled})
    else:
        connection.execute(_INSERT, values)
    return answer


@cache
def _claim() -> Any:
    from sqlalchemy.dialects import postgresql  # 0.1 s, which a server on SQLite does without

    return postgresql.insert(idempotency).on_conflict_do_nothing().returning(idempotency.c.status)


def _row(key: Key, answer: Answer) -> dict[str, Any]:
    packed = len(answer.body) > _PACK_OVER
    return {
        "account": key.account,
        "route": key.route,
        "key": key.key,
        "fingerprint": key.fingerprint,
        "status": answer.status,
        "location": answer.location,
        "body": zlib.compress(answer.body, 1) if packed else answer.body,
        "packed": packed,
        "created_at": now(),
    }
