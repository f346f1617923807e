"""The decoder's promises, cases C01–C04, C09 and C11: the customer's chunk tables are `tests/cases/C*.json`."""

from __future__ import annotations

import json
import tracemalloc
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalfleet.contract.sse import MAX_EVENT_BYTES, MAX_EVENT_LINES, ServerSentEvent, SSEDecoder
from evalfleet.errors import UnreadableAnswer

CASES = Path(__file__).parent.parent / "cases"
TABLES = ["C01", "C02", "C02.cr", "C03", "C04", "C04.bad", "C09"]


def chunks_of(name: str) -> list[bytes]:
    document = json.loads((CASES / f"{name}.json").read_text())
    return [bytes.fromhex(chunk) for chunk in document["chunks_hex"]]


def expected_of(name: str) -> list[Any]:
    expected = json.loads((CASES / f"{name}.json").read_text())["expect"]
    assert isinstance(expected, list)
    return expected


def decode(chunks: list[bytes]) -> list[ServerSentEvent]:
    decoder = SSEDecoder()
    events = [event for chunk in chunks for event in decoder.feed(chunk)]
    decoder.finish()
    return events


@pytest.mark.parametrize("name", TABLES)
def test_the_same_bytes_give_the_same_events_wherever_they_are_cut(name: str) -> None:
    table = chunks_of(name)
    whole = b"".join(table)
    reference = decode([whole])
    assert reference
    assert decode(table) == reference
    assert decode([whole[i : i + 1] for i in range(len(whole))]) == reference
    for offset in range(len(whole) + 1):
        assert decode([whole[:offset], whole[offset:]]) == reference, f"cut at {offset}"


def test_c01_line_separators_of_other_standards_do_not_end_a_line() -> None:
    first, second = decode(chunks_of("C01"))
    text = json.loads(first.data)["data"]["t"]
    assert text.encode() == bytes.fromhex("61e280a862e280a963c28564")
    assert text == "a\u2028b\u2029c\u0085d"
    assert [first.event, second.event] == [entry["type"] for entry in expected_of("C01")]


def test_c02_crlf_cut_after_each_cr_is_one_line_end() -> None:
    assert [event.event for event in decode(chunks_of("C02"))] == expected_of("C02")


def test_c02_lone_cr_ends_a_line_and_an_event_without_waiting_for_the_next_byte() -> None:
    assert [event.data for event in decode(chunks_of("C02.cr"))] == expected_of("C02.cr")
    assert [event.data for event in SSEDecoder().feed(b"data: end\r\r")] == ["end"]


def test_c03_one_bom_at_the_very_start_is_removed_and_no_other() -> None:
    events = decode(chunks_of("C03"))
    assert [event.event for event in events] == expected_of("C03")
    assert events[0].id == "cur_1"
    assert [event.data for event in decode([b"\xef\xbb", b"x: 1\n", b"data: a\n\n"])] == ["a"]
    assert [event.data for event in decode([b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\ndata: b\n\n"])] == ["b"]


def test_c04_one_byte_chunks_keep_characters_whole() -> None:
    first, second = decode(chunks_of("C04"))
    assert json.loads(first.data)["data"]["t"] == "你好 🌍 “é”"
    assert "\ufffd" not in first.data + second.data


def test_c04_invalid_bytes_become_replacement_characters_and_the_next_event_is_there() -> None:
    first, second = decode(chunks_of("C04.bad"))
    assert json.loads(first.data)["t"] == "\ufffd\ufffd"
    assert second.event == "run.status_changed"


def test_c09_every_field_rule() -> None:
    events = decode(chunks_of("C09"))
    expected = expected_of("C09")
    assert len(events) == len(expected)
    for event, wanted in zip(events, expected, strict=True):
        seen = {key: getattr(event, key) for key in wanted}
        assert seen == wanted
    assert events[0].retry is None


FIELD_RULES = [
    pytest.param(b"id: 1\nid: a\0b\ndata: x\n\n", ("1", "message", "x", None), id="an id with NUL is ignored"),
    pytest.param(b"id: 1\nid\ndata: x\n\n", ("", "message", "x", None), id="an empty id clears"),
    pytest.param(b"id:1\ndata:x\n\n", ("1", "message", "x", None), id="the space after the colon is optional"),
    pytest.param(b"data:  x \n\n", ("", "message", " x ", None), id="only one leading space goes"),
    pytest.param(b"data\n\n", ("", "message", "", None), id="a data line without a colon is an empty line"),
    pytest.param(b"event: a\nevent: b\ndata: x\n\n", ("", "b", "x", None), id="the last event name counts"),
    pytest.param(b"event: a\n\ndata: x\n\n", ("", "message", "x", None), id="an event name ends with its block"),
    pytest.param(b"retry: +5\nretry: 1.5\nretry: \ndata: x\n\n", ("", "message", "x", None), id="retry is digits only"),
    pytest.param("retry: ٣\ndata: x\n\n".encode(), ("", "message", "x", None), id="retry is ASCII digits only"),
    pytest.param(b"retry: " + b"9" * 5000 + b"\ndata: x\n\n", ("", "message", "x", None), id="an absurd retry"),
    pytest.param(b"Data: no\nDATA: no\ndata: x\n\n", ("", "message", "x", None), id="names are case-sensitive"),
    pytest.param(b":hb\n\n:hb\n\ndata: x\n\n", ("", "message", "x", None), id="comments and blank blocks are nothing"),
    pytest.param(b"data: a: b\n\n", ("", "message", "a: b", None), id="only the first colon divides"),
]


@pytest.mark.parametrize(("stream", "wanted"), FIELD_RULES)
def test_field_rule(stream: bytes, wanted: tuple[str, str, str, int | None]) -> None:
    assert decode([stream]) == [ServerSentEvent(*wanted)]


def test_an_id_without_data_makes_no_event_but_counts_as_the_place_to_resume() -> None:
    decoder = SSEDecoder()
    assert decoder.feed(b"id: 7\n\n") == []
    assert decoder.last_event_id == "7"


def test_a_half_event_dies_with_its_connection_and_a_fresh_decoder_knows_nothing_of_it() -> None:
    decoder = SSEDecoder()
    assert decoder.feed(b"id: 1\nevent: half\ndata: lost") == []
    decoder.finish()
    assert decoder.last_event_id == ""
    assert SSEDecoder().feed(b"data: new\n\n") == [ServerSentEvent("", "message", "new", None)]


def test_c11_an_8_mb_line_in_1_kb_chunks_is_accepted_and_each_chunk_is_searched_once() -> None:
    text = "x" * 8_000_000
    stream = b'id: 1\nevent: output.created\ndata: {"t":"' + text.encode() + b'"}\n\nevent: end\ndata: {}\n\n'
    decoder = SSEDecoder()
    events = [event for i in range(0, len(stream), 1024) for event in decoder.feed(stream[i : i + 1024])]
    assert [event.event for event in events] == ["output.created", "end"]
    assert json.loads(events[0].data)["t"] == text


def peak_until_refused(head: bytes, chunk: bytes, most_chunks: int) -> tuple[int, int]:
    """Feed until refused: (chunks taken, peak of traced memory in bytes)."""
    decoder = SSEDecoder()
    tracemalloc.start()
    try:
        decoder.feed(head)
        for count in range(most_chunks):
            try:
                decoder.feed(chunk)
            except UnreadableAnswer:
                return count, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    raise AssertionError("never refused")


def test_c11_an_endless_line_is_refused_at_the_stated_limit_with_flat_memory() -> None:
    count, peak = peak_until_refused(b"data: ", b"x" * 1_000_000, 500)
    assert count * 1_000_000 <= MAX_EVENT_BYTES
    assert peak < 3 * MAX_EVENT_BYTES


def test_c11_endless_data_lines_are_refused_at_the_stated_limit_with_flat_memory() -> None:
    count, peak = peak_until_refused(b"", b"data: x\n" * 1000, 1000)
    assert count * 1000 <= MAX_EVENT_LINES
    assert peak < MAX_EVENT_BYTES


def test_c11_an_endless_comment_is_refused_too() -> None:
    count, _peak = peak_until_refused(b":", b"x" * 1_000_000, 500)
    assert count * 1_000_000 <= MAX_EVENT_BYTES


def test_the_limits_are_settings_and_named_in_the_refusal() -> None:
    with pytest.raises(UnreadableAnswer, match="10 bytes"):
        SSEDecoder(max_event_bytes=10).feed(b"data: 0123456789\n")
    with pytest.raises(UnreadableAnswer, match="2 lines"):
        SSEDecoder(max_event_lines=2).feed(b"data\ndata\ndata\n")


lines = st.lists(
    st.tuples(
        st.sampled_from([b"data: ", b"data:", b"id: ", b"event: ", b"retry: ", b":", b"", b"x: ", b"\xef\xbb\xbf"]),
        st.binary(max_size=6),
        st.sampled_from([b"\n", b"\r", b"\r\n", b"\n\n", b"\r\r", b"\r\n\r\n"]),
    ),
    max_size=12,
).map(lambda parts: b"".join(b"".join(part) for part in parts))


@settings(max_examples=200)
@given(stream=lines, cuts=st.lists(st.integers(0, 200), max_size=6))
def test_any_bytes_cut_anywhere_decode_alike(stream: bytes, cuts: list[int]) -> None:
    places = sorted({0, *(min(cut, len(stream)) for cut in cuts), len(stream)})
    pieces = [stream[a:b] for a, b in pairwise(places)]
    assert decode(pieces) == decode([stream])
