"""What may a scenario assert? The twelve, as the seed lists them, each a frozen value."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from evalfleet.checks.place import Place


@dataclass(frozen=True, slots=True)
class _Asserted:
    """What the twelve share: the YAML word, and where it stands (not part of what is asserted)."""

    kind: ClassVar[str]
    negative: ClassVar[bool] = False
    """True for what only says what must *not* happen: an agent that never started satisfies it (S21)."""

    place: Place | None = field(default=None, compare=False, kw_only=True)

    def args(self) -> Any:
        """What stands behind the word in YAML, as JSON: a fresh copy."""
        raise TypeError(f"{type(self).__name__} is not one of the twelve")

    def document(self) -> dict[str, Any]:
        """`{kind: args}`, as a grader's `case["expect"]` and the artifact have it (S27)."""
        return {self.kind: self.args()}


@dataclass(frozen=True, slots=True)
class ToolCalled(_Asserted):
    """Some call of `name` carried `called_with` as a subset of its arguments; None asks for the call alone (S19)."""

    kind: ClassVar[str] = "tool_called"
    name: str
    called_with: Mapping[str, Any] | None = field(default=None, hash=False)

    def args(self) -> Any:
        if self.called_with is None:
            return {"name": self.name}
        return {"name": self.name, "args": copy.deepcopy(dict(self.called_with))}


@dataclass(frozen=True, slots=True)
class ToolNotCalled(_Asserted):
    kind: ClassVar[str] = "tool_not_called"
    negative: ClassVar[bool] = True
    name: str

    def args(self) -> Any:
        return {"name": self.name}


@dataclass(frozen=True, slots=True)
class ToolOrder(_Asserted):
    """The first call of `first` comes before the first call of `then` (S20)."""

    kind: ClassVar[str] = "tool_order"
    first: str
    then: str

    def args(self) -> Any:
        return {"first": self.first, "then": self.then}


@dataclass(frozen=True, slots=True)
class MinToolCalls(_Asserted):
    kind: ClassVar[str] = "min_tool_calls"
    name: str
    count: int

    def args(self) -> Any:
        return {"name": self.name, "count": self.count}


@dataclass(frozen=True, slots=True)
class MaxToolCalls(_Asserted):
    kind: ClassVar[str] = "max_tool_calls"
    negative: ClassVar[bool] = True
    name: str
    count: int

    def args(self) -> Any:
        return {"name": self.name, "count": self.count}


@dataclass(frozen=True, slots=True)
class ResultContains(_Asserted):
    """Some result of `name` carried the substring; a result that is not text is compact JSON (S20)."""

    kind: ClassVar[str] = "result_contains"
    name: str
    substring: str

    def args(self) -> Any:
        return {"name": self.name, "substring": self.substring}


@dataclass(frozen=True, slots=True)
class FinalAnswerContains(_Asserted):
    kind: ClassVar[str] = "final_answer_contains"
    text: str

    def args(self) -> Any:
        return self.text


@dataclass(frozen=True, slots=True)
class FinalAnswerNotContains(_Asserted):
    kind: ClassVar[str] = "final_answer_not_contains"
    negative: ClassVar[bool] = True
    text: str

    def args(self) -> Any:
        return self.text


@dataclass(frozen=True, slots=True)
class FinalAnswerMaxChars(_Asserted):
    """Length in code points (S19)."""

    kind: ClassVar[str] = "final_answer_max_chars"
    negative: ClassVar[bool] = True
    chars: int

    def args(self) -> Any:
        return self.chars


@dataclass(frozen=True, slots=True)
class HookCalled(_Asserted):
    """The hook of the tree was asked and decided `decision`; None asks for "ran at all" (S22)."""

    kind: ClassVar[str] = "hook_called"
    name: str
    decision: str | None = None

    def args(self) -> Any:
        return {"name": self.name} if self.decision is None else {"name": self.name, "decision": self.decision}


@dataclass(frozen=True, slots=True)
class NoError(_Asserted):
    kind: ClassVar[str] = "no_error"

    def args(self) -> Any:
        return True


@dataclass(frozen=True, slots=True)
class Grader(_Asserted):
    """`evals/graders/<file>.py`, its public `function`; the score must reach `pass_below` where that is set (S25)."""

    kind: ClassVar[str] = "grader"
    name: str
    pass_below: float | None = None

    @property
    def file(self) -> str:
        return self.name.partition(".")[0]

    @property
    def function(self) -> str:
        return self.name.partition(".")[2]

    def args(self) -> Any:
        return {"name": self.name} if self.pass_below is None else {"name": self.name, "pass_below": self.pass_below}


Expectation: TypeAlias = (
    ToolCalled
    | ToolNotCalled
    | ToolOrder
    | MinToolCalls
    | MaxToolCalls
    | ResultContains
    | FinalAnswerContains
    | FinalAnswerNotContains
    | FinalAnswerMaxChars
    | HookCalled
    | NoError
    | Grader
)

# Which fields each word takes: (YAML key, type, required, the dataclass's own name). Types: name, text, count,
# number, args. A word with one unnamed field ("") takes its value directly.
FIELDS: Mapping[type[Expectation], tuple[tuple[str, str, bool, str], ...]] = {
    ToolCalled: (("name", "name", True, "name"), ("args", "args", False, "called_with")),
    ToolNotCalled: (("name", "name", True, "name"),),
    ToolOrder: (("first", "name", True, "first"), ("then", "name", True, "then")),
    MinToolCalls: (("name", "name", True, "name"), ("count", "count", True, "count")),
    MaxToolCalls: (("name", "name", True, "name"), ("count", "count", True, "count")),
    ResultContains: (("name", "name", True, "name"), ("substring", "text", True, "substring")),
    FinalAnswerContains: (("", "text", True, "text"),),
    FinalAnswerNotContains: (("", "text", True, "text"),),
    FinalAnswerMaxChars: (("", "count", True, "chars"),),
    HookCalled: (("name", "name", True, "name"), ("decision", "name", False, "decision")),
    NoError: (("", "true", True, ""),),
    Grader: (("name", "name", True, "name"), ("pass_below", "number", False, "pass_below")),
}
KINDS: Mapping[str, type[Expectation]] = {cls.kind: cls for cls in FIELDS}
"""The twelve by their YAML word, in the seed's order."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one assertion found. `index` = its position in `expect`; `passed` None: it could not be decided."""

    index: int
    kind: str
    passed: bool | None
    sentence: str

    def to_json(self) -> dict[str, Any]:
        return {"index": self.index, "kind": self.kind, "passed": self.passed, "sentence": self.sentence}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Finding:
        """The finding of our own document. ValueError, with the reason, if it is none."""
        try:
            return cls(document["index"], document["kind"], document["passed"], document["sentence"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"this is not the document of a finding: {error!r}") from error


def grader_name_fault(name: str) -> str | None:
    """Why `name` cannot be a grader's `<file>.<function>` (S6, A14), or None. Whether it exists is asked elsewhere."""
    file, dot, function = name.partition(".")
    if not dot:
        return "a grader is named <file>.<function>; there is no dot in it"
    if not file:
        return "a grader is named <file>.<function>; there is no file before the dot"
    if not function:
        return "a grader is named <file>.<function>; there is no function after the dot"
    if "." in function:
        return f'the name is read to the first dot, and the function "{function}" cannot have a dot in it'
    if not function.isidentifier():
        return f'"{function}" is not a name that a Python function can have'
    if function.startswith("_"):
        return f'"{function}" is private; a grader is a public function'
    if any(char in "/\\" or not char.isprintable() or char.isspace() for char in file):
        return f'"{file}" is not the name of a file in evals/graders/'
    return None


def expectation_from_document(document: Mapping[str, Any]) -> Expectation:
    """The assertion of a one-key mapping `{kind: args}` as `document()` wrote it. ValueError, with the reason."""
    if len(document) != 1:
        raise ValueError(f"an assertion is a mapping with one key, not {len(document)}")
    kind, value = next(iter(document.items()))
    cls = KINDS.get(kind)
    if cls is None:
        raise ValueError(f'"{kind}" is not an assertion')
    fields = FIELDS[cls]
    if fields[0][0] == "":
        _, wanted, _, attribute = fields[0]
        checked = _checked(kind, wanted, value)
        return cls(**({attribute: checked} if attribute else {}))
    if not isinstance(value, Mapping):
        raise ValueError(f"{kind} takes a mapping, not {value!r}")  # noqa: TRY004 - one error for nonsense
    unknown = set(value) - {key for key, *_ in fields}
    if unknown:
        raise ValueError(f"{kind} has no key {min(map(str, unknown))!r}")
    found: dict[str, Any] = {}
    for key, wanted, required, attribute in fields:
        if key in value:
            found[attribute] = _checked(f"{kind}.{key}", wanted, value[key])
        elif required:
            raise ValueError(f"{kind} has no {key!r}")
    return cls(**found)


def _checked(where: str, wanted: str, value: Any) -> Any:
    """The value, if it is of the wanted type; copied where it could be shared."""
    if wanted in ("name", "text"):
        if isinstance(value, str) and value:
            return value
    elif wanted == "count":
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    elif wanted == "number":
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    elif wanted == "true":
        if value is True:
            return True
    elif isinstance(value, Mapping):
        return copy.deepcopy(dict(value))
    raise ValueError(f"{where} cannot be {value!r}")
