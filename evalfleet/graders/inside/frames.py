"""How do the parts of the cage say things to each other: a length and a JSON document, on a stream.

`FrameBuffer` is pure: bytes in, documents out, cut at any offset. On the child's line every frame begins with a nonce
(32 hex characters): a grader that writes on a descriptor it finds cannot make a frame by accident or by printing.
"""

from __future__ import annotations

import json
import struct
from typing import Any

MAX_FRAME = 64 * 1024 * 1024  # bytes; a conversation with large tool results has to fit
MAX_CHILD_FRAME = 8 * 1024 * 1024  # bytes; what a grader may say at once: its prompt is the largest thing

_LENGTH = struct.Struct(">I")
# Taken now: a grader may replace json.dumps inside its own process, and its answer still has to come out.
_encode = json.JSONEncoder(ensure_ascii=True, separators=(",", ":")).encode
_decode = json.JSONDecoder().decode


class Garbled(Exception):
    """Bytes that are no frame of this line."""


def pack(document: Any, nonce: bytes = b"") -> bytes:
    """Raises Garbled where no other end would take it."""
    body = _encode(document).encode("ascii")
    if len(body) > MAX_FRAME:
        raise Garbled(f"a message of {len(body)} bytes (at most {MAX_FRAME})")
    return nonce + _LENGTH.pack(len(body)) + body


class FrameBuffer:
    """Collects bytes of one line and gives the documents that are complete."""

    def __init__(self, limit: int, nonce: bytes = b"") -> None:
        self._limit = limit
        self._nonce = nonce
        self._bytes = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        """Documents completed by `data`. Raises Garbled at a wrong nonce, an oversized frame or no JSON."""
        self._bytes += data
        head = len(self._nonce) + _LENGTH.size
        found = []
        while len(self._bytes) >= head:
            if self._bytes[: len(self._nonce)] != self._nonce:
                raise Garbled("bytes that are not its answer were written on its private descriptor")
            (length,) = _LENGTH.unpack_from(self._bytes, len(self._nonce))
            if length > self._limit:
                raise Garbled(f"a message of {length} bytes (at most {self._limit})")
            if len(self._bytes) < head + length:
                break
            try:
                found.append(_decode(self._bytes[head : head + length].decode("ascii")))
            except ValueError as error:
                raise Garbled(f"a message that is no JSON: {error}") from None
            del self._bytes[: head + length]
        return found
