"""How is one typed value read out of a TOML table, so that every problem of a file is told at once, with its place?

A `Fields` reads one table. It knows which keys the table may hold, so an unknown one is refused with the near name, and
it never raises: problems gather in the `Problems` that all tables of a file share.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from urllib.parse import urlsplit

from evalfleet.checks.near import near_name
from evalfleet.errors import ConfigError
from evalfleet.tomlplaces import Path, TomlDocument

ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
# The public prefixes of keys that a person pastes by mistake. A list, not a guess at entropy: a false alarm would
# refuse a good file.
_SECRET = re.compile(
    r"(sk-[A-Za-z0-9_-]{8}|sk_(live|test)_|gh[opsu]_[A-Za-z0-9]{16}|github_pat_|glpat-|xox[abprs]-|AKIA[0-9A-Z]{12}"
    r"|AIza[0-9A-Za-z_-]{20}|hf_[A-Za-z0-9]{16}|Bearer\s+\S{8}|-----BEGIN )"
)
_SECRET_KEYS = {
    "api_key": "api_key_env",
    "apikey": "api_key_env",
    "key": "api_key_env",
    "token": "api_key_env",
    "secret": "api_key_env",
    "password": "api_key_env",
    "headers": "headers_env",
}
_ABSENT = object()


def looks_like_secret(value: object) -> bool:
    """Whether a text starts as the well-known API keys do."""
    return isinstance(value, str) and _SECRET.match(value.strip()) is not None


def near(word: str, known: Iterable[str]) -> str:
    """` (did you mean X?)`, or nothing where no known word is near."""
    found = near_name(word, known)
    return f" (did you mean {found!r}?)" if found else ""


def kind_of(value: object) -> str:
    """The TOML word for a value's type."""
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, str):
        return "text"
    if isinstance(value, int | Decimal):
        return "a number"
    if isinstance(value, Mapping):
        return "a table"
    return "an array" if isinstance(value, list) else "a date or time"


def shown(value: object) -> str:
    """A value as an error message shows it: never something that looks like a secret, never long."""
    if looks_like_secret(value):
        return "a text that looks like a secret"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping | list):
        return kind_of(value)
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 80 else f"{text[:60]}…"


@dataclass(slots=True)
class Problems:
    """All that is wrong with one file, in the order of the file."""

    document: TomlDocument
    found: list[tuple[tuple[int, int], Path, str]] = field(default_factory=list)

    def add(self, path: Path, message: str) -> None:
        self.found.append((self.document.spot(path), path, message))

    def raise_if_any(self) -> None:
        """One ConfigError that carries every problem; `place` is the first one's."""
        if not self.found:
            return
        parts = []
        for _, path, message in sorted(self.found, key=lambda item: item[0]):
            source = "" if looks_secret_line(self.document, path) else self.document.source(path)
            parts.append((self.document.place(path), message + (f"\n{source}" if source else "")))
        place, first = parts[0]
        raise ConfigError(place, first, parts[1:])


def looks_secret_line(document: TomlDocument, path: Path) -> bool:
    """Whether the line of a key must not be shown: a secret may stand on it, or start there."""
    value: Any = document.values
    for part in path:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return False
    if isinstance(value, str) and (looks_like_secret(value) or (path and str(path[-1]).lower() in _SECRET_KEYS)):
        return True
    line, _ = document.spot(path)
    return _SECRET.search(document.lines[line - 1]) is not None if line <= len(document.lines) else False


class Fields:
    """One table of the file. `known` are the keys that it may hold; anything else is a problem."""

    def __init__(
        self, problems: Problems, path: tuple[str | int, ...], values: Mapping[str, Any], known: Iterable[str]
    ) -> None:
        self.problems = problems
        self.path = path
        self.values = values
        known = list(known)
        for key in values:
            if key not in known:
                self.problem(key, self._unknown(key, known))

    @property
    def name(self) -> str:
        words = ".".join(part for part in self.path if isinstance(part, str))
        if self.path and isinstance(self.path[-1], int):
            return f"[[{words}]]"
        return f"[{words}]" if self.path else "evalfleet.toml"

    def _unknown(self, key: str, known: list[str]) -> str:
        instead = _SECRET_KEYS.get(key.lower())
        if instead in known:
            return (
                f"{key!r} does not belong here: secrets are never in the file; write {instead} with the name of an "
                "environment variable"
            )
        what = "table" if isinstance(self.values[key], Mapping) and not self.path else "key"
        keys = ", ".join(known)
        return f"unknown {what} {key!r} in {self.name}{near(key, known)}; known: {keys}"

    def problem(self, key: str | int | tuple[str | int, ...], message: str) -> None:
        tail = key if isinstance(key, tuple) else (key,)
        self.problems.add((*self.path, *tail), message)

    def _wrong(self, key: str, wanted: str, value: object) -> None:
        kind, seen = kind_of(value), shown(value)
        self.problem(key, f"{key} must be {wanted}, not {kind if seen == kind else f'{kind} {seen}'}")

    def has(self, key: str) -> bool:
        return key in self.values

    def required(self, *keys: str) -> None:
        """A problem on the table itself for each key that is not there."""
        for key in keys:
            if key not in self.values:
                self.problem((), f"{self.name} needs {key}")

    def text(self, key: str) -> str | None:
        """A text with something in it, on one line."""
        value = self.values.get(key, _ABSENT)
        if value is _ABSENT:
            return None
        if not isinstance(value, str):
            self._wrong(key, "text in quotes", value)
            return None
        if not value.strip() or "\n" in value or "\0" in value:
            self.problem(key, f"{key} must be one line of text, not {shown(value)}")
            return None
        return value

    def choice(self, key: str, choices: tuple[str, ...], default: str) -> str:
        value = self.text(key)
        if value is None:
            return default
        if value not in choices:
            wanted = " or ".join(repr(choice) for choice in choices)
            self.problem(key, f"{key} must be {wanted}, not {shown(value)}{near(value, choices)}")
            return default
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            self._wrong(key, "true or false", value)
            return default
        return value

    def whole(self, key: str, low: int, high: int) -> int | None:
        """A whole number between `low` and `high`; `true` is none."""
        value = self.values.get(key, _ABSENT)
        if value is _ABSENT:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            self.problem(key, f"{key} must be a whole number from {low} to {high}, not {shown(value)}")
            return None
        return value

    def money(self, key: str) -> Decimal | None:
        """An amount: a number or a text that is one, finite and not negative. Never a float."""
        value = self.values.get(key, _ABSENT)
        if value is _ABSENT:
            return None
        text = value if isinstance(value, str) else str(value)
        if (
            isinstance(value, bool)
            or not isinstance(value, str | int | Decimal)
            or re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,12})?", text) is None
        ):
            self.problem(key, f"{key} must be an amount such as 0.15, not {shown(value)}")
            return None
        return Decimal(text)

    def texts(self, key: str) -> tuple[str, ...] | None:
        """An array of texts, each with something in it."""
        value = self.values.get(key, _ABSENT)
        if value is _ABSENT:
            return None
        if not isinstance(value, list):
            self._wrong(key, 'an array of texts such as ["a", "b"]', value)
            return None
        good = []
        for index, item in enumerate(value):
            if not isinstance(item, str) or not item or "\0" in item:
                self.problem((key, index), f"{key} holds texts only, not {shown(item)}")
            else:
                good.append(item)
        return tuple(good)

    def env_names(self, key: str) -> tuple[str, ...]:
        """Names of environment variables, never their values."""
        good = []
        for index, name in enumerate(self.texts(key) or ()):
            if ENV_NAME.match(name):
                good.append(name)
            else:
                self.problem((key, index), f"{shown(name)} is no name of an environment variable")
        return tuple(good)

    def env_name(self, key: str) -> str | None:
        value = self.text(key)
        if value is None:
            return None
        if not ENV_NAME.match(value) or looks_like_secret(value):
            self.problem(key, f"{key} must be the name of an environment variable, not the key itself")
            return None
        return value

    def mapping(self, key: str) -> dict[str, str]:
        """A table of texts."""
        value = self.values.get(key, {})
        if not isinstance(value, Mapping):
            self._wrong(key, "a table of texts", value)
            return {}
        good = {}
        for name, item in value.items():
            if not isinstance(item, str) or "\0" in item:
                self.problem((key, name), f"{name} must be text in quotes, not {kind_of(item)} {shown(item)}")
            else:
                good[name] = item
        return good

    def url(self, key: str) -> str | None:
        """An http or https address without credentials, query or fragment; no slash at its end."""
        value = self.text(key)
        if value is None:
            return None
        reason = url_fault(value)
        if reason:
            self.problem(key, f"{key} {reason}")
            return None
        return value.rstrip("/")

    def day(self, key: str) -> date | None:
        """A calendar day: a TOML date, or a text that is spelt like one."""
        value = self.values.get(key, _ABSENT)
        if value is _ABSENT:
            return None
        if isinstance(value, date) and not isinstance(value, datetime):
            return value
        if isinstance(value, str) and re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", value):
            try:
                return date.fromisoformat(value)
            except ValueError as reason:
                self.problem(key, f"{key} must be a day such as 2026-12-31, not {shown(value)}: {reason}")
                return None
        self._wrong(key, "a day such as 2026-12-31", value)
        return None

    def tables(self, key: str, known: Iterable[str]) -> list[Fields]:
        """The fields of each table of an array (`[[key]]`)."""
        value = self.values.get(key, _ABSENT)
        if value is _ABSENT:
            return []
        if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
            self._wrong(key, f"tables, each headed [[{key}]]", value)
            return []
        names = list(known)
        return [Fields(self.problems, (*self.path, key, index), item, names) for index, item in enumerate(value)]

    def table(self, key: str, known: Iterable[str]) -> Fields | None:
        """The fields of a table below this one; None where it is not there or no table."""
        value = self.values.get(key, _ABSENT)
        if value is _ABSENT:
            return None
        if not isinstance(value, Mapping):
            self._wrong(key, "a table", value)
            return None
        return Fields(self.problems, (*self.path, key), value, known)


def url_fault(value: str) -> str:
    """Why a text is no address to send requests to; "" when it is one. Never repeats credentials."""
    try:
        parts = urlsplit(value)
        host, port = parts.hostname, parts.port
    except ValueError:
        return "is no valid address"
    if parts.username is not None or parts.password is not None:
        return "must not hold credentials: name an environment variable instead"
    if parts.scheme not in ("http", "https") or not host or port == 0 or re.search(r"\s", value):
        return f"must be an http:// or https:// address, not {shown(value)}"
    if parts.query or parts.fragment:
        return f"must end with its path, without ? or #: {shown(value)}"
    return ""
