"""How are graders run again over trials that an artifact holds? (S32, `score --regrade`)

The same pool, cage, limits and judgement as on a worker, in this process. `t.llm` asks whom it asked when the trial was
played: the platform, through the run under test; or, where the runs were our own server's, the model of `[judge]`
directly, which needs neither that server nor its runs. Trouble of the judge's is treated as on a worker (S26), but ten
gradings in a row without a judge stop it: nobody waits for hours for a command.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from evalfleet.checks.outcome import GraderAnswer
from evalfleet.contract.client import Client
from evalfleet.errors import (
    ConfigError,
    CredentialError,
    EvalfleetError,
    GraderRefused,
    JudgeNotConfigured,
    JudgeUnavailable,
    ProblemAnswer,
    UnfitHost,
)
from evalfleet.graders.judge_call import LlmAnswer, LlmCall, judge_at, platform_judge, refusal
from evalfleet.graders.judging import MORE_GRADES, Grade, grade, needs_graders
from evalfleet.graders.pool import GraderPool, GraderSettings
from evalfleet.ledger import JUDGE_ROW, Progress
from evalfleet.plan import Plan
from evalfleet.server.judge import Judge
from evalfleet.settings import Settings
from evalfleet.tree import TreeConfig, harness_files
from scheduler.evaluate import contact_of
from scheduler.prepare import judge_address
from scheduler.score import Played, Today, judged_line
from scheduler.validate import look

AT_ONCE = 4

Line = Mapping[str, Any]
GraderFor = Callable[[Line], Grade]
"""A line → how its graders are called."""


class Reporter(Protocol):
    def progress(self, progress: Progress, total: int, note: str, *, done: str = "recorded") -> None: ...
    def done(self) -> None: ...


@dataclass(slots=True)
class Regrading:
    """Grades again, several trials at once. `stopped`: why it did not come to its end, or ""."""

    today: Today
    grader_for: GraderFor
    at_once: int = AT_ONCE
    stopped: str = ""
    counts: dict[str, int] = field(default_factory=dict)
    running: int = 0
    _row: int = 0

    async def lines(self, lines: Iterable[Line]) -> AsyncGenerator[tuple[Line, Line], None]:
        """(as it was, as it is now) for each line, in the order they are done; no more once it is stopped."""
        tasks: dict[asyncio.Task[Line], Line] = {}
        try:
            for line in lines:
                played = self.today.played(line)
                if played is None or not needs_graders(played.scenario, played.trial, played.meaning):
                    yield line, self.today.judged(line)
                    continue
                while len(tasks) >= self.at_once and not self.stopped:
                    for was, now in await self._finished(tasks):
                        yield was, now
                if self.stopped:
                    return
                tasks[asyncio.create_task(self._graded(line, played))] = line
                self.running = len(tasks)
            while tasks and not self.stopped:
                for was, now in await self._finished(tasks):
                    yield was, now
        finally:
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)

    async def _finished(self, tasks: dict[asyncio.Task[Line], Line]) -> list[tuple[Line, Line]]:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        found = []
        for task in done:
            line = tasks.pop(task)
            try:
                found.append((line, task.result()))
            except (JudgeNotConfigured, JudgeUnavailable, UnfitHost) as error:
                self.stopped = self.stopped or f"grading stopped: {error.message}"
        self.running = len(tasks)
        for _, now in found:
            self.counts[now["outcome"]] = self.counts.get(now["outcome"], 0) + 1
        return found

    async def _graded(self, line: Line, played: Played) -> Line:
        call = self.grader_for(line)
        for left in reversed(range(1 + MORE_GRADES)):
            graded = await grade(played.scenario, played.trial, played.meaning, call)
            if graded.stopped is not None or graded.judgement is None:
                raise JudgeNotConfigured(graded.stopped or "grading was stopped")
            if graded.judgement.outcome != "missing":
                self._row = 0 if graded.judge_answered else self._row
                return _with_answers(judged_line(line, played, graded.judgement), graded.answers)
            self._row += 1
            if self._row >= JUDGE_ROW:
                raise JudgeUnavailable(f"{JUDGE_ROW} gradings in a row had no judge: {graded.judgement.reason}")
            if not left:
                missing = judged_line(line, played, graded.judgement) | {"code": "judge_unavailable"}
                return _with_answers(missing, graded.answers)
        raise AssertionError  # the last turn returns


def _with_answers(judged: dict[str, Any], answers: Iterable[GraderAnswer]) -> dict[str, Any]:
    if judged["outcome"] != "missing":
        judged.pop("code", None)
    at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return judged | {"graders": [answer.to_json() for answer in answers], "at": at}


def check_today(config: TreeConfig, today: Today, plan: Plan) -> set[str]:
    """The graders that will be called. GraderRefused, before any is, where one of them cannot be (S6)."""
    calls = [
        (grader.name, str(grader.place or scenario.place))
        for case in plan.cases
        for planned in case.scenarios
        if planned.evaluation is not None and (scenario := today.scenario(case.name, planned.scenario.id)) is not None
        for grader in scenario.graders
    ]
    problems = look(config, calls, harness_files(config)) if calls else []
    if problems:
        raise GraderRefused("\n".join(problem.render() for problem in problems))
    return {name for name, _ in calls}


@contextlib.asynccontextmanager
async def grader_pool(
    plan: Plan, config: TreeConfig, folder: Path, settings: Settings, environment: Mapping[str, str] = os.environ
) -> AsyncIterator[GraderFor]:
    """How the graders of each line are called: in the unpacked bundle at `folder`, with the plan's settings."""
    assert plan.graders is not None
    graders = GraderSettings(plan.graders.python, plan.graders.env, plan.graders.network, plan.graders.memory_mb)
    pool = GraderPool(workers=settings.graders_at_once or AT_ONCE)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(pool.aclose)
        judge_for = await _judges(plan, config, settings, environment, stack)
        judge = judge_at(judge_address(config, plan.target))

        def grader_for(line: Mapping[str, Any]) -> Grade:
            llm = judge_for(line)

            async def call(name: str, case: dict[str, Any], run: dict[str, Any], about: dict[str, Any]) -> GraderAnswer:
                return await pool.grade(folder, graders, name, case, run, llm, about=about, judge=judge)

            return call

        yield grader_for


async def _judges(
    plan: Plan,
    config: TreeConfig,
    settings: Settings,
    environment: Mapping[str, str],
    stack: contextlib.AsyncExitStack,
) -> Callable[[Mapping[str, Any]], LlmCall | None]:
    if plan.target.base_url is not None:
        client = await stack.enter_async_context(Client(*contact_of(plan, config, settings)))
        return lambda line: platform_judge(client, str(line["run_id"])) if line.get("run_id") else None
    judge = Judge(config.judge, environ=environment)
    stack.push_async_callback(judge.aclose)
    ask = own_judge(judge)
    return lambda _line: ask


def own_judge(judge: Judge) -> LlmCall:
    """The model of `[judge]`, asked as our server asks it."""

    async def ask(prompt: str, model: str | None, seconds: float) -> LlmAnswer:
        try:
            async with asyncio.timeout(seconds):
                answer = await judge.answer(prompt, model)
        except TimeoutError as error:
            raise JudgeUnavailable("the judge did not answer in time") from error
        except (ConfigError, CredentialError) as error:
            raise JudgeNotConfigured(error.message) from error
        except ProblemAnswer as problem:
            raise refusal(problem) from problem
        except EvalfleetError as error:
            raise JudgeUnavailable(error.message) from error
        return LlmAnswer(answer.text, answer.tokens, answer.amount)

    return ask
