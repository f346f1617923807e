"""What does `t.llm` need from whoever runs the graders?

A grader's process has no key and no network: its `t.llm` is answered by an async callable of the worker. A refusal has
one of three owners (S24, S26): the operator (no judge, its key, its money: grading stops), this one call (its prompt or
its model: the grader's error), and whoever keeps the judge running (everything else: asked again, then missing).
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evalfleet.errors import EvalfleetError, JudgeNotConfigured, JudgeUnavailable, ProblemAnswer, PromptRefused
from evalfleet.money import currency_of

if TYPE_CHECKING:
    from evalfleet.contract.client import Client

__all__ = [
    "JudgeNotConfigured", "JudgeUnavailable", "LlmAnswer", "LlmCall", "PromptRefused", "judge_at", "platform_judge",
    "refusal",
]  # fmt: skip

_OPERATORS_STATUS = frozenset({401, 402, 403})
_OPERATORS_CODES = frozenset({"judge_not_configured", "judge_refused"})
_THIS_CALLS_STATUS = frozenset({400, 413, 422})


@dataclass(frozen=True, slots=True)
class LlmAnswer:
    """`tokens`: whole number spent, all kinds together; `amount`: money in `currency` as a plain decimal, None if not
    told."""

    text: str
    tokens: int = 0
    amount: str | None = None
    currency: str | None = None


# (prompt, model or None, seconds until nobody waits any more) -> answer. One try; raises JudgeUnavailable,
# JudgeNotConfigured or PromptRefused.
LlmCall = Callable[[str, str | None, float], Awaitable[LlmAnswer]]


def refusal(problem: ProblemAnswer) -> JudgeNotConfigured | PromptRefused | JudgeUnavailable:
    """Whose trouble a judge's problem document is.

    A 404 is nobody's fault that can be named (this run is not there any more, or the platform has no judge at all): it
    leaves the attempt missing, and ten in a row pause grading with that sentence."""
    if problem.status in _OPERATORS_STATUS or problem.code in _OPERATORS_CODES:
        return JudgeNotConfigured(f"the judge refused: {problem.detail}")
    if problem.status in _THIS_CALLS_STATUS:
        return PromptRefused(f"the judge refused what it was asked: {problem.detail}")
    said = problem.detail if problem.detail.startswith("the judge") else str(problem)  # our own server names the judge
    return JudgeUnavailable(said, retry_after=problem.retry_after)


def judge_at(address: str) -> str:
    """Who answers `t.llm`, for a sentence."""
    return f"the judge at {address}" if address else "the judge"


def platform_judge(client: Client, run_id: str) -> LlmCall:
    """The judge of the platform, spent on the run under test (wire.md, "The judge call")."""

    async def ask(prompt: str, model: str | None, seconds: float) -> LlmAnswer:
        try:
            answer = await client.judge(run_id, prompt, model, deadline=time.monotonic() + seconds)
        except ProblemAnswer as problem:
            raise refusal(problem) from problem
        except EvalfleetError as error:
            raise JudgeUnavailable(error.message) from error
        tokens, amount = answer.get("tokens"), answer.get("amount")
        return LlmAnswer(
            text=str(answer["text"]),
            tokens=tokens if isinstance(tokens, int) else 0,
            amount=None if amount is None else str(amount),
            currency=currency_of(answer.get("currency")) or None,
        )

    return ask
