"""Which variables does an `--env-file` add to the environment?

A line for each: `NAME=VALUE`, `export NAME="VALUE"`, a comment, or nothing. A value without quotes ends at its line, or
at a `#` after a blank; one in quotes at its quote, maybe lines later. In double quotes a backslash before n, r, t, `"`,
`$` and itself means what it does elsewhere. Nothing is filled in: `$HOME` stays as it is written. No message shows a
value, or a line that may be one.
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from pathlib import Path

from evalfleet.errors import ConfigError, UsageError

MAX_BYTES = 1_000_000
_HEAD = re.compile(r"[ \t]*(?:export[ \t]+)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)[ \t]*=[ \t]*")
_COMMENT = re.compile(r"(?:^|[ \t])#.*")
_BLANK = re.compile(r"[ \t]*(?:#.*)?")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "$": "$"}


def add_env_file(file: Path, environment: MutableMapping[str, str]) -> None:
    """Set what the file holds and the environment does not: what is set already wins, even if it is empty.

    UsageError for a file that cannot be read, ConfigError with `file:line:column` for what it holds.
    """
    try:
        data = file.read_bytes()
    except OSError as error:
        raise UsageError(f"--env-file {file}: {error.strerror or error}") from error
    for name, value in parse_env(data, str(file)).items():
        if name not in environment:
            environment[name] = value


def parse_env(data: bytes, file: str) -> dict[str, str]:
    """Name → value, in the order of the file."""
    if len(data) > MAX_BYTES:
        raise ConfigError(file, f"{len(data)} bytes: more than {MAX_BYTES}; this is no file of variables")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        where = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{file}:{where}", "it is not UTF-8: save the file as UTF-8") from error
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    found: dict[str, str] = {}
    written: dict[str, int] = {}
    number = 0
    while number < len(lines):
        line = lines[number]
        if _BLANK.fullmatch(line):
            number += 1
            continue
        head = _HEAD.match(line)
        if head is None:
            column = len(line) - len(line.lstrip(" \t")) + 1
            raise ConfigError(
                f"{file}:{number + 1}:{column}",
                "write NAME=VALUE, with a name of letters, digits and _ (the line is not shown: it may hold a secret)",
            )
        name = head["name"]
        if name in written:
            raise ConfigError(
                f"{file}:{number + 1}:{head.start('name') + 1}", f"{name} is set in line {written[name]} already"
            )
        written[name] = number + 1
        found[name], number = _value(lines, number, head.end(), file, name)
        if "\0" in found[name]:
            raise ConfigError(f"{file}:{written[name]}:{head.end() + 1}", f"{name} holds a NUL, which no variable can")
    return found


def _value(lines: list[str], number: int, at: int, file: str, name: str) -> tuple[str, int]:
    """The value that begins there, and the line after it."""
    rest = lines[number][at:]
    quote = rest[:1]
    if quote not in {"'", '"'}:
        return _COMMENT.sub("", rest).strip(" \t"), number + 1
    whole = "\n".join(lines[number:])
    value: list[str] = []
    place = at + 1
    while place < len(whole) and whole[place] != quote:
        if quote == '"' and whole[place] == "\\" and whole[place + 1 : place + 2] in _ESCAPES:
            value.append(_ESCAPES[whole[place + 1]])
            place += 2
        else:
            value.append(whole[place])
            place += 1
    if place == len(whole):
        raise ConfigError(f"{file}:{number + 1}:{at + 1}", f"the quote of {name} is never closed")
    last = number + whole.count("\n", 0, place)
    after = whole[place + 1 :].split("\n", 1)[0]
    if not _BLANK.fullmatch(after):
        column = place + 1 - (whole.rfind("\n", 0, place) + 1) + 1
        raise ConfigError(f"{file}:{last + 1}:{column}", f"there is text after the closing quote of {name}")
    return "".join(value), last + 1
