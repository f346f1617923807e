"""The lines between worker, keeper and grader, byte by byte."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from evalfleet.graders.inside.frames import MAX_FRAME, FrameBuffer, Garbled, pack

DOCUMENTS: list[Any] = [{"llm": {"prompt": "ü\ud800\0", "model": None}}, [], 0.5, {"answer": {"pass": True}}]


@pytest.mark.parametrize("nonce", [b"", b"0123456789abcdef"], ids=["worker's line", "grader's line"])
def test_frames_cut_at_every_offset_come_out_whole(nonce: bytes) -> None:
    sent = b"".join(pack(document, nonce) for document in DOCUMENTS)
    for at in range(len(sent) + 1):
        buffer = FrameBuffer(MAX_FRAME, nonce)
        assert buffer.feed(sent[:at]) + buffer.feed(sent[at:]) == DOCUMENTS


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        (b'{"pass": true, "score": 1.0}\n' * 2, "private descriptor"),
        (pack({"answer": {"pass": True}}, b"f" * 16) + bytes(20), "private descriptor"),
        (b"0" * 16 + struct.pack(">I", 1001) + b"x", "1001 bytes"),
        (b"0" * 16 + struct.pack(">I", 4) + b"oops", "no JSON"),
        (b"0" * 16 + struct.pack(">I", 2) + b"\xff\xfe", "no JSON"),
    ],
    ids=["printed there", "another nonce", "too long", "no JSON", "no text"],
)
def test_f03_what_is_no_frame_of_this_line_is_refused(written: bytes, reason: str) -> None:
    with pytest.raises(Garbled, match=reason):
        FrameBuffer(1000, b"0" * 16).feed(written)


def test_what_no_other_end_would_take_is_not_sent() -> None:
    with pytest.raises(Garbled, match="at most"):
        pack("x" * MAX_FRAME)
