"""What is `t`, the first argument of every grader? (S27)

`llm`, which the worker answers; `run_id`; and `history`, the turns of the scenario in the shape in which the platform
gives them. For the platform's other things one sentence says that they are not here.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, NoReturn, Protocol

from evalfleet.graders.inside import answers

HAS = "t has llm(prompt, model=None), run_id and history"
_PLATFORMS = frozenset({
    "tool", "store", "default", "harness_id", "harness_commit", "turn", "tokens", "budget", "model", "agent",
    "incoming", "system", "project_instructions", "skills", "output_schema", "spawned", "tool_calls", "max_iterations",
    "Deny", "Reject", "AskAgain", "Retry", "Switch", "Escalate", "Done", "USE_DEFAULT",
})  # fmt: skip
"""What a grader finds on the platform's `t`, and a self-hosted harness has not."""


class Line(Protocol):
    """The private line to the keeper."""

    lock: threading.Lock

    @property
    def is_mine(self) -> bool: ...
    def say(self, document: Any) -> None: ...
    def hear(self) -> Any: ...


class JudgeText(str):
    """The judge's answer: a text, with `.tokens` (whole number) spent on it."""

    __slots__ = ("tokens",)
    tokens: int

    def __new__(cls, text: str, tokens: int) -> JudgeText:
        made = super().__new__(cls, text)
        made.tokens = tokens
        return made

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        """For pickle and copy it is its text: this class can be imported nowhere else."""
        return str, (str.__str__(self),)


class History(list):  # type: ignore[type-arg]  # `list[…]` is no class before Python 3.9
    """The turns of the scenario, oldest first: `{"tag": str, "role": "user" | "assistant", "text": str}` each."""

    __slots__ = ()

    @property
    def tags(self) -> list[str]:
        return [turn["tag"] for turn in self]

    def tail(self, n: int | None = None) -> list[dict[str, Any]]:
        """The last `n` of them, all of them without a number."""
        return list(self) if n is None else list(self[-n:] if n > 0 else [])

    def get(self, tag: str) -> dict[str, Any] | None:
        """The one with this tag."""
        return next((turn for turn in self if turn["tag"] == tag), None)

    def __reduce__(self) -> tuple[type[list[Any]], tuple[list[dict[str, Any]]]]:
        return list, (list(self),)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"t.history has no {name!r}: a self-hosted harness has a list to read, with tail(n), tags, get(tag)"
        )


class Tools:
    """`t`. Only the process that it was given to may call `llm`."""

    __slots__ = ("__line", "history", "run_id")

    def __init__(self, line: Line, about: Mapping[str, Any], run: Mapping[str, Any]) -> None:
        """`about` as `judging.about` makes it: a text that is None there is the run's final answer."""
        self.__line = line
        self.run_id: str = about.get("run_id") or ""
        self.history = History(
            {**turn, "text": run["final_answer"] if turn["text"] is None else turn["text"]}
            for turn in about.get("history", ())
        )

    def llm(self, prompt: str, model: str | None = None) -> JudgeText:
        """Ask the judge model; its answer as text, with `.tokens`."""
        if not isinstance(prompt, str):
            raise TypeError(f"t.llm(prompt, model=None): prompt is text, not {answers.describe(prompt)}")
        if model is not None and not isinstance(model, str):
            raise TypeError(f"t.llm(prompt, model=None): model is text or None, not {answers.describe(model)}")
        if not self.__line.is_mine:
            raise RuntimeError("t.llm works in the process that the grader was called in, not in one it started")
        with self.__line.lock:
            self.__line.say({"llm": {"prompt": answers.clean(prompt), "model": model}})
            heard = self.__line.hear()
        return JudgeText(heard["text"], heard["tokens"])

    def __getattr__(self, name: str) -> NoReturn:
        what = "is the platform's, and a self-hosted harness has none" if name in _PLATFORMS else "is not there"
        raise AttributeError(f"t.{name} {what}; {HAS}")
