"""How does one line of a JSON Lines file become nodes, each with its place?

The standard library says whether the line is JSON; then its tokens are walked once for where they stand. Lines end at
LF and CRLF. A CR alone is refused: the format has it inside a line, and editors end a line there. Numbers stay as they
are spelt, as YAML's do (S1).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from json.decoder import scanstring  # type: ignore[attr-defined]

from evalfleet.checks.nodes import MAX_DEPTH, MappingNode, Node, ScalarNode, SequenceNode
from evalfleet.checks.source import LONE_RETURN, RefusedError, Source

_REST = re.compile(r"[^\s,\]}]+")


def lines_of(file: str, text: str) -> Source:
    """The source of a JSON Lines text. Raises RefusedError where its lines are not an editor's."""
    source = Source.of(file, text)
    lone = LONE_RETURN.search(text)
    if lone is not None:
        message = "a carriage return (U+000D) without a line feed does not end a row"
        raise RefusedError(source.problem_at(lone.start(), message, "save the file with the line ends LF or CRLF"))
    return source


def rows_of(source: Source) -> Iterator[tuple[int, Node | RefusedError]]:
    """Each line that is not blank, by its number from 1: its value, or why it is none."""
    for number in range(1, len(source.starts) + 1):
        if not source.line(number).strip(" \t\r"):
            continue
        try:
            yield number, _node(source, number)
        except RefusedError as refused:
            yield number, refused


def _node(source: Source, number: int) -> Node:
    line = source.line(number)
    try:
        json.loads(line, parse_constant=_no_json)
    except json.JSONDecodeError as error:
        hint = "a .jsonl file holds one whole JSON value in each line" if number == 1 or "Extra" in error.msg else ""
        raise RefusedError(source.problem(number, error.pos + 1, f"not JSON: {error.msg}", hint)) from error
    except RecursionError as error:
        raise RefusedError(source.problem(number, 1, f"nested deeper than {MAX_DEPTH} levels")) from error
    except ValueError as error:  # NaN and its kin, or a number of thousands of digits
        raise RefusedError(source.problem(number, 1, f"not JSON: {error}")) from error
    return _walk(source, number, line)


def _no_json(constant: str) -> object:
    raise ValueError(f"{constant} is no JSON value")


def _walk(source: Source, number: int, line: str) -> Node:
    """The nodes of a line that is JSON."""
    start = source.starts[number - 1]
    at, root = 0, None
    stack: list[SequenceNode | MappingNode] = []
    key: list[Node | None] = []
    while at < len(line):
        char = line[at]
        if char in " \t\r,:":
            at += 1
            continue
        if char in "]}":
            stack.pop()
            key.pop()
            at += 1
            continue
        column = at + 1
        node: Node
        if char in "[{":
            if len(stack) >= MAX_DEPTH:
                raise RefusedError(source.problem(number, column, f"nested deeper than {MAX_DEPTH} levels"))
            node = SequenceNode([], None, number, column) if char == "[" else MappingNode([], None, number, column)
            at += 1
        elif char == '"':
            text, at = scanstring(line, at + 1)
            node = ScalarNode(text, False, None, number, column, start + at)
        else:
            found = _REST.match(line, at)
            assert found is not None
            at = found.end()
            node = ScalarNode(found.group(), True, None, number, column, start + at)
        if not stack:
            root = node
        elif isinstance(stack[-1], SequenceNode):
            stack[-1].items.append(node)
        elif key[-1] is None:
            key[-1] = node
        else:
            stack[-1].pairs.append((key[-1], node))
            key[-1] = None
        if char in "[{":
            assert not isinstance(node, ScalarNode)
            stack.append(node)
            key.append(None)
    assert root is not None
    return root
