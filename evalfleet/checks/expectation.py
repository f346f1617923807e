"""What may a scenario assert? The twelve, as the seed lists them, each a frozen value."""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, TypeAlias

from evalfleet.checks.place import Place


@dataclass(frozen=True, slots=True)
class _Asserted:
    """What the twelve share: the YAML word, and where it stands (not part of what is asserted)."""

    kind: ClassVar[str]
    holds: ClassVar[str]
    """When it passes, for docs/cases.md and for editors."""
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
    holds: ClassVar[str] = "some call of that tool carried `args` as a subset"
    name: str
    called_with: Mapping[str, Any] | None = field(default=None, hash=False)

    def args(self) -> Any:
        if self.called_with is None:
            return {"name": self.name}
        return {"name": self.name, "args": copy.deepcopy(dict(self.called_with))}


@dataclass(frozen=True, slots=True)
class ToolNotCalled(_Asserted):
    kind: ClassVar[str] = "tool_not_called"
    holds: ClassVar[str] = "that tool was never called"
    negative: ClassVar[bool] = True
    name: str

    def args(self) -> Any:
        return {"name": self.name}


@dataclass(frozen=True, slots=True)
class ToolOrder(_Asserted):
    """The first call of `first` comes before the first call of `then` (S20)."""

    kind: ClassVar[str] = "tool_order"
    holds: ClassVar[str] = "the first call of `first` came before the first call of `then`"
    first: str
    then: str

    def args(self) -> Any:
        return {"first": self.first, "then": self.then}


@dataclass(frozen=True, slots=True)
class MinToolCalls(_Asserted):
    kind: ClassVar[str] = "min_tool_calls"
    holds: ClassVar[str] = "it was called at least `count` times"
    name: str
    count: int

    def args(self) -> Any:
        return {"name": self.name, "count": self.count}


@dataclass(frozen=True, slots=True)
class MaxToolCalls(_Asserted):
    kind: ClassVar[str] = "max_tool_calls"
    holds: ClassVar[str] = "it was called at most `count` times"
    negative: ClassVar[bool] = True
    name: str
    count: int

    def args(self) -> Any:
        return {"name": self.name, "count": self.count}


@dataclass(frozen=True, slots=True)
class ResultContains(_Asserted):
    """Some result of `name` carried the substring; a result that is not text is compact JSON (S20)."""

    kind: ClassVar[str] = "result_contains"
    holds: ClassVar[str] = "some result of that tool carried the text"
    name: str
    substring: str

    def args(self) -> Any:
        return {"name": self.name, "substring": self.substring}


@dataclass(frozen=True, slots=True)
class FinalAnswerContains(_Asserted):
    kind: ClassVar[str] = "final_answer_contains"
    holds: ClassVar[str] = "the answer carried it"
    text: str

    def args(self) -> Any:
        return self.text


@dataclass(frozen=True, slots=True)
class FinalAnswerNotContains(_Asserted):
    kind: ClassVar[str] = "final_answer_not_contains"
    holds: ClassVar[str] = "the answer did not"
    negative: ClassVar[bool] = True
    text: str

    def args(self) -> Any:
        return self.text


@dataclass(frozen=True, slots=True)
class FinalAnswerMaxChars(_Asserted):
    """Length in code points (S19)."""

    kind: ClassVar[str] = "final_answer_max_chars"
    holds: ClassVar[str] = "the answer is no longer than that"
    negative: ClassVar[bool] = True
    chars: int

    def args(self) -> Any:
        return self.chars


@dataclass(frozen=True, slots=True)
class HookCalled(_Asserted):
    """The hook of the tree was asked and decided `decision`; None asks for "ran at all" (S22)."""

    kind: ClassVar[str] = "hook_called"
    holds: ClassVar[str] = "that hook of the tree was asked, and decided that"
    name: str
    decision: str | None = None

    def args(self) -> Any:
        return {"name": self.name} if self.decision is None else {"name": self.name, "decision": self.decision}


@dataclass(frozen=True, slots=True)
class NoError(_Asserted):
    kind: ClassVar[str] = "no_error"
    holds: ClassVar[str] = "every turn succeeded"

    def args(self) -> Any:
        return True


@dataclass(frozen=True, slots=True)
class Grader(_Asserted):
    """`evals/graders/<file>.py`, its public `function`; the score must reach `pass_below` where that is set (S25)."""

    kind: ClassVar[str] = "grader"
    holds: ClassVar[str] = "`evals/graders/<file>.py` passed it, with a score of at least `pass_below`"
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


class Field(NamedTuple):
    """A key that an assertion takes. `key` "": the assertion takes its value directly. `wants`: name, text, count,
    number, true or args. `attribute`: the dataclass's own name, "" for none. `says`: what it is, for editors."""

    key: str
    wants: str
    required: bool
    attribute: str
    says: str


_TOOL = Field("name", "name", True, "name", "The tool's name.")
FIELDS: Mapping[type[Expectation], tuple[Field, ...]] = {
    ToolCalled: (
        _TOOL,
        Field("args", "args", False, "called_with", "Arguments that the call must carry, among others it may have."),
    ),
    ToolNotCalled: (_TOOL,),
    ToolOrder: (
        Field("first", "name", True, "first", "The tool that has to come first."),
        Field("then", "name", True, "then", "The tool that has to come later."),
    ),
    MinToolCalls: (_TOOL, Field("count", "count", True, "count", "How often at least, from 1.")),
    MaxToolCalls: (_TOOL, Field("count", "count", True, "count", "How often at most, from 0.")),
    ResultContains: (
        _TOOL,
        Field("substring", "text", True, "substring", "The text, exactly; a result that is not text is compact JSON."),
    ),
    FinalAnswerContains: (Field("", "text", True, "text", "The text, exactly: letter case and white space count."),),
    FinalAnswerNotContains: (Field("", "text", True, "text", "The text, exactly: letter case and white space count."),),
    FinalAnswerMaxChars: (Field("", "count", True, "chars", "Unicode code points, not bytes."),),
    HookCalled: (
        Field("name", "name", True, "name", "The hook point."),
        Field("decision", "name", False, "decision", 'What it decided; leave it out for "ran at all".'),
    ),
    NoError: (Field("", "true", True, "", "Only `true` asserts something."),),
    Grader: (
        Field("name", "name", True, "name", "`<file>.<function>` in evals/graders."),
        Field("pass_below", "number", False, "pass_below", "A score below this fails, an equal one passes."),
    ),
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
    if fields[0].key == "":
        checked = _checked(kind, fields[0].wants, value)
        return cls(**({fields[0].attribute: checked} if fields[0].attribute else {}))
    if not isinstance(value, Mapping):
        raise ValueError(f"{kind} takes a mapping, not {value!r}")  # noqa: TRY004 - one error for nonsense
    unknown = set(value) - {field.key for field in fields}
    if unknown:
        raise ValueError(f"{kind} has no key {min(map(str, unknown))!r}")
    found: dict[str, Any] = {}
    for key, wants, required, attribute, _ in fields:
        if key in value:
            found[attribute] = _checked(f"{kind}.{key}", wants, value[key])
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
        if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max:
            return float(value)
    elif wanted == "true":
        if value is True:
            return True
    elif isinstance(value, Mapping):
        return copy.deepcopy(dict(value))
    raise ValueError(f"{where} cannot be {value!r}")
