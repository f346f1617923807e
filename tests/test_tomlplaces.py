"""The scanner knows where each key of a TOML file stands, in every way that a key can be written."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalfleet.errors import ConfigError
from evalfleet.tomlplaces import read_toml

NAMES = st.sampled_from(["a", "b-c", "d_1", "e f"])
VALUES = st.recursive(
    st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=12,
)


PLACES = r'''# every way to write a key
top."quoted.part" . 'lit eral' = 1
"\u0041" = "x\"y" # a comment = [not] read
[ a . "b c" ] # here
key = """ "" [x] = \""" end"""
other = \'\'\' a \'\'\'\'
inline = { one = 1, two = { three = [ { four = 4 }, 5 ] } }
array = [ # comment ]
  "a", [ 1, 2 ],
  1979-05-27 07:32:00, # trailing comma
]
[[many]]
first = inf
[[many]]
second = +1_000
[many.below]
third = 'C:\path'
'''.replace("\\'", "'")


def test_the_scanner_knows_where_every_key_stands() -> None:
    document = read_toml(PLACES.encode(), "f")
    wanted: dict[tuple[str | int, ...], tuple[int, int]] = {
        ("top", "quoted.part", "lit eral"): (2, 21),
        ("A",): (3, 1),
        ("a", "b c"): (4, 7),
        ("a", "b c", "key"): (5, 1),
        ("a", "b c", "other"): (6, 1),
        ("a", "b c", "inline", "two", "three", 0, "four"): (7, 41),
        ("a", "b c", "inline", "two", "three", 1): (7, 53),
        ("a", "b c", "array", 1, 1): (9, 13),
        ("a", "b c", "array", 2): (10, 3),
        ("many", 0, "first"): (13, 1),
        ("many", 1, "second"): (15, 1),
        ("many", 1, "below", "third"): (17, 1),
    }
    assert {path: document.spots.get(path) for path in wanted} == wanted
    assert _paths(document.values) <= set(document.spots)


@pytest.mark.parametrize("text", ["\r\r\n", "a = 1\r\r\n", "\n\r\r\n#", "\ufeff\r\r\n", "a = 1\rb = 2"])
def test_a_carriage_return_that_ends_no_line_is_refused(text: str) -> None:
    """Line ends that were made Windows' twice ended in an AssertionError (issue 9, 24: the kind)."""
    with pytest.raises(ConfigError, match=r"^f:[12]:\d+: not TOML"):
        read_toml(text.encode(), "f")


@pytest.mark.parametrize("mark", ["\x85", "\u2028", "\u2029", "\xa0"])
def test_lines_are_an_editors_and_shown_on_one_line(mark: str) -> None:
    """Issue 9, 3: U+2028 and its kin are text in strings and comments, move no line and no cursor."""
    text = f"# a{mark}b\nfirst = '日{mark}'\nsecond = '''{mark}\n{mark}'''\nthird = 3 # {mark}\n".replace("\n", "\r\n")
    document = read_toml(text.encode(), "f")
    assert [document.spots[(name,)] for name in ("first", "second", "third")] == [(2, 1), (3, 1), (5, 1)]
    assert document.values["second"] == f"{mark}\n{mark}"
    with pytest.raises(ConfigError) as caught:
        read_toml(f"{text}x = '日本{mark}' y\r\n".encode(), "f")
    shown = mark if mark == "\xa0" else "\ufffd"
    assert str(caught.value).split("\n")[1:] == [f"  | x = '日本{shown}' y", f"  | {' ' * 12}^"]


def _paths(value: Any, path: tuple[str | int, ...] = ()) -> set[tuple[str | int, ...]]:
    items: list[tuple[str | int, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    found = {(*path, key) for key, _ in items}
    return found.union(*(_paths(item, (*path, key)) for key, item in items))


@given(VALUES, st.randoms())
def test_every_key_of_any_file_has_a_place_that_points_at_it(value: Any, random: Random) -> None:
    values = {"top": value, "end": 1}
    text = "".join(f"{_key(name, random)} = {_toml(item, random)}\n" for name, item in values.items())
    document = read_toml(text.encode(), "f")
    assert document.values == values
    for path in _paths(values):
        line, column = document.spots[path]
        rest = text.split("\n")[line - 1][column - 1 :]
        if isinstance(path[-1], str):
            assert rest.lstrip("\"'").startswith(path[-1])
        else:
            assert rest[0] in "[{-0123456789"


def _key(name: str, random: Random) -> str:
    quoted = [f'"{name}"', f"'{name}'"]
    return random.choice(quoted if " " in name else [name, *quoted])


def _toml(value: Any, random: Random) -> str:
    blank = random.choice(["", " ", "  "])
    if isinstance(value, dict):
        pairs = [f"{_key(name, random)}{blank}={blank}{_toml(item, random)}" for name, item in value.items()]
        return f"{{{blank}{', '.join(pairs)}{blank}}}"
    if isinstance(value, list):
        gap = random.choice(["", " ", "\n", " # ] } , = \n"])
        return f"[{gap}{f',{gap}'.join(_toml(item, random) for item in value)}{gap}]"
    return str(value)
