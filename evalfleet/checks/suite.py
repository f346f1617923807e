"""Which cases does a file of rows hold? (`--suite FILE`)

Each row is a case of its own with one scenario: a fresh chat, in parallel with the others. Rows stand in a `.jsonl`
file, one JSON object in each line, or in a `.yaml` file; a list of assertions that all rows share stands above them, or
in a `.yaml` file that names the rows' file. docs/cases.md has the format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from evalfleet.checks.digest import digest
from evalfleet.checks.expectation import KINDS, Expectation
from evalfleet.checks.filling import column_text, filled, spots_of
from evalfleet.checks.jsonlines import lines_of, rows_of
from evalfleet.checks.near import did_you_mean, folded, near_name
from evalfleet.checks.nodes import MappingNode, Node, ScalarNode, SequenceNode, compose
from evalfleet.checks.place import CaseProblem, Place
from evalfleet.checks.reading import MAX_PROBLEMS, REFUSED, Entry, HopelessError, Reader, described
from evalfleet.checks.scenario import Case, LoadedCases, Scenario
from evalfleet.checks.schema import (
    DEFAULT_KEYS,
    DEFAULT_TIMEOUT,
    DEFAULT_TRIALS,
    FORBIDDEN,
    id_fault,
    known_entries,
    look_at_all,
    place_for_assertion,
    read_defaults,
    read_expect,
    read_user,
    refuse_forbidden,
)
from evalfleet.checks.source import RefusedError, Source, utf8_text
from evalfleet.checks.text import quoted

MAX_ROWS_BYTES = 50_000_000
"""The largest `.jsonl` file, in bytes. Rows in YAML have a case file's limits."""

# Each key with what it is, for docs/cases.md.
SUITE_KEYS: Mapping[str, str] = {
    "defaults": "`trials` and `timeout` of every row",
    "expect": "the assertions that every row is checked by; `${column}` stands for the row's own",
    "rows": "the list of rows, or the name of a `.jsonl` file beside this one",
}
ROW_KEYS: Mapping[str, str] = {
    "input": "what is said: one text, or a list of turns on the same chat",
    "user": "another word for `input`",
    "expected": 'the answer to compare with: for `${expected}`, and for graders as `case["expected"]`',
    "expect": "assertions of this row alone, beside those that all rows share",
    "key": "its name, like a scenario's `id`; without one it is made of what the row says",
    "name": "what the evaluation calls it for people",
    "metadata": 'a mapping for people, for `${metadata.…}` and for graders as `case["metadata"]`',
}
_SLIP = 0.8
"""From which likeness on a column's name is taken for a slip of the pen. Data has columns of its own."""
_EXAMPLE = '{"input": "What is the capital of France?", "expected": "Paris"}'


@dataclass(slots=True)
class _Template:
    """The `expect` that all rows share, and who reads it."""

    reader: Reader
    node: Node
    spots: dict[str, ScalarNode]
    """Each name that is asked for, with the first text that asks."""
    rows: int = 0
    lacking: dict[str, list[Node]] = field(default_factory=dict)
    """Names → rows that have none; `rows` is how many were asked."""


@dataclass(slots=True)
class _Rows:
    """What was read of the rows so far."""

    name: str
    file: str
    template: _Template | None
    trials: int = DEFAULT_TRIALS
    timeout: float = DEFAULT_TIMEOUT
    cases: list[Case] = field(default_factory=list)
    seen: dict[str, Place] = field(default_factory=dict)
    columns: set[str] = field(default_factory=set)
    unused: dict[str, tuple[Reader, Node]] = field(default_factory=dict)
    unchecked: list[Node] = field(default_factory=list)
    count: int = 0


def parse_suite(data: bytes, *, name: str, file: str, beside: Callable[[str], tuple[str, bytes]]) -> LoadedCases:
    """The rows of a suite file as cases called `name`, or all problems.

    `file` is what messages show; its ending says the format. `beside` reads the file that `rows` names: what messages
    call it, and its bytes; OSError where it cannot.
    """
    readers: list[Reader] = []
    misleading: list[CaseProblem] = []
    found = _Rows(name, file, None)
    try:
        if file.endswith(".jsonl"):
            source = _lines(file, data)
            readers.append(reader := Reader(source))
            _read_lines(reader, found, header=True)
        else:
            source = Source.decode(file, data)
            root, misleading = compose(source)
            readers.append(reader := Reader(source, root))
            rows = _header(reader, root, found)
            if isinstance(rows, ScalarNode):
                readers.append(_other_file(reader, rows, found, beside))
            else:
                for number, row in enumerate(rows, 1):
                    _row(reader.fresh(), row, number, found)
        _after_all(readers[-1], found)
    except RefusedError as refused:
        readers.append(Reader(Source(file), problems=[refused.problem]))
    except HopelessError:
        pass
    readers[0].name_misleading(misleading)
    problems = _first(problem for reader in readers for problem in sorted(reader.problems, key=_by_place))
    warnings = _first(warning for reader in readers for warning in sorted(reader.warnings, key=_by_place))
    return LoadedCases(() if problems else tuple(found.cases), problems, warnings)


def _first(problems: Iterable[CaseProblem]) -> tuple[CaseProblem, ...]:
    found = list(problems)
    if len(found) > MAX_PROBLEMS:
        rest = len(found) - MAX_PROBLEMS
        found[MAX_PROBLEMS:] = [CaseProblem(found[MAX_PROBLEMS - 1].place, f"and at least {rest} more like these")]
    return tuple(found)


def _by_place(problem: CaseProblem) -> tuple[str, int, int]:
    return problem.place.file, problem.place.line, problem.place.column


def _lines(file: str, data: bytes) -> Source:
    if len(data) > MAX_ROWS_BYTES:
        raise RefusedError(
            CaseProblem(
                Place(file, 1, 1),
                f"this file has {len(data):,} bytes; a file of rows has {MAX_ROWS_BYTES:,} at most",
                hint="split it into several suites",
            )
        )
    return lines_of(file, utf8_text(file, data))


def _header(reader: Reader, root: Node | None, found: _Rows) -> list[Node] | ScalarNode:
    """What stands above the rows of a YAML file; the rows themselves, or the text that names their file."""
    if isinstance(root, SequenceNode):
        return reader.items(root, "the rows") or []
    if not isinstance(root, MappingNode):
        spot = root or ScalarNode("", True, None, 1, 1, 0)
        reader.refuse(spot, "there is no row in this file", f"write `rows: [{_EXAMPLE}]`, and `expect:` above it")
        return []
    known = known_entries(reader, reader.entries(root, "the suite"), "the suite", SUITE_KEYS, _place_for_suite_key)
    _shared(reader, known, found)
    rows = known.get("rows")
    if rows is None:
        reader.refuse(root, "there are no `rows` in this suite", "write `rows: FILE.jsonl`, or a list of rows")
        return []
    if isinstance(rows.value, ScalarNode):
        return rows.value
    return reader.items(rows.value, "rows") or []


def _place_for_suite_key(key: str) -> str:
    if key in DEFAULT_KEYS:
        return f"put it under `defaults`: `defaults: {{{key}: …}}`"
    if key in ROW_KEYS:
        return f"`{key}` is a key of a row: put it below `rows`"
    if key == "scenarios":
        return "a suite holds `rows`; scenarios belong into evals/cases"
    return place_for_assertion(key)


def _shared(reader: Reader, known: Mapping[str, Entry], found: _Rows) -> None:
    """`defaults`, and the `expect` that all rows share."""
    found.trials, found.timeout = read_defaults(reader, known.get("defaults"))
    if "expect" not in known:
        return
    node = known["expect"].value
    if not isinstance(node, SequenceNode) or not node.items:
        read_expect(reader, node, "the suite")  # says what is wrong
        return
    spots: dict[str, ScalarNode] = {}
    for spot in spots_of(node):
        spots.setdefault(spot.name, spot.node)
    found.template = _Template(reader, node, spots)


def _other_file(reader: Reader, named: ScalarNode, found: _Rows, beside: Callable[[str], tuple[str, bytes]]) -> Reader:
    """Read the rows of the file that a suite names; the reader that holds what is wrong with them."""
    name = reader.text(named, "rows")
    if name is None:
        return reader
    if not name.endswith(".jsonl"):
        reader.refuse(named, f"`rows` is {quoted(name, 60)}: a file of rows ends in .jsonl", "or write the rows here")
        return reader
    try:
        file, data = beside(name)
    except OSError as error:
        reader.refuse(named, f"`rows` is {quoted(name, 60)}, which cannot be read: {error.strerror or error}")
        return reader
    rows = Reader(_lines(file, data))
    _read_lines(rows, found, header=False)
    return rows


def _read_lines(reader: Reader, found: _Rows, *, header: bool) -> None:
    """The rows of a `.jsonl` source. `header`: its first line may be what all rows share, and no row."""
    for index, (_, node) in enumerate(rows_of(reader.source)):
        if isinstance(node, RefusedError):
            reader.problems.append(node.problem)
            if len(reader.problems) > MAX_PROBLEMS:
                raise HopelessError
            continue
        line = replace(reader, root=node).fresh()
        if header and index == 0 and isinstance(node, MappingNode):
            entries = line.entries(node, "the first line")
            if entries and all(key in ("defaults", "expect") for key in entries):
                _shared(line, entries, found)
                continue
        _row(line, node, found.count + 1, found)


def _row(reader: Reader, node: Node, number: int, found: _Rows) -> None:
    """One row becomes one case."""
    found.count += 1
    if not isinstance(node, MappingNode):
        reader.refuse(node, f"row {number} is a mapping, and here is {described(node)}", f"write it like {_EXAMPLE}")
        return
    entries = reader.entries(node, "the row")
    _look_at_keys(reader, entries, found)
    user = _said(reader, node, number, entries)
    given = _given(reader, entries)
    own_node = entries["expect"].value if "expect" in entries else None
    own = () if own_node is None else read_expect(reader, own_node, f"row {number}")
    common, items = _common(reader, node, entries, found)
    if own_node is None and found.template is None:
        found.unchecked.append(node)
    identity = _key(reader, node, entries, user, own, found) if user else None
    if identity is None or given is None or not (common or own) or common is None or (own_node and not own):
        return
    if isinstance(own_node, SequenceNode):
        look_at_all(reader, node, f"row {quoted(identity, 60)}", (*common, *own), [*items, *own_node.items])
    elif found.template is not None:
        look_at_all(found.template.reader.fresh(), found.template.node, "every row", common, items)
    scenario = Scenario(identity, user, (*common, *own), found.trials, found.timeout, reader.place(node), given)
    found.cases.append(Case(found.name, found.file, (scenario,)))


def _look_at_keys(reader: Reader, entries: Mapping[str, Entry], found: _Rows) -> None:
    """A key that is none of a row's own is a column. One that nobody reads may be a slip of the pen (A02)."""
    asked = {} if found.template is None else found.template.spots
    for key, entry in entries.items():
        found.columns.add(key)
        if key in ROW_KEYS or key in asked:
            continue
        if key in FORBIDDEN:
            refuse_forbidden(reader, entry, "a row", ROW_KEYS)
        elif key in DEFAULT_KEYS:
            reader.refuse(entry.key_node, f"`{key}` does not belong to a row", "put it under the suite's `defaults`")
        elif key in KINDS:
            reader.refuse(entry.key_node, f"`{key}` does not belong to a row", place_for_assertion(key))
        elif key == "id":
            reader.refuse(entry.key_node, "`id` is no key of a row", "a row's own name is its `key`: rename it")
        elif near_name(key, ROW_KEYS, likeness=_SLIP):
            reader.unknown(entry, "the row", ROW_KEYS)
        elif key not in found.unused:
            found.unused[key] = (reader, entry.key_node)


def _said(reader: Reader, node: Node, number: int, entries: Mapping[str, Entry]) -> tuple[str, ...]:
    """What is said to the agent. Nothing, where a problem was written."""
    if "input" in entries and "user" in entries:
        reader.refuse(entries["user"].key_node, "`input` and `user` are one thing, and here are both", "keep one")
        return ()
    for key in ("input", "user"):
        if key in entries:
            return read_user(reader, entries[key].value, key)
    if any(near_name(key, ("input", "user"), likeness=_SLIP) for key in entries):
        return ()
    reader.refuse(node, f"row {number} has no `input`: there is nothing to say to the agent", f"like {_EXAMPLE}")
    return ()


def _given(reader: Reader, entries: Mapping[str, Entry]) -> dict[str, Any] | None:
    """What a row says beside its turns and assertions, as JSON. None, where a problem was written."""
    given: dict[str, Any] = {}
    if "name" in entries:
        given["name"] = reader.name(entries["name"].value, "name")
    if "expected" in entries:
        given["expected"] = reader.json(entries["expected"].value, "expected")
    if "metadata" in entries:
        value = entries["metadata"].value
        if not isinstance(value, MappingNode):
            reader.refuse(value, f"`metadata` is a mapping, and here is {described(value)}")
            return None
        given["metadata"] = reader.json(value, "metadata")
    if given.get("name", "") is None or REFUSED in (given.get("expected"), given.get("metadata")):
        return None
    return given


def _common(
    reader: Reader, node: Node, entries: Mapping[str, Entry], found: _Rows
) -> tuple[tuple[Expectation, ...] | None, list[Node]]:
    """The shared assertions with this row's columns in them, and their nodes. None, where a problem was written."""
    template = found.template
    if template is None:
        return (), []
    columns = {key: entry.value for key, entry in entries.items() if key != "expect"}
    metadata = columns.get("metadata")
    if isinstance(metadata, MappingNode):
        inner = reader.entries(metadata, "metadata")
        columns |= {f"metadata.{key}": entry.value for key, entry in inner.items()}
    found.columns |= set(columns)
    template.rows += 1
    whole = True
    for name, asking in template.spots.items():
        if column_text(columns.get(name)) is not None:
            continue
        whole = False
        if name not in columns:
            template.lacking.setdefault(name, []).append(node)
            continue
        at = template.reader.place(asking)
        reader.refuse(
            columns[name],
            f"`{name}` is {described(columns[name])}, and `${{{name}}}` at {at} fills in text",
            "give this row an `expect` of its own, or write a text, a number or a bool",
        )
    if not whole:
        return None, []
    own = filled(template.node, columns, reader.source)
    assert isinstance(own, SequenceNode)
    return read_expect(template.reader.fresh(), own, "the suite") or None, own.items


def _key(
    reader: Reader,
    node: Node,
    entries: Mapping[str, Entry],
    user: tuple[str, ...],
    own: tuple[Expectation, ...],
    found: _Rows,
) -> str | None:
    """The row's own key, or one made of what it says, which stays when rows move. None, where a problem was written."""
    if "key" in entries:
        spot: Node = entries["key"].value
        identity = reader.name(spot, "key")
        fault = None if identity is None else id_fault(identity)
        if identity is None or fault:
            if identity is not None:
                reader.refuse(spot, f"`key` is {quoted(identity, 60)}: {fault}")
            return None
    else:
        spot = node
        said = {key: reader.json(entry.value, key) for key, entry in entries.items() if key not in _READ_AS_TEXT}
        if any(value is REFUSED for value in said.values()):
            return None
        said |= {"user": list(user), "expect": [expectation.document() for expectation in own]}
        identity = f"{_slug(user[0])}{digest(said)[:12]}"
    first = found.seen.setdefault(folded(identity), reader.place(spot))
    if first == reader.place(spot):
        return identity
    if "key" in entries:
        message, hint = f"`key` is {quoted(identity, 60)}, which is the key of the row at {first} too", "rename one"
    else:
        message, hint = f"this row says the same as the one at {first}", "delete one, or give each a `key`"
    reader.refuse(spot, message, hint)
    return None


_READ_AS_TEXT = frozenset({"input", "user", "expect", "key", "name"})
"""Keys of a row that are no free JSON; its name for people is no part of what it says."""


def _slug(text: str) -> str:
    """A beginning of the text, for people: letters and digits in small letters, a dash between words."""
    words = "".join(char if char.isalnum() else " " for char in text[:60].casefold()).split()
    return "".join(f"{word}-" for word in words)[:25].rstrip("-") + "-" if words else ""


def _after_all(reader: Reader, found: _Rows) -> None:
    """What only shows when all rows were seen: none at all, columns that are not there or that nobody reads."""
    if not found.count and not reader.problems:
        reader.refuse(ScalarNode("", True, None, 1, 1, 0), "there is no row in this file", f"like {_EXAMPLE}")
    for key, (where, node) in found.unused.items():
        where.warn(
            node,
            f"nobody reads the column `{key}`",
            f"use it in `expect` as `${{{key}}}`, or put it into `metadata`",
        )
    if found.unchecked:
        more = f" and {len(found.unchecked) - 1:,} more rows have" if len(found.unchecked) > 1 else " has"
        reader.refuse(
            found.unchecked[0],
            f"this row{more} no `expect`: nothing would be checked",
            "give all rows one: in a .yaml file, `expect: […]` and `rows: FILE.jsonl`",
        )
    template = found.template
    if template is None:
        return
    for name, rows in template.lacking.items():
        asking = template.spots[name]
        if len(rows) == template.rows:
            at, source = _asked_at(template, name)
            problem = source.problem_at(
                at,
                f"no row has a column `{name}`",
                did_you_mean(name, found.columns) or f"columns are: {', '.join(sorted(found.columns))}",
            )
            template.reader.problems.append(problem)
            continue
        place = template.reader.place(asking)
        for row in rows:
            reader.refuse(row, f"this row has no `{name}`, which `${{{name}}}` at {place} fills in")


def _asked_at(template: _Template, name: str) -> tuple[int, Source]:
    """The index of the first `${name}` in the suite's text, as exactly as it can be found."""
    source, node = template.reader.source, template.spots[name]
    start = source.starts[node.line - 1] + node.column - 1
    at = source.text.find(f"${{{name}}}", start, max(node.end, start + 1))
    return (at if at >= 0 else start), source
