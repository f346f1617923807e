"""A short run of the fuzzer over case files, and proof that it would find something."""

from __future__ import annotations

from typing import Any

import pytest

from evalfleet.checks import LoadedCases, parse_case
from tests.fuzz import cases
from tests.fuzz.cases import fuzz
from tests.fuzz.writing import Writer


def test_no_file_raises_takes_long_or_changes_its_meaning() -> None:
    """The long run: `python -m tests.fuzz.cases --seconds 600`."""
    found = fuzz(20261130, files=400)
    assert found.findings == []
    assert found.files == 400
    assert found.counts["accepted"] >= 20
    assert found.counts["refused"] >= 100


def test_a_seed_always_gives_the_same_file() -> None:
    one, two = Writer(), Writer()
    assert [one.file(seed) for seed in range(30)] == [two.file(seed) for seed in range(30)]


def _raises(data: bytes, **more: Any) -> LoadedCases:
    raise KeyError("here")


def _takes_memory(data: bytes, **more: Any) -> LoadedCases:
    bytearray(300 * 2**20)
    return parse_case(data, **more)


def _lies(data: bytes, **more: Any) -> LoadedCases:
    """Takes plain text for other text than the same in quotes, as if `no` were False."""
    return parse_case(data.replace(b"id: s", b"id: S"), **more)


@pytest.mark.parametrize(
    ("reader", "said"),
    [(_raises, "KeyError: 'here'"), (_takes_memory, "MemoryError"), (_lies, "another case after dump → load")],
)
def test_a_reader_with_a_fault_is_found_out(reader: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "parse_case", reader)
    found = fuzz(1, files=40)
    assert found.findings
    assert any(said in what for _, what in found.findings)
