"""How does a public id (`run_01M1…`) stand for a 128-bit value, both ways?

A public id is a prefix, `_` and 26 Crockford base32 characters of a UUID (wire.md, "Ground rules"); ours are UUIDv7, so
ids sort by the time they were made. A raw UUID is accepted wherever a public id is, because the official SDK sends one
in places. The conversion is pure: no table, no look-up.
"""

from __future__ import annotations

import os
import re
import threading
import time
from typing import Final
from uuid import UUID

PREFIXES: Final = frozenset({"run", "chat", "h", "m", "int", "msg", "out", "evt", "eval", "ecase"})
"""The kinds of thing that have a public id."""

_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PLAIN_BASE32: Final = "0123456789abcdefghijklmnopqrstuv"  # what int(text, 32) reads
# Crockford's decoding: either case; I and L read as 1, O as 0; U is no letter. https://www.crockford.com/base32.html
_TO_PLAIN: Final = str.maketrans(
    dict(zip(_ALPHABET, _PLAIN_BASE32, strict=True))
    | dict(zip(_ALPHABET.lower(), _PLAIN_BASE32, strict=True))
    | dict.fromkeys("IiLl", "1")
    | dict.fromkeys("Oo", "0")
)
# 26 characters hold 130 bits: the first one carries three.
_BASE32: Final = re.compile(r"[0-7ILOilo][0-9A-TV-Za-tv-z]{25}")
_RAW_UUID: Final = re.compile(r"[0-9A-Fa-f]{32}|[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")


def public_id(prefix: str, value: UUID) -> str:
    """`prefix_` and the 26 upper-case characters of `value`."""
    number = value.int
    return prefix + "_" + "".join([_ALPHABET[(number >> shift) & 31] for shift in range(125, -1, -5)])


def uuid_of(text: str, prefix: str) -> UUID:
    """The UUID that `text` stands for: a public id with this `prefix`, or a raw UUID (with or without hyphens).

    ValueError says what was wrong, with the text cut to 80 characters: another prefix, a letter that is not Crockford
    base32, another length, more than 128 bits.
    """
    head, underscore, tail = text.partition("_")
    if underscore:
        if head != prefix:
            raise ValueError(f"{_shown(text)} is no {prefix}_ id: its prefix is another one")
        if _BASE32.fullmatch(tail):
            return UUID(int=int(tail.translate(_TO_PLAIN), 32))
    elif _RAW_UUID.fullmatch(text):
        return UUID(hex=text)
    raise ValueError(f"{_shown(text)} is no id: write {prefix}_ and 26 base32 characters, or a UUID")


def new_id(prefix: str) -> str:
    """A fresh public id over a UUIDv7."""
    return public_id(prefix, uuid7())


class _Clock:
    """The last UUIDv7 made in this process: milliseconds and a 42-bit counter (RFC 9562, section 6.2, method 1)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._milliseconds = 0
        self._counter = 0

    def next(self) -> tuple[int, int]:
        now = time.time_ns() // 1_000_000
        with self._lock:
            if now > self._milliseconds:
                self._milliseconds = now
                # Seeded below half, so that two billions fit into one millisecond before the counter runs over.
                self._counter = int.from_bytes(os.urandom(6), "big") & 0x1FF_FFFF_FFFF
            else:  # the same millisecond, or a clock that was set back: still ascending
                self._counter += 1
                if self._counter > 0x3FF_FFFF_FFFF:
                    self._milliseconds += 1
                    self._counter = 0
            return self._milliseconds, self._counter


_clock = _Clock()


def uuid7() -> UUID:
    """A UUIDv7, greater than every earlier one of this process: also across threads, also if the clock steps back."""
    milliseconds, counter = _clock.next()
    return UUID(
        int=(milliseconds & 0xFFFF_FFFF_FFFF) << 80
        | 0x7 << 76
        | (counter >> 30) << 64
        | 0b10 << 62
        | (counter & 0x3FFF_FFFF) << 32
        | int.from_bytes(os.urandom(4), "big")
    )


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:79] + "…")
