"""How does a request that is sent twice have its effect once (E01–E03)?

A key belongs to one account and one route (method and path). The claim and the effect are one transaction, so there is
never a key without its effect, and a server that dies on the way has done neither. Only answers of success are kept.
Two bodies are the same when their JSON is: white space, the order of keys, escapes and `1` against `1.0` don't count.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Final

from sqlalchemy import Connection, bindparam, insert, select
from starlette.requests import Request

from evalfleet.server.documents import canonical, now
from evalfleet.server.refusal import field, refuse
from evalfleet.server.schema import idempotency

HEADER: Final = "Idempotency-Key"
_VISIBLE: Final = re.compile(r"[\x21-\x7e]{1,255}")
_PACK_OVER: Final = 4096

_FIND: Final = select(
    idempotency.c.fingerprint, idempotency.c.status, idempotency.c.location, idempotency.c.body, idempotency.c.packed
).where(
    idempotency.c.account == bindparam("p_account"),
    idempotency.c.route == bindparam("p_route"),
    idempotency.c.key == bindparam("p_key"),
)
_KEEP: Final = insert(idempotency)


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
    row = connection.execute(_FIND, {"p_account": key.account, "p_route": key.route, "p_key": key.key}).first()
    if row is not None:
        if row.fingerprint != key.fingerprint:
            raise refuse(
                "idempotency_key_conflict",
                f"This {HEADER} was used here with another body: take a new key for a new request.",
                errors=[field(HEADER, "used with another body", "conflict", "header")],
            )
        return Answer(row.status, zlib.decompress(row.body) if row.packed else row.body, row.location, replayed=True)
    answer = act()
    packed = len(answer.body) > _PACK_OVER
    connection.execute(
        _KEEP,
        {
            "account": key.account,
            "route": key.route,
            "key": key.key,
            "fingerprint": key.fingerprint,
            "status": answer.status,
            "location": answer.location,
            "body": zlib.compress(answer.body, 1) if packed else answer.body,
            "packed": packed,
            "created_at": now(),
        },
    )
    return replace(answer, replayed=False)
