"""Lines that fit a terminal: broken where a reader would break them, and nothing is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from scheduler.layout import wrap


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("one two three", 8, ["one two", "three"]),
        ("one  two", 5, ["one", "two"]),
        ("    indented text", 12, ["    indented", "text"]),
        ('x {"city":"Paris","days":7,"units":{"a":1}}', 20, ['x {"city":"Paris",', '"days":7,', '"units":{"a":1}}']),
        ("1,000 tokens, 2", 9, ["1,000", "tokens, 2"]),
        ("東京は日本の首都です。人口は", 12, ["東京は日本の", "首都です。人", "口は"]),
        ("abcdefghij", 4, ["abcd", "efgh", "ij"]),
        ("a 東京タワー", 5, ["a 東", "京タ", "ワー"]),
        ("", 5, [""]),
    ],
    ids=["blanks", "several blanks", "indented", "json", "a number", "japanese", "nowhere", "mixed", "nothing"],
)
def test_where_a_line_is_broken(text: str, width: int, lines: list[str]) -> None:
    assert wrap(text, width) == lines


def test_without_a_terminal_a_line_stays_whole() -> None:
    assert wrap("word " * 1000, None) == ["word " * 1000]


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cf", "Mn", "Me"])), st.integers(2, 30))
def test_every_line_fits_and_only_blanks_are_lost(text: str, width: int) -> None:
    lines = wrap(text, width)
    assert all(cell_len(line) <= width for line in lines)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
