"""What does `t.llm` need from whoever runs the graders?

A grader's process has no key and no network: its `t.llm` is answered by an async callable of the worker.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evalfleet.errors import EvalfleetError, JudgeNotConfigured, JudgeUnavailable, ProblemAnswer

if TYPE_CHECKING:
    from evalfleet.contract.client import Client

__all__ = ["JudgeNotConfigured", "JudgeUnavailable", "LlmAnswer", "LlmCall", "platform_judge"]

OPERATORS = frozenset({401, 402, 403, 404, 422})
"""Of a judge's refusals, those that asking again changes nothing about (S26)."""


@dataclass(frozen=True, slots=True)
class LlmAnswer:
    """`tokens`: whole number spent, all kinds together; `amount`: money as a plain decimal, None if not told."""

    text: str
    tokens: int = 0
    amount: str | None = None


# (prompt, model or None, seconds left) -> answer; raises JudgeUnavailable or JudgeNotConfigured.
LlmCall = Callable[[str, str | None, float], Awaitable[LlmAnswer]]


def platform_judge(client: Client, run_id: str) -> LlmCall:
    """The judge of the platform, spent on the run under test (wire.md, "The judge call")."""

    async def ask(prompt: str, model: str | None, seconds: float) -> LlmAnswer:
        try:
            answer = await client.judge(run_id, prompt, model, deadline=time.monotonic() + seconds)
        except ProblemAnswer as problem:
            if problem.status in OPERATORS:
                raise JudgeNotConfigured(f"the judge refused: {problem.detail}") from problem
            raise JudgeUnavailable(str(problem)) from problem
        except EvalfleetError as error:
            raise JudgeUnavailable(error.message) from error
        tokens, amount = answer.get("tokens"), answer.get("amount")
        return LlmAnswer(
            text=str(answer["text"]),
            tokens=tokens if isinstance(tokens, int) else 0,
            amount=None if amount is None else str(amount),
        )

    return ask
