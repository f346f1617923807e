"""How do a row's columns come into the `expect` list that all rows share?

`${name}` in a text of that list stands for the row's column of that name. What is filled in is text, and is never read
as YAML: a column with `yes`, `[a]` or `: ` in it is that text. A value that is nothing but `${name}` stays the number
or bool that the column is, so that counts and arguments can come from rows. `$${` is a plain `${`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from evalfleet.checks.nodes import MappingNode, Node, ScalarNode, SequenceNode
from evalfleet.checks.reading import PlacedNode
from evalfleet.checks.scalars import NULLS
from evalfleet.checks.source import Source

_SPOT = re.compile(r"\$\$\{|\$\{([^{}\n]*)\}")


@dataclass(frozen=True, slots=True)
class Spot:
    """A `${name}`: the text that it stands in."""

    name: str
    node: ScalarNode


def spots_of(template: Node) -> Iterator[Spot]:
    """Every `${name}` in the texts of the list, in order. Keys are no texts."""
    if isinstance(template, ScalarNode):
        for found in _SPOT.finditer(template.text):
            if found.group(1) is not None:
                yield Spot(found.group(1).strip(), template)
        return
    inner = template.items if isinstance(template, SequenceNode) else [value for _, value in template.pairs]
    for node in inner:
        yield from spots_of(node)


def column_text(node: Node | None) -> str | None:
    """What a column fills in; None for a list, a mapping and nothing."""
    if not isinstance(node, ScalarNode) or (node.plain and node.text in NULLS):
        return None
    return node.text


def filled(template: Node, columns: Mapping[str, Node], rows: Source) -> Node:
    """The list for one row, whose columns hold every name that is asked for. What is filled in has its place in `rows`,
    the row's file; what is not changed is the template's own node."""
    if isinstance(template, ScalarNode):
        return _filled_text(template, columns, rows)
    if isinstance(template, SequenceNode):
        items = [filled(item, columns, rows) for item in template.items]
        return SequenceNode(items, template.tag, template.line, template.column)
    pairs = [(key, filled(value, columns, rows)) for key, value in template.pairs]
    return MappingNode(pairs, template.tag, template.line, template.column)


def _filled_text(template: ScalarNode, columns: Mapping[str, Node], rows: Source) -> ScalarNode:
    if "${" not in template.text:
        return template
    last: ScalarNode | None = None

    def instead(found: re.Match[str]) -> str:
        nonlocal last
        if found.group(1) is None:
            return "${"
        column = columns[found.group(1).strip()]
        assert isinstance(column, ScalarNode)
        last = column
        return column.text

    text = _SPOT.sub(instead, template.text)
    if last is None:
        return ScalarNode(text, False, template.tag, template.line, template.column, template.end)
    whole = _SPOT.fullmatch(template.text) is not None
    return PlacedNode(text, whole and last.plain, template.tag, last.line, last.column, last.end, rows)
