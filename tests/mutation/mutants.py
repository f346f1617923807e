"""Which small faults could somebody make in a module?

Each mutant is one change of one place of its syntax tree: another comparison, another operator, a condition turned
round, a constant beside the right one, a value that is None, a call that is not made. What says nothing of behaviour is
left alone: docstrings, annotations, decorators, type aliases, imports.
"""

from __future__ import annotations

import ast
import copy
import functools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
_OTHER_NAMES = {"any": "all", "all": "any", "min": "max", "max": "min"}
_LEFT_ALONE = frozenset({"annotation", "returns", "decorator_list", "type_params", "names"})
_SHOWN = 40
"""Characters that a change shows on each side of what changes."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """`where`: the function's or class's qualified name, "" for the module. `change`: the place and what becomes of it,
    without a line number, so that it stays the same when lines move. `lines`: the statement's first and last.
    `at_import`: its code runs when the module is imported. `make` puts it into the tree."""

    where: str
    change: str
    lines: tuple[int, int]
    at_import: bool
    make: Callable[[], None]


@dataclass(frozen=True, slots=True)
class _Place:
    parent: ast.AST
    field: str
    index: int | None

    def put(self, node: ast.AST) -> None:
        if self.index is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.index] = node


@dataclass(frozen=True, slots=True)
class _Around:
    """What holds a node: see `Mutant`."""

    where: str
    at_import: bool
    statement: ast.stmt


def mutants_of(tree: ast.Module) -> list[Mutant]:
    """Every mutant of the module, in the order of its text. `tree` is left as it was; `make` of one changes it."""
    seen: Counter[tuple[str, str]] = Counter()
    found = []
    for around, place, node, other in list(_changes(tree, _Around("", True, ast.Pass(lineno=1, end_lineno=1)))):
        before = _headline(around.statement)
        place.put(other)
        change = _difference(before, _headline(_after(around, node, other)))
        place.put(node)
        seen[around.where, change] += 1
        number = seen[around.where, change]
        first, last = around.statement.lineno, _last_line(around.statement)
        found.append(
            Mutant(
                around.where,
                change + (f" #{number}" if number > 1 else ""),
                (first, last),
                around.at_import,
                functools.partial(place.put, other),
            )
        )
    return found


def _after(around: _Around, node: ast.AST, other: ast.AST) -> ast.stmt:
    """The statement after the change: another one, or the same with something else in it."""
    return other if node is around.statement and isinstance(other, ast.stmt) else around.statement


def _changes(node: ast.AST, around: _Around) -> Iterator[tuple[_Around, _Place, ast.AST, ast.AST]]:
    """(what holds it, its place, what stands there, what else could)."""
    for field, value in ast.iter_fields(node):
        if field in _LEFT_ALONE or (isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == "TypeAlias"):
            continue
        listed = isinstance(value, list)
        for index, child in enumerate(value if listed else [value]):
            if not isinstance(child, ast.AST) or _says_nothing(node, field, child):
                continue
            where, at_import = around.where, around.at_import
            if field == "body" and isinstance(node, ast.FunctionDef | ast.ClassDef):
                where = f"{where}.{node.name}" if where else node.name
                at_import = at_import and isinstance(node, ast.ClassDef)
            inner = _Around(where, at_import, child if isinstance(child, ast.stmt) else around.statement)
            place = _Place(node, field, index if listed else None)
            for other in _others(child, node, field):
                yield inner, place, child, ast.copy_location(other, child)
            yield from _changes(child, inner)


def _says_nothing(parent: ast.AST, field: str, child: ast.AST) -> bool:
    """Docstrings, attribute docstrings, `if TYPE_CHECKING`, the format of a formatted value."""
    if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
        return True
    if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
        return True
    return isinstance(parent, ast.FormattedValue) and field == "format_spec"


def _others(node: ast.AST, parent: ast.AST, field: str) -> Iterator[ast.AST]:
    """What could stand in the place of `node`."""
    match node:
        case ast.Compare(ops=[op]):
            for other in _COMPARISONS[type(op)]:
                yield _with(node, ops=[other()])
        case ast.Compare(ops=[first, *rest]):
            for other in _COMPARISONS[type(first)]:
                yield _with(node, ops=[other(), *rest])
            for other in _COMPARISONS[type(rest[0])]:
                yield _with(node, ops=[first, other(), *rest[1:]])
        case ast.BoolOp(op=ast.And()):
            yield _with(node, op=ast.Or())
        case ast.BoolOp(op=ast.Or()):
            yield _with(node, op=ast.And())
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield node.operand
        case ast.BinOp() if type(node.op) in _OPERATORS:
            yield _with(node, op=_OPERATORS[type(node.op)]())
        case ast.AugAssign() if type(node.op) in _OPERATORS:
            yield _with(node, op=_OPERATORS[type(node.op)]())
        case ast.Constant(value=bool() as truth):
            yield ast.Constant(not truth)
        case ast.Constant(value=int() | float() as number):
            yield ast.Constant(number + 1)
        case ast.Constant(value=str() as text) if not isinstance(parent, ast.JoinedStr) or parent.values[0] is node:
            yield ast.Constant(f"XX{text}XX")
        case ast.Break():
            yield ast.Continue()
        case ast.Continue():
            yield ast.Break()
        case ast.Name(id=name, ctx=ast.Load()) if name in _OTHER_NAMES and field == "func":
            yield ast.Name(_OTHER_NAMES[name], ast.Load())
        case ast.Expr(value=ast.Call()):
            yield ast.Pass()
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield ast.Return(ast.Constant(None))
        case ast.Assign(value=value) if not isinstance(value, ast.Constant):
            yield _with(node, value=ast.Constant(None))
    turned_round = field in {"test", "ifs", "guard"} and not isinstance(node, ast.Compare | ast.BoolOp | ast.UnaryOp)
    if turned_round and isinstance(node, ast.expr):
        yield ast.UnaryOp(ast.Not(), node)


def _with(node: ast.AST, **fields: object) -> ast.AST:
    other = copy.copy(node)
    for name, value in fields.items():
        setattr(other, name, value)
    return other


def _headline(statement: ast.stmt) -> str:
    """A statement on one line; of one that holds others, what comes before them."""
    shown = copy.copy(statement)
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        if isinstance(getattr(shown, field, None), list):
            setattr(shown, field, [] if field != "body" else [ast.Pass()])
    if hasattr(shown, "decorator_list"):
        shown.decorator_list = []
    return " ".join(ast.unparse(shown).removesuffix("pass").split())


def _difference(before: str, after: str) -> str:
    start = _alike(before, after)
    end = _alike(before[start:][::-1], after[start:][::-1])
    while start and before[start - 1].isalnum():  # whole words, for who reads it
        start -= 1
    while end and before[-end].isalnum():
        end -= 1
    was, becomes = before[start : len(before) - end], after[start : len(after) - end]
    left = before[max(start - _SHOWN, 0) : start]
    right = before[len(before) - end :][:_SHOWN]
    return f"{left}[{was} → {becomes}]{right}"


def _alike(one: str, other: str) -> int:
    """How many characters both begin with."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _last_line(statement: ast.stmt) -> int:
    """Of one that holds others: the line before the first of them."""
    inner = getattr(statement, "body", None) or getattr(statement, "cases", None)
    if isinstance(inner, list):
        first = inner[0]
        line = first.pattern.lineno if isinstance(first, ast.match_case) else first.lineno
        return max(statement.lineno, line - 1)
    return statement.end_lineno or statement.lineno
