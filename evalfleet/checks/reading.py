"""How is a YAML node read as the text, number, mapping or JSON that is wanted there?

Every reader takes what it can and writes a problem for what it cannot, so that all problems of a file come in one go
(S2). A reader answers None where it wrote a problem.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from evalfleet.checks.near import did_you_mean
from evalfleet.checks.nodes import MappingNode, Node, ScalarNode, SequenceNode, pointers
from evalfleet.checks.place import CaseProblem, Place
from evalfleet.checks.scalars import NULLS, core_value
from evalfleet.checks.source import Source
from evalfleet.checks.standins import lone_half
from evalfleet.checks.text import quoted, visible

STR_TAG = "tag:yaml.org,2002:str"
MAX_PROBLEMS = 100
"""Problems of one file that are reported; the rest is counted."""

MAX_COUNTED = 1000
"""Problems of one file after which it is read no further: near names for 100,000 of them would take seconds."""


class HopelessError(Exception):
    """A file with more than MAX_COUNTED problems. Never leaves this package: `parse_case` reports the first ones."""


_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_HASH_WORD = re.compile(r"[ \t]+(#[^\s#]\S{0,20})")


@dataclass(slots=True, eq=False)
class PlacedNode(ScalarNode):
    """A scalar that came from another file than the one that is read: a row's, filled into what all rows share."""

    source: Source


@dataclass(frozen=True, slots=True)
class Entry:
    """One key of a mapping with its value. `merged`: it came in through `<<`."""

    key: str
    key_node: Node
    value: Node
    merged: bool


@dataclass(slots=True)
class Reader:
    """The problems and warnings of one file, and the typed readers that write them. `root` is what problems point
    into."""

    source: Source
    root: Node | None = None
    problems: list[CaseProblem] = field(default_factory=list)
    warnings: list[CaseProblem] = field(default_factory=list)
    _seen: set[tuple[str, int, int, str]] = field(default_factory=set)
    _merged: dict[int, dict[str, Entry]] = field(default_factory=dict)
    _pointers: dict[int, str] | None = None

    def fresh(self) -> Reader:
        """This reader for nodes that did not exist before: what it remembers of nodes is by their identity."""
        if self._pointers is None:
            self._pointers = pointers(self.root)
        return replace(self, _merged={})

    def place(self, node: Node) -> Place:
        return Place(self._source_of(node).file, node.line, node.column)

    def _source_of(self, node: Node) -> Source:
        return node.source if isinstance(node, PlacedNode) else self.source

    def refuse(self, node: Node, message: str, hint: str = "") -> None:
        """Write a problem; the same one in the same place (seen again through an alias) only once."""
        self._write(self.problems, node, message, hint)

    def warn(self, node: Node, message: str, hint: str = "") -> None:
        self._write(self.warnings, node, message, hint)

    def name_misleading(self, blanks: Iterable[CaseProblem]) -> None:
        """Blanks that indent for people only: why a file is refused, perhaps; a warning where it could be read."""
        (self.problems or self.warnings).extend(blanks)

    def _half(self, node: ScalarNode, what: str) -> None:
        """Refuse text with half a character in it, where that half is written."""
        source = self._source_of(node)
        index = lone_half(source, source.starts[node.line - 1] + node.column - 1, node.end)
        message, hint = f"{what} holds half a character (a lone surrogate)", "write the whole character"
        self._write(self.problems, node, message, hint, None if index is None else source.at(index))

    def _write(self, into: list[CaseProblem], node: Node, message: str, hint: str, inside: Place | None = None) -> None:
        place = inside or self.place(node)
        mark = (place.file, place.line, place.column, message)
        if mark not in self._seen:
            self._seen.add(mark)
            problem = self._problem(node, message, hint)
            if inside is not None:
                problem = replace(problem, place=inside, source_line=self._source_of(node).line(inside.line))
            into.append(problem)
            if len(self.problems) > MAX_COUNTED:
                raise HopelessError

    def _problem(self, node: Node, message: str, hint: str) -> CaseProblem:
        if self._pointers is None:
            self._pointers = pointers(self.root)
        source, end = self._source_of(node), None
        if isinstance(node, ScalarNode) and node.end:
            start = source.starts[node.line - 1]
            text = source.text[start : node.end].rstrip(" \t\n\r")  # block text ends at the start of a later line
            after = source.at(start + len(text))
            end = (after.line, after.column)
        found = source.problem(node.line, node.column, message, hint)
        return replace(found, end=end, pointer=self._pointers.get(id(node)))

    def text(self, node: Node, what: str) -> str | None:
        """Text as it is spelt (S1). `what` names the key for the message."""
        if not isinstance(node, ScalarNode):
            self.refuse(node, f"`{what}` is text, and here is {described(node)}", "write one text; quote it if need be")
            return None
        if node.tag not in (None, STR_TAG):
            self.refuse(
                node,
                f"`{what}`: the tag `{tag_shown(node.tag)}` has no meaning here",
                "drop the tag, and quote the text",
            )
            return None
        if node.plain and node.tag is None and node.text in NULLS:
            if node.text:
                self.refuse(node, f"`{what}` is `{node.text}`, which YAML reads as nothing", f'quote it: "{node.text}"')
            else:
                self.refuse(
                    node,
                    f"`{what}` has no value",
                    'write one; if it starts with `#`, quote it: "#…" (`#` is a comment)',
                )
            return None
        if not _writable(node.text):
            self._half(node, f"`{what}`")
            return None
        if not node.text.strip():
            self.refuse(node, f"`{what}` is blank: {quoted(node.text)}", "write some text")
            return None
        if node.plain and (comment := _HASH_WORD.match(self._source_of(node).text, node.end)):
            self.warn(
                node,
                f"`{what}` ends before `{comment.group(1)}`: what follows ` #` is a comment",
                "quote the text if that belongs to it; start a comment with `# ` if not",
            )
        return node.text

    def name(self, node: Node, what: str) -> str | None:
        """Text on one line: the name of a tool, hook, decision or scenario."""
        text = self.text(node, what)
        if text is not None and _CONTROL.search(text):
            self.refuse(node, f"`{what}` is {quoted(text)}; a name is one line without control characters")
            return None
        return text

    def whole(self, node: Node, what: str, *, least: int = 0, most: int | None = None) -> int | None:
        """A whole number by YAML 1.2 core; `true` is not 1, 3.0 and "3" are not 3 (S5)."""
        value = self._plain(node, what, "a whole number")
        if value is REFUSED:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            self.refuse(node, f"`{what}` is a whole number, and here is {described(node)}", "write it plainly, like 3")
            return None
        if value < least or (most is not None and value > most):
            limits = f"at least {least}" if most is None else f"{least} to {most}"
            self.refuse(node, f"`{what}` is {value}; it has to be {limits}")
            return None
        return value

    def number(self, node: Node, what: str) -> float | None:
        """A finite number by YAML 1.2 core."""
        value = self._plain(node, what, "a number")
        if value is REFUSED:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self.refuse(node, f"`{what}` is a number, and here is {described(node)}", "write it plainly, like 0.7")
            return None
        return float(value)

    def boolean(self, node: Node, what: str) -> bool | None:
        """`true` or `false`; `yes` and `on` are text."""
        value = self._plain(node, what, "`true` or `false`")
        if value is REFUSED:
            return None
        if not isinstance(value, bool):
            self.refuse(node, f"`{what}` is `true` or `false`, and here is {described(node)}", f"write `{what}: true`")
            return None
        return value

    def _plain(self, node: Node, what: str, wanted: str) -> Any:
        if not isinstance(node, ScalarNode):
            self.refuse(node, f"`{what}` is {wanted}, and here is {described(node)}")
            return REFUSED
        if node.tag is not None:
            self.refuse(node, f"`{what}`: the tag `{tag_shown(node.tag)}` has no meaning here", "drop the tag")
            return REFUSED
        if not node.plain:
            return node.text
        try:
            return core_value(node.text)
        except ValueError as error:
            self.refuse(node, f"`{what}` is `{node.text}`: {error}")
            return REFUSED

    def json(self, node: Node, what: str) -> Any:
        """Free JSON by YAML 1.2 core, a fresh value at each call. REFUSED where something in it cannot be JSON."""
        if isinstance(node, ScalarNode):
            if node.tag not in (None, STR_TAG):
                self.refuse(node, f"the tag `{tag_shown(node.tag)}` in `{what}` has no meaning here", "drop the tag")
                return REFUSED
            if not _writable(node.text):
                self._half(node, f"`{what}`")
                return REFUSED
            if not node.plain or node.tag == STR_TAG:
                return node.text
            try:
                return core_value(node.text)
            except ValueError as error:
                self.refuse(node, f"`{node.text}` in `{what}`: {error}", f'quote it: "{node.text}"')
                return REFUSED
        if isinstance(node, SequenceNode):
            self._untagged(node, what)
            items = [self.json(item, what) for item in node.items]
            return REFUSED if any(item is REFUSED for item in items) else items
        entries = self.entries(node, what)
        values = {key: self.json(entry.value, what) for key, entry in entries.items()}
        return REFUSED if any(value is REFUSED for value in values.values()) else values

    def json_mapping(self, node: Node, what: str) -> dict[str, Any] | None:
        if not isinstance(node, MappingNode):
            self.refuse(node, f"`{what}` is a mapping of argument to value, and here is {described(node)}")
            return None
        value = self.json(node, what)
        return None if value is REFUSED else value

    def items(self, node: Node, what: str) -> list[Node] | None:
        """The items of a list."""
        if not isinstance(node, SequenceNode):
            self.refuse(node, f"`{what}` is a list, and here is {described(node)}", "start each item with `- `")
            return None
        self._untagged(node, what)
        return node.items

    def entries(self, node: MappingNode, what: str) -> Mapping[str, Entry]:
        """A mapping's keys in order, `<<` resolved: what stands here wins over what is merged, and of a list of merged
        mappings the first wins (A09). Repeated keys are refused, never overwritten (A01)."""
        known = self._merged.get(id(node))
        if known is not None:
            return known
        self._untagged(node, what)
        found: dict[str, Entry] = {}
        merges: list[Node] = []
        merge_key: Node | None = None
        for key_node, value in node.pairs:
            if isinstance(key_node, ScalarNode) and key_node.plain and key_node.tag is None and key_node.text == "<<":
                if merge_key is not None:
                    self.refuse(
                        key_node, f"`<<` stands twice here, first in line {merge_key.line}", "write `<<: [*a, *b]`"
                    )
                merge_key = key_node
                merges.append(value)
                continue
            key = self._key(key_node, what)
            if key is None:
                continue
            if key in found:
                first = found[key].key_node
                self.refuse(
                    key_node,
                    f"`{visible(key)}` stands twice here, first at {first.line}:{first.column}",
                    "keep one: YAML loaders use only the last, so the other would never count",
                )
                continue
            found[key] = Entry(key, key_node, value, merged=False)
        for value in merges:
            for mapping in self._merge_sources(value):
                for key, entry in self.entries(mapping, what).items():
                    if key not in found:
                        found[key] = Entry(key, entry.key_node, entry.value, merged=True)
        self._merged[id(node)] = found
        return found

    def _merge_sources(self, value: Node) -> list[MappingNode]:
        sources = value.items if isinstance(value, SequenceNode) else [value]
        mappings = [source for source in sources if isinstance(source, MappingNode)]
        for source in sources:
            if not isinstance(source, MappingNode):
                self.refuse(source, f"`<<` merges mappings, and here is {described(source)}", "write `<<: *name`")
        return mappings

    def _key(self, node: Node, what: str) -> str | None:
        if not isinstance(node, ScalarNode):
            self.refuse(node, f"a key in `{what}` is text, and here is {described(node)}")
            return None
        if node.tag not in (None, STR_TAG) or (node.plain and node.tag is None and node.text in NULLS):
            self.refuse(node, f"a key in `{what}` is text, and here is {described(node)}", "quote it")
            return None
        if not _writable(node.text):
            self._half(node, f"a key in `{what}`")
            return None
        return node.text

    def _untagged(self, node: SequenceNode | MappingNode, what: str) -> None:
        if node.tag is not None:
            self.refuse(node, f"`{what}`: the tag `{tag_shown(node.tag)}` has no meaning here", "drop the tag")

    def unknown(self, entry: Entry, where: str, known: Iterable[str], hint: str = "") -> None:
        """An unknown key, with the nearest known one or, failing that, the list of them."""
        known = list(known)
        near = did_you_mean(entry.key, known)
        self.refuse(
            entry.key_node,
            f"unknown key {quoted(entry.key, 60)} in {where}",
            " ".join(filter(None, [near, hint])) or f"{where} takes: {', '.join(known)}",
        )


class _Refused:
    """The mark of a value that a problem was written for (None is a value of its own in JSON)."""


REFUSED = _Refused()
"""What `Reader.json` answers where it wrote a problem."""


def tag_shown(tag: str | None) -> str:
    """A tag as people write it: `!!int`."""
    return (tag or "").replace("tag:yaml.org,2002:", "!!")


def described(node: Node) -> str:
    """What stands there, in words: `the text "3"`, `the number 3`, `a list`, `nothing`."""
    if isinstance(node, SequenceNode):
        return "an empty list" if not node.items else f"a list of {len(node.items)}"
    if isinstance(node, MappingNode):
        return "a mapping" if node.pairs else "an empty mapping"
    if node.tag is not None:
        return f"a value with the tag `{tag_shown(node.tag)}`"
    if not node.plain:
        return f"the text {quoted(node.text, 60)}"
    if node.text == "":
        return "nothing"
    if node.text in NULLS:
        return f"`{node.text}` (nothing)"
    try:
        value = core_value(node.text)
    except ValueError:
        return f"`{node.text}`"
    if isinstance(value, str):
        return f"the text {quoted(node.text, 60)}"
    return f"{'the bool' if isinstance(value, bool) else 'the number'} {node.text}"


def _writable(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
