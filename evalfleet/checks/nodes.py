"""How does one case file become a tree of YAML nodes, without ever taking more memory or time than its size allows?

The tree is composed here from the parser's events, so that text stays as it is spelt, every node knows its line and
column, and bombs are refused while they are counted and not after they went off (S1, S3, A10;
`docs/decisions/002-yaml-from-nodes.md`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

import yaml

from evalfleet.checks.blanks import Span, misleading_blanks, stray_tab
from evalfleet.checks.complaint import complained_at, in_words
from evalfleet.checks.place import CaseProblem
from evalfleet.checks.source import RefusedError, Source
from evalfleet.checks.standins import ParserText

MAX_DEPTH = 100
"""Levels of nesting, also through aliases."""

MAX_NODES = 100_000
"""Nodes of a file, where an alias counts for all that it stands for."""

MAX_MISLEADING = 20
"""Blanks of a file that are named because they mislead."""

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(slots=True, eq=False)
class ScalarNode:
    """`text` after YAML's own folding and escapes. `plain`: written without quotes and not as block text. `end`: the
    index of the character after it."""

    text: str
    plain: bool
    tag: str | None
    line: int
    column: int
    end: int


@dataclass(slots=True, eq=False)
class SequenceNode:
    items: list[Node]
    tag: str | None
    line: int
    column: int


@dataclass(slots=True, eq=False)
class MappingNode:
    pairs: list[tuple[Node, Node]]
    tag: str | None
    line: int
    column: int


Node: TypeAlias = ScalarNode | SequenceNode | MappingNode


def compose(source: Source) -> tuple[Node | None, list[CaseProblem]]:
    """The file's one document, None where there is nothing but comments; and the blanks in it that mislead (S3).

    Raises RefusedError.
    """
    composer = _Composer(source)
    try:
        root = composer.document()
    except yaml.MarkedYAMLError as error:
        raise RefusedError(composer.explained(error)) from error
    except yaml.YAMLError as error:
        raise RefusedError(source.problem(1, 1, f"this is not YAML: {error}")) from error
    tab = stray_tab(source, composer.text_spans, len(source.text))
    if tab is not None:
        raise RefusedError(tab)
    misleading = misleading_blanks(source, composer.text_spans, len(source.text))
    return root, list(islice(misleading, MAX_MISLEADING))


def pointers(root: Node | None) -> dict[int, str]:
    """`id()` of each node, keys included → its JSON pointer (RFC 6901); of one that aliases repeat, the first."""
    found: dict[int, str] = {}
    rest: list[tuple[Node, str]] = [] if root is None else [(root, "")]
    while rest:
        node, pointer = rest.pop()
        if id(node) in found:
            continue
        found[id(node)] = pointer
        inner: list[tuple[Node, str]] = []
        if isinstance(node, SequenceNode):
            inner = [(item, f"{pointer}/{number}") for number, item in enumerate(node.items)]
        elif isinstance(node, MappingNode):
            for key, value in node.pairs:
                below = pointer
                if isinstance(key, ScalarNode):
                    below = f"{pointer}/{key.text.replace('~', '~0').replace('/', '~1')}"
                found.setdefault(id(key), below)
                inner.append((value, below))
        rest += reversed(inner)
    return found


@dataclass(slots=True)
class _Anchor:
    node: Node
    line: int
    size: int = 0
    height: int = 0
    open: bool = True


@dataclass(slots=True)
class _Open:
    """A collection whose end has not come yet."""

    node: SequenceNode | MappingNode
    anchor: _Anchor | None
    before: int
    height: int = 0
    key: Node | None = None


class _Composer:
    """Counts while it builds: depth and size are checked at every event, before anything is expanded."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._given = ParserText.of(source)
        self.text_spans: list[Span] = []
        self._anchors: dict[str, _Anchor] = {}
        self._stack: list[_Open] = []
        self._count = 0
        self._root: Node | None = None

    def document(self) -> Node | None:
        documents = 0
        for event in self._events():
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise self._refused(event, "a second document starts here; a case file holds one", "delete `---`")
            elif isinstance(event, yaml.NodeEvent):
                self._node(event)
            elif isinstance(event, yaml.CollectionEndEvent):
                self._close()
        return self._root

    def _events(self) -> Iterator[Any]:
        loader = _LOADER(self._given.text)
        try:
            while loader.check_event():
                yield loader.get_event()
        except (ValueError, OverflowError) as error:  # only the parser in Python
            message = f"not YAML: the number here is too large ({error})"
            raise RefusedError(self._source.problem_at(loader.index, message)) from error
        finally:
            loader.dispose()

    def _node(self, event: Any) -> None:
        if isinstance(event, yaml.AliasEvent):
            self._alias(event)
            return
        start, end = event.start_mark, event.end_mark
        # By its index: at the end of a file the parser in C counts a line that no editor shows.
        place = self._source.at(start.index)
        line, column = place.line, place.column
        self._grow(event, 1)
        if isinstance(event, yaml.ScalarEvent):
            plain = not event.style
            if not plain:
                self.text_spans.append((start.index, end.index))
            text = self._given.restored(event.value, escapes=event.style == '"')
            scalar = ScalarNode(text, plain, event.tag, line, column, end.index)
            self._anchor(event, scalar, size=1, finished=True)
            self._place(scalar, 1)
            return
        if len(self._stack) >= MAX_DEPTH:
            raise self._refused(event, f"nested deeper than {MAX_DEPTH} levels")
        node: SequenceNode | MappingNode
        if isinstance(event, yaml.SequenceStartEvent):
            node = SequenceNode([], event.tag, line, column)
        else:
            node = MappingNode([], event.tag, line, column)
        anchor = self._anchor(event, node, size=0, finished=False)
        self._stack.append(_Open(node, anchor, self._count - 1))

    def _alias(self, event: Any) -> None:
        anchor = self._anchors.get(event.anchor)
        if anchor is None:
            raise self._refused(
                event,
                f"`*{event.anchor}` is an alias, and nothing before it is marked `&{event.anchor}`",
                f'if it is text, quote it: "*{event.anchor}"',
            )
        if anchor.open:
            raise self._refused(event, f"`*{event.anchor}` stands inside `&{event.anchor}` itself: a cycle has no end")
        if len(self._stack) + anchor.height > MAX_DEPTH:
            raise self._refused(event, f"nested deeper than {MAX_DEPTH} levels through `*{event.anchor}`")
        self._grow(event, anchor.size)
        self._place(anchor.node, anchor.height)

    def _anchor(self, event: Any, node: Node, *, size: int, finished: bool) -> _Anchor | None:
        if event.anchor is None:
            return None
        anchor = _Anchor(node, node.line, size=size, height=1, open=not finished)
        self._anchors[event.anchor] = anchor
        return anchor

    def _close(self) -> None:
        done = self._stack.pop()
        if done.anchor is not None:
            done.anchor.size = self._count - done.before
            done.anchor.height = done.height + 1
            done.anchor.open = False
        self._place(done.node, done.height + 1)

    def _place(self, node: Node, height: int) -> None:
        if not self._stack:
            self._root = node
            return
        parent = self._stack[-1]
        parent.height = max(parent.height, height)
        if isinstance(parent.node, SequenceNode):
            parent.node.items.append(node)
        elif parent.key is None:
            parent.key = node
        else:
            parent.node.pairs.append((parent.key, node))
            parent.key = None

    def _grow(self, event: Any, size: int) -> None:
        self._count += size
        if self._count > MAX_NODES:
            raise self._refused(
                event,
                f"more than {MAX_NODES:,} values up to here, aliases written out",
                "split the file into several cases, or repeat less with `*`",
            )

    def _refused(self, event: Any, message: str, hint: str = "") -> RefusedError:
        return RefusedError(self._source.problem_at(event.start_mark.index, message, hint))

    def explained(self, error: yaml.MarkedYAMLError) -> CaseProblem:
        """A syntax error: by the blank before it that misled, or in words."""
        index = complained_at(error, self._source)
        tab = stray_tab(self._source, self.text_spans, index + 1)
        if tab is not None:
            return tab
        misleading = next(misleading_blanks(self._source, self.text_spans, index + 1), None)
        what = self._given.restored_words(error.problem or "this is not YAML")
        return misleading or in_words(error, self._source, what, deepest=MAX_DEPTH)
