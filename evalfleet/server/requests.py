"""What does a request carry beside its body: who asks, ids in the path, limits, cursors and filters in the query?"""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any, Final

from starlette.requests import Request

from evalfleet.contract.ids import public_id, uuid_of
from evalfleet.server.bodies import shown
from evalfleet.server.refusal import field, not_found, refuse

ACCOUNT: Final = "evalfleet.account"
"""Where the gate leaves the caller's account in the ASGI scope."""

_NAMES: Final = {"run": "run", "h": "harness", "eval": "evaluation", "chat": "chat", "int": "interaction"}
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")


def account_of(request: Request) -> str:
    return str(request.scope[ACCOUNT])


def id_in_path(request: Request, name: str, prefix: str) -> str:
    """The canonical public id of a path parameter; a raw UUID is taken; anything else is 404 (wire.md)."""
    return canonical_id(request.path_params[name], prefix)


def canonical_id(text: str, prefix: str) -> str:
    try:
        return public_id(prefix, uuid_of(text, prefix))
    except ValueError:
        raise not_found(_NAMES.get(prefix, "thing")) from None


def one(request: Request, name: str) -> str | None:
    """A query parameter; the last one where it comes twice. Empty counts as absent."""
    return request.query_params.get(name) or None


def limit_of(request: Request, *, highest: int = 100, default: int = 20, code: str = "invalid_parameter") -> int:
    value = request.query_params.get("limit")
    if value is None:
        return default
    if re.fullmatch(r"[0-9]{1,9}", value) and 1 <= int(value) <= highest:
        return int(value)
    raise _bad("limit", f"is {shown(value)}: write 1 to {highest}", code)


def statuses_of(request: Request, known: Collection[str]) -> tuple[str, ...]:
    """`status=a,b`, each a known word, sorted and without repeats."""
    value = one(request, "status")
    if value is None:
        return ()
    words = {word.strip() for word in value.split(",")} - {""}
    for word in sorted(words):
        if word not in known:
            raise _bad("status", f"{shown(word)} is no status; write of {', '.join(sorted(known))}, with commas")
    return tuple(sorted(words))


def id_in_query(request: Request, name: str, prefix: str) -> str | None:
    value = one(request, name)
    if value is None:
        return None
    try:
        return public_id(prefix, uuid_of(value, prefix))
    except ValueError:
        raise _bad(name, f"{shown(value)} is no {prefix}_ id") from None


def time_of(request: Request, name: str) -> str | None:
    """An RFC 3339 time as our own text (UTC, microseconds)."""
    value = one(request, name)
    if value is None:
        return None
    try:
        # A "+" of an offset that was not escaped arrives as a blank.
        moment = datetime.fromisoformat(value.replace(" ", "+") if "T" in value else value)
        utc = moment.astimezone(UTC) if moment.tzinfo is not None else None
    except (ValueError, OverflowError):
        utc = None
    if utc is None:
        raise _bad(name, f"{shown(value)} is no RFC 3339 time such as 2026-09-02T07:21:48Z")
    return utc.strftime("%Y-%m-%dT%H:%M:%S.%fZ").zfill(27)


def commit_of(request: Request, name: str) -> str | None:
    value = one(request, name)
    if value is not None and not _COMMIT.fullmatch(value):
        raise _bad(name, f"{shown(value)} is no commit: write 40 lower-case hex digits")
    return value


def is_commit(value: Any) -> bool:
    return isinstance(value, str) and _COMMIT.fullmatch(value) is not None


def _bad(name: str, reason: str, code: str = "invalid_parameter") -> Exception:
    return refuse(code, f"{name}: {reason}.", status=400, errors=[field(name, reason, "invalid", "query")])
