"""What does `t.llm` need from whoever runs the graders?

A grader's process has no key and no network: its `t.llm` is answered by an async callable of the worker.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from evalfleet.errors import OperatorError, PlatformError


class JudgeUnavailable(PlatformError):
    """The judge model could not be asked, for reasons that are not the agent's (network, 429, 5xx): tried again, and
    then the attempt is missing (S26)."""


class JudgeNotConfigured(OperatorError):
    """No judge is configured, or it refused the key: the operator's; grading stops (S26)."""


@dataclass(frozen=True, slots=True)
class LlmAnswer:
    """`tokens`: whole number spent, all kinds together; `amount`: money as a plain decimal, None if not told."""

    text: str
    tokens: int = 0
    amount: str | None = None


# (prompt, model or None, seconds left) -> answer; raises JudgeUnavailable or JudgeNotConfigured.
LlmCall = Callable[[str, str | None, float], Awaitable[LlmAnswer]]
