"""Which names of a grader's file can a case call? (S6)

Read from the text (`read_text`), on a machine that has not the graders' environment, and from what the file became when
it was imported (`why_not`). How a name is bound is seen in the text alone: an import brings a name and makes no grader
of it, while a decorator without `functools.wraps` gives a function another module's name.
"""

from __future__ import annotations

import ast
import inspect
from typing import Any

GIVEN = 3
CALLED = "it is called with three arguments: t, case, run"
IS_CLASS = "is a class; a grader is a function: def name(t, case, run)"
IS_ASYNC = "is an `async def`; a grader is a plain function"
IS_GENERATOR = "is a generator (it says `yield`); a grader returns its answer"
_FREE = frozenset({"run_id", "history"})  # what `t` has beside `llm`: no judge is asked for it
_LOOKS_ANYWHERE = frozenset({"locals", "vars", "eval", "exec"})
_NO_FUNCTION = (
    ast.Constant, ast.JoinedStr, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.ListComp, ast.SetComp, ast.DictComp,
    ast.GeneratorExp, ast.Compare,
)  # fmt: skip


class Text:
    """What the text of a file says of its public names. `names`: name → why it is no grader, None where it may be one;
    `imported`: those that only imports bind; `asks`: those that may call t.llm."""

    def __init__(self) -> None:
        self.names: dict[str, str | None] = {}
        self.imported: set[str] = set()
        self.asks: set[str] = set()

    def bind(self, name: str, why_not: str | None, *, asks: bool = False) -> None:
        """A name that is bound more than once may be a grader if one of them is: a text does not say which holds."""
        if not name.startswith("_"):
            if self.names.get(name, "") is not None:
                self.names[name] = why_not
            if asks and why_not is None:
                self.asks.add(name)


def read_text(source: bytes, file: str) -> Text:
    """SyntaxError, ValueError, RecursionError or MemoryError for what is no Python of this interpreter."""
    text = Text()
    bound: set[str] = set()
    ahead: list[ast.stmt] = list(ast.parse(source, file).body)
    while ahead:
        statement = ahead.pop(0)
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            _imports(text, statement)
            continue
        found: dict[str, str | None]
        if isinstance(statement, ast.AsyncFunctionDef):
            found = {statement.name: IS_ASYNC}
        elif isinstance(statement, ast.ClassDef):
            found = {statement.name: IS_CLASS}
        elif isinstance(statement, ast.FunctionDef):
            found = {statement.name: None if statement.decorator_list else _why_not_these(statement.args)}
        else:
            found = _assigned(statement)
            for part in ("body", "orelse", "finalbody", "handlers", "cases"):
                for inner in getattr(statement, part, ()):
                    ahead += [inner] if isinstance(inner, ast.stmt) else inner.body
        bound.update(found)
        free = isinstance(statement, ast.FunctionDef) and not statement.decorator_list and _asks_nobody(statement)
        for name, why_not in found.items():
            text.bind(name, why_not, asks=not free)
    text.imported -= bound
    return text


def _imports(text: Text, statement: ast.Import | ast.ImportFrom) -> None:
    module = "." * getattr(statement, "level", 0) + (getattr(statement, "module", None) or "")
    for alias in statement.names:
        if alias.name == "*":
            continue  # what it brings is imported only, whatever it is
        name = alias.asname or alias.name.partition(".")[0]
        text.imported.add(name)
        text.bind(name, only_imported(module or alias.name, alias.name if module else ""))


def only_imported(module: str, name: str = "") -> str:
    """Why a name that an import brings is no grader."""
    own = module.startswith(("evals.graders.", "."))
    beside = module.rpartition(".")[2] if own else ""
    what = f": call {beside}.{name}" if beside and name else ""
    return f"is only imported there, from {module}; a grader is called by the file that defines it{what}"


def _assigned(statement: ast.stmt) -> dict[str, str | None]:
    """Names that a plain statement binds: `answers = functools.partial(…)` makes a grader too, and `limit = 3` none."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    targets = [statement.target] if isinstance(statement, ast.AnnAssign) and statement.value is not None else targets
    value = getattr(statement, "value", None)
    names = [node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]
    if isinstance(value, _NO_FUNCTION) and all(isinstance(target, ast.Name) for target in targets):
        return {}
    why_not = _why_not_these(value.args) if isinstance(value, ast.Lambda) else None
    return dict.fromkeys(names, why_not)


def _why_not_these(arguments: ast.arguments) -> str | None:
    positional = len(getattr(arguments, "posonlyargs", ())) + len(arguments.args)
    needed = [name.arg for at, name in enumerate(arguments.kwonlyargs) if arguments.kw_defaults[at] is None]
    most = None if arguments.vararg is not None else positional
    return _mismatch(positional - len(arguments.defaults), most, needed)


def _mismatch(least: int, most: int | None, keywords: list[str]) -> str | None:
    if keywords:
        return f"needs the keyword argument {keywords[0]!r}; {CALLED}"
    if least > GIVEN:
        return f"needs {least} arguments; {CALLED}"
    if most is not None and most < GIVEN:
        return f"takes {['no argument', '1 argument', '2 arguments'][most]}; {CALLED}"
    return None


def _asks_nobody(function: ast.FunctionDef) -> bool:
    """Whether its text shows that it cannot call t.llm: it uses `t` for what needs no judge, or not at all."""
    positional = [*getattr(function.args, "posonlyargs", ()), *function.args.args]
    if not positional:
        return False  # *args: `t` has no name
    tools, harmless, seen = positional[0].arg, 0, 0
    for node in ast.walk(function):
        if isinstance(node, ast.Name):
            if node.id in _LOOKS_ANYWHERE:
                return False
            seen += node.id == tools
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            harmless += node.value.id == tools and node.attr in _FREE
    return seen == harmless


def why_not(value: Any) -> str | None:
    """Why what a name holds is no grader, None where it may be one."""
    if isinstance(value, type):
        return IS_CLASS
    called = (value, getattr(type(value), "__call__", None))  # noqa: B004 - what it is, not whether
    if any(inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one) for one in called):
        return IS_ASYNC
    if any(map(inspect.isgeneratorfunction, called)):
        return IS_GENERATOR
    try:
        # What it takes itself: a decorator with functools.wraps may add an argument that nobody here gives.
        parameters = inspect.signature(value, follow_wrapped=False).parameters.values()
    except (TypeError, ValueError):
        return None  # one that was not written in Python: its call will tell
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    least = sum(one.default is one.empty for one in positional)
    most = None if any(one.kind is one.VAR_POSITIONAL for one in parameters) else len(positional)
    keywords = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY and one.default is one.empty]
    return _mismatch(least, most, keywords)
