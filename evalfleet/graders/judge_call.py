"""What does `t.llm` need from whoever runs the graders?

A grader's process has no key and no network: its `t.llm` is answered by an async callable of the worker.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from evalfleet.errors import JudgeNotConfigured, JudgeUnavailable

__all__ = ["JudgeNotConfigured", "JudgeUnavailable", "LlmAnswer", "LlmCall"]


@dataclass(frozen=True, slots=True)
class LlmAnswer:
    """`tokens`: whole number spent, all kinds together; `amount`: money as a plain decimal, None if not told."""

    text: str
    tokens: int = 0
    amount: str | None = None


# (prompt, model or None, seconds left) -> answer; raises JudgeUnavailable or JudgeNotConfigured.
LlmCall = Callable[[str, str | None, float], Awaitable[LlmAnswer]]
