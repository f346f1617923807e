"""What is inside a cursor? Where a page ended, bound to the endpoint and the filters that made it (E05).

A cursor is opaque to its reader. Inside: a tag of the endpoint, a tag of the filters, the place, and a checksum over
all of it: a damaged one is `cursor_invalid` and never an error of ours. It holds no secret, so no key is needed.
"""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from hashlib import blake2s

from evalfleet.server.refusal import field, refuse

_TAG = 4
_CHECK = 5


def page_cursor(endpoint: str, filters: Mapping[str, str], place: str) -> str:
    """A cursor after `place` (ASCII text) of the list at `endpoint` under `filters`."""
    body = _tag(endpoint) + _tag_of_filters(filters) + place.encode("ascii")
    return urlsafe_b64encode(_check(body) + body).rstrip(b"=").decode("ascii")


def read_page_cursor(cursor: str, endpoint: str, filters: Mapping[str, str]) -> str:
    """The place in `cursor`. Refuses `cursor_invalid` and `cursor_filter_mismatch` (400)."""
    body = _opened(cursor)
    if body is None or len(body) < 2 * _TAG or body[:_TAG] != _tag(endpoint):
        raise _invalid("query")
    if body[_TAG : 2 * _TAG] != _tag_of_filters(filters):
        raise refuse(
            "cursor_filter_mismatch",
            "The cursor was made with other filters: repeat the filters of the first page, or start without a cursor.",
        )
    return body[2 * _TAG :].decode("ascii")


def event_cursor(run_id: str, sequence: int) -> str:
    """The cursor of event `sequence` of a run; it is also the `id:` of its SSE frame."""
    body = sequence.to_bytes(4, "big")
    return urlsafe_b64encode(body + blake2s(body, digest_size=_CHECK, key=run_id.encode("ascii")).digest()).decode(
        "ascii"
    )


def read_event_cursor(run_id: str, cursor: str, *, location: str = "query") -> int:
    """The sequence in an event cursor of this run; `cursor_invalid` for anything else."""
    try:
        sequence = int.from_bytes(urlsafe_b64decode(cursor.encode("ascii"))[:4], "big")
    except (ValueError, binascii.Error):
        raise _invalid(location) from None
    if event_cursor(run_id, sequence) != cursor:
        raise _invalid(location)
    return sequence


def _tag(text: str) -> bytes:
    return blake2s(text.encode("utf-8", "surrogatepass"), digest_size=_TAG).digest()


def _tag_of_filters(filters: Mapping[str, str]) -> bytes:
    return _tag("\n".join(f"{name}={value!r}" for name, value in sorted(filters.items())))


def _check(body: bytes) -> bytes:
    return blake2s(body, digest_size=_CHECK).digest()


def _opened(cursor: str) -> bytes | None:
    try:
        raw = urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4))
    except (ValueError, binascii.Error):
        return None
    # Base64 has several spellings of the same bytes; only ours is taken, so that a flipped bit is always seen.
    if len(raw) <= _CHECK or urlsafe_b64encode(raw).rstrip(b"=").decode("ascii") != cursor:
        return None
    return raw[_CHECK:] if _check(raw[_CHECK:]) == raw[:_CHECK] else None


def _invalid(location: str) -> Exception:
    return refuse(
        "cursor_invalid",
        "The cursor is damaged, or belongs to another endpoint: start without a cursor.",
        errors=[
            field(
                "Last-Event-ID" if location == "header" else "cursor",
                "not a cursor of this list",
                "cursor_invalid",
                location,
            )
        ],
    )
