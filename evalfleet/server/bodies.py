"""What may a request body be, and what is said of one that may not (E08)?

JSON in UTF-8, an object, within a size that depends on the route, nested at most 200 levels deep. Of a key that comes
twice in one object the last value counts (as in every JSON library the clients use). NaN and Infinity are no JSON.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final, NoReturn

from starlette.requests import Request

from evalfleet.contract.problems import ProblemField
from evalfleet.server.refusal import field, invalid, refuse

MIB: Final = 1024 * 1024
SMALL: Final = MIB
DEPTH_LIMIT: Final = 200

Json = dict[str, Any]


async def read_bytes(request: Request, limit: int) -> bytes:
    """The body, or 413 as soon as it is known to be longer than `limit` bytes."""
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and int(declared[:20]) > limit:
        raise _too_large(limit)
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise _too_large(limit)
        chunks.append(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


async def read_object(request: Request, *, limit: int = SMALL, deep: bool = True) -> Json:
    """The body as a JSON object. `deep=False` skips the measuring of its depth, where its shape is fixed anyway."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    # Without a content type a body is taken for what it must be: JSON.
    if media not in ("", "application/json") and not media.endswith("+json"):
        raise refuse("unsupported_media_type", f"The body is {media[:80]!r}: send application/json.")
    value = parse(await read_bytes(request, limit))
    if not isinstance(value, dict):
        raise refuse("invalid_body", f"The body is {_kind(value)}: send a JSON object.")
    if deep and _too_deep(value):
        raise refuse("invalid_json", f"The body is nested deeper than {DEPTH_LIMIT} levels.")
    return value


def parse(body: bytes) -> Any:
    """One JSON value in UTF-8 (a byte order mark is passed over), or 400 `invalid_json` with the place."""
    if not body.strip():
        raise refuse("invalid_json", "The body is empty: send a JSON object.")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as problem:
        raise refuse("invalid_json", f"The body is not UTF-8 at byte {problem.start}.") from None
    try:
        return json.loads(text.removeprefix("\ufeff"), parse_constant=_no_constant, parse_float=_finite)
    except json.JSONDecodeError as problem:
        raise refuse(
            "invalid_json", f"The body is not JSON: {problem.msg} at line {problem.lineno}, column {problem.colno}."
        ) from None
    except RecursionError:
        raise refuse("invalid_json", f"The body is nested deeper than {DEPTH_LIMIT} levels.") from None
    except ValueError:  # a number with more digits than Python converts (4300)
        raise refuse("invalid_json", "The body holds a number with too many digits.") from None


def _no_constant(name: str) -> NoReturn:
    raise refuse("invalid_json", f"The body holds {name}, which is no JSON value.")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise refuse("invalid_json", f"The body holds {shown(text)}, which is too large for a number.")
    return number


def _too_deep(value: Any) -> bool:
    layer = [value]
    for _ in range(DEPTH_LIMIT):
        layer = [
            item
            for container in layer
            for item in (container.values() if isinstance(container, dict) else container)
            if isinstance(item, dict | list)
        ]
        if not layer:
            return False
    return True


def _too_large(limit: int) -> Exception:
    return refuse("body_too_large", f"The body is larger than the {limit // MIB} MiB that this route takes.")


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


class Fields:
    """Reads the fields of one JSON object and keeps a list of everything that is wrong with them.

    `at` is the JSON Pointer of the object. An unknown field is refused at once (400 `unknown_field`); the rest comes
    together in `done()` (422 `validation_failed`).
    """

    def __init__(self, value: Json, known: frozenset[str], *, at: str = "", problems: list[ProblemField] | None = None):
        self._value = value
        self._at = at
        self.problems: list[ProblemField] = problems if problems is not None else []
        for name in value:
            if name not in known:
                pointer = f"{at}/{escape(name)}"
                raise refuse(
                    "unknown_field",
                    f"Unknown field {shown(name)} at {pointer[:200]}; known here: {', '.join(sorted(known))}.",
                    errors=[field(pointer[:300], "unknown field", "unknown_field")],
                )

    def problem(self, name: str, reason: str, code: str = "invalid") -> None:
        self.problems.append(field(f"{self._at}/{name}", reason, code))

    def raw(self, name: str) -> Any:
        return self._value.get(name)

    def has(self, name: str) -> bool:
        return self._value.get(name) is not None

    def text(self, name: str, *, required: bool = True, longest: int = 1000, blank: bool = False) -> str | None:
        """A string of 1–`longest` characters, or None after a problem was noted (or if it may be absent)."""
        value = self._value.get(name)
        if value is None:
            if required:
                self.problem(name, "required", "required")
        elif not isinstance(value, str):
            self.problem(name, f"is {_kind(value)}: write a string")
        elif len(value) > longest:
            self.problem(name, f"has {len(value)} characters: at most {longest}")
        elif not value.strip() and not blank:
            self.problem(name, "is blank", "required")
        else:
            return value
        return None

    def whole(self, name: str, lowest: int, highest: int, default: int | None = None) -> int | None:
        """A whole number in a range (`3.0` is one, `true` is not)."""
        value = self._value.get(name)
        if value is None:
            if default is None:
                self.problem(name, "required", "required")
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            self.problem(name, f"is {_kind(value)}: write a whole number")
        elif not lowest <= value <= highest:
            self.problem(name, f"is {str(value)[:40]}: write {lowest} to {highest}")
        else:
            return value
        return None

    def object(self, name: str, *, required: bool = True) -> Json | None:
        value = self._value.get(name)
        if value is None:
            if required:
                self.problem(name, "required", "required")
        elif not isinstance(value, dict):
            self.problem(name, f"is {_kind(value)}: write an object")
        else:
            return value
        return None

    def items(self, name: str, lowest: int, highest: int) -> list[Any]:
        """A list with `lowest`–`highest` entries; empty after a problem was noted."""
        value = self._value.get(name)
        if value is None:
            self.problem(name, "required", "required")
        elif not isinstance(value, list):
            self.problem(name, f"is {_kind(value)}: write a list")
        elif not lowest <= len(value) <= highest:
            self.problem(name, f"has {len(value)} entries: write {lowest} to {highest}")
        else:
            return value
        return []

    def done(self) -> None:
        if self.problems:
            raise invalid(self.problems)


def escape(name: str) -> str:
    """A key as one step of a JSON Pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def shown(text: str) -> str:
    """A client's text inside a sentence: quoted, cut, without control characters or surrogates."""
    return ascii(text if len(text) <= 80 else text[:79] + "…") if not text.isprintable() else repr(text[:80])
