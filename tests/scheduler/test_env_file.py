"""`--env-file`: what its lines set, and that a wrong one is told with its place and never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from evalfleet.errors import ConfigError, UsageError
from scheduler.env_file import MAX_BYTES, add_env_file, parse_env

GOOD = [
    ("A=1", {"A": "1"}),
    ("A=1\nB=2\n", {"A": "1", "B": "2"}),
    ("\ufeffA=1\r\nB=2\r\n", {"A": "1", "B": "2"}),
    ("# a comment\n\n   \n  # another\nA=1", {"A": "1"}),
    ("export A=1\nexport\tB = 2", {"A": "1", "B": "2"}),
    ("A=", {"A": ""}),
    ("A= # nothing", {"A": ""}),
    ("A=one two  # a comment", {"A": "one two"}),
    ("A=b#c", {"A": "b#c"}),
    ("A='b # c'  # d", {"A": "b # c"}),
    ("A=b=c==", {"A": "b=c=="}),
    ("A=it's", {"A": "it's"}),
    ("A='$HOME \\n \"x\"'", {"A": '$HOME \\n "x"'}),
    ('A="$HOME ${B} `c` \\$D"', {"A": "$HOME ${B} `c` $D"}),
    ('A="a\\nb\\tc\\rd \\"e\\" \\\\ \\q"', {"A": 'a\nb\tc\rd "e" \\ \\q'}),
    ('A="one\ntwo"\nB=3', {"A": "one\ntwo", "B": "3"}),
    ("A='one\n# two\n'\nB=3", {"A": "one\n# two\n", "B": "3"}),
    ('A=""', {"A": ""}),
    ("A=größe", {"A": "größe"}),
    ("export=1", {"export": "1"}),
    ("", {}),
]


@pytest.mark.parametrize(("text", "wanted"), GOOD, ids=[ascii(text) for text, _ in GOOD])
def test_a_line_sets_a_variable(text: str, wanted: dict[str, str]) -> None:
    assert parse_env(text.encode(), ".env") == wanted


BAD = [
    ("A=1\nsk-secret", ".env:2:1", "write NAME=VALUE"),
    ("   1A=secret", ".env:1:4", "write NAME=VALUE"),
    ("A-B=secret", ".env:1:1", "write NAME=VALUE"),
    ("export A", ".env:1:1", "write NAME=VALUE"),
    ("=secret", ".env:1:1", "write NAME=VALUE"),
    ("A=1\nB=2\n  A=secret", ".env:3:3", "A is set in line 1 already"),
    ("A='secret", ".env:1:3", "the quote of A is never closed"),
    ('A=1\n B="secret\nC=2\n', ".env:2:4", "the quote of B is never closed"),
    ('A="one\ntwo" secret', ".env:2:5", "there is text after the closing quote of A"),
    ("A='b'secret", ".env:1:6", "there is text after the closing quote of A"),
    ("A=1\nB=sec\0ret", ".env:2:3", "B holds a NUL"),
]


@pytest.mark.parametrize(("text", "place", "said"), BAD, ids=[ascii(text) for text, _, _ in BAD])
def test_what_is_no_variable_has_its_place_and_is_not_shown(text: str, place: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_env(text.encode(), ".env")
    assert refused.value.message.startswith(f"{place}: {said}")
    assert "secret" not in refused.value.message.replace("it may hold a secret", "")


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^\.env:2: it is not UTF-8"):
        parse_env(b"A=1\nB=\xff\n", ".env")
    with pytest.raises(ConfigError, match="this is no file of variables"):
        parse_env(b"#" * (MAX_BYTES + 1), ".env")


def test_what_is_set_already_wins_even_if_it_is_empty(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text("A=file\nB=file\nC=file\n")
    environment = {"A": "outside", "B": ""}
    add_env_file(file, environment)
    assert environment == {"A": "outside", "B": "", "C": "file"}


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--env-file .*nope: No such file"):
        add_env_file(tmp_path / "nope", {})
