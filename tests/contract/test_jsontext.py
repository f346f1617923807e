"""JSON in and out, whatever an agent said (B11, E07, E10)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evalfleet.contract.jsontext import dumps, loads

CASES = Path(__file__).parent.parent / "cases"


def test_b11_half_an_emoji_is_read_and_written_as_it_came() -> None:
    document = loads((CASES / "B11.json").read_bytes())
    assert document["answer"] == "ok \ud83d"
    assert document["args"] == {"q": "\udc80"}
    written = dumps(document)
    written.decode("utf-8")
    assert b"\\ud83d" in written
    assert loads(written) == document


READ = [
    pytest.param(b'"\\u0000"', "\0", id="NUL"),
    pytest.param(b'"\\\\u0000"', "\\u0000", id="the six characters of an escape (E07)"),
    pytest.param('"é"', "é", id="text"),
    pytest.param(b"[NaN, Infinity, -Infinity]", [None, None, None], id="NaN is null"),
    pytest.param(b"[1e999, -1e999, 1.5]", [None, None, 1.5], id="what no float can hold is null"),
    pytest.param(b'"a\xffb"', "a\ufffdb", id="invalid UTF-8 becomes U+FFFD"),
]


@pytest.mark.parametrize(("text", "value"), READ)
def test_what_is_read(text: bytes | str, value: Any) -> None:
    assert loads(text) == value


REFUSED = [
    pytest.param(b"", id="nothing"),
    pytest.param(b"<html>", id="HTML"),
    pytest.param(b'{"a": 1', id="cut"),
    pytest.param(b"[" * 100_000, id="too deep"),
    pytest.param(b"[" + b"9" * 5000 + b", NaN]", id="a number past Python's limit of digits"),
]


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_no_json_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError):
        loads(text)


WRITTEN = [
    pytest.param({"a": [1, "é"]}, id="plain"),
    pytest.param({"big": 2**70, "text": "é"}, id="an integer over 64 bits"),
    pytest.param({"\ud83d": ["\udc80", {"deep": "\ud83d"}]}, id="surrogates in keys and values"),
]


@pytest.mark.parametrize("value", WRITTEN)
def test_what_is_written_reads_back(value: Any) -> None:
    assert json.loads(dumps(value).decode("utf-8")) == value


def test_nan_is_written_as_null_also_beside_a_surrogate() -> None:
    assert json.loads(dumps([float("nan")])) == [None]
    assert json.loads(dumps(["\ud83d", float("inf"), (1.5, {"x": float("-inf")})])) == [
        "\ud83d",
        None,
        [1.5, {"x": None}],
    ]


def test_what_json_cannot_hold_is_a_type_error() -> None:
    with pytest.raises(TypeError):
        dumps({"a": object()})
