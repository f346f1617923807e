"""How is one submission carried through a running stack: opened, driven, summed up, its artifact finished?"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from evalfleet.artifact import finish, open_artifact
from evalfleet.contract.client import Client
from evalfleet.credentials import token_variable
from evalfleet.errors import (
    CredentialError,
    EvalfleetError,
    OperatorError,
    PlatformError,
    ProblemAnswer,
    StorageError,
    TargetUnreachable,
)
from evalfleet.givenup import RECORD_REFUSED, reason_of
from evalfleet.graders.bundle import Bundle
from evalfleet.ledger import Ledger
from evalfleet.plan import Attempt, Plan
from evalfleet.results import FolderResults
from evalfleet.settings import Broker
from scheduler.allowed import are_over, end_evaluations, ended_by_itself
from scheduler.dispatch import Books, Dispatcher, Ended
from scheduler.drive import drive_to_end
from scheduler.embedded import Endpoints, Stack
from scheduler.enough import Enough
from scheduler.evaluate import Options, Reporter, Result
from scheduler.interrupt import Interrupts
from scheduler.publisher import CeleryPublisher
from scheduler.submissions import Submissions
from scheduler.submit import Opened, books, put_bundle, put_graders, put_on_books
from scheduler.summary import Summary, exit_code, summarize

CONTACT_S = 6.0
"""A target that does not answer its first question within this many seconds is not there."""


@dataclass(frozen=True, slots=True)
class Conductor:
    """One command's hold on the parts below it."""

    stack: Stack
    endpoints: Endpoints
    ledger: Ledger
    store: FolderResults
    submissions: Submissions
    interrupts: Interrupts
    options: Options
    reporter: Reporter

    def conduct(
        self, plan: Plan, bundle: Bundle | None, open_: Callable[[Client], Awaitable[Opened]], began: float
    ) -> Result:
        """From the first question to the target to the finished artifact. `began`: `time.monotonic()` of the start."""
        opened = self._first_contact(plan, open_)
        put_bundle(self.store, opened.plan, bundle)
        if opened.note:
            self.reporter.note(opened.note)
        put_on_books(self.ledger, opened, self.store)
        ended = self._drive(opened)
        self.reporter.done()
        documents = self._read_evaluations(opened)
        if documents and all(d["status"] == "completed" for d in documents):
            ended = Ended("completed")  # also when a signal came while the last attempts were being recorded
        summary = summary_of(opened.plan, self.store, documents, ended, time.monotonic() - began)
        if self._may_end(ended, summary):
            documents = self._end(documents)
            ended_so = summary_of(opened.plan, self.store, documents, ended, time.monotonic() - began)
            summary = replace(ended_so, missing_allowed=are_over(documents))
        compared = None if self.options.baseline is None else self.options.baseline.against(opened.plan, summary)
        code = exit_code(
            summary,
            allow_flaky=self.options.allow_flaky,
            regressed=compared is not None and compared.is_lost,
            fault=ended.is_our_fault,
            stopped=ended.is_by_limit,
            signal=self.interrupts.first if ended.state != "completed" else None,
        )
        try:
            comparison = {} if compared is None else {"comparison": compared.document()}
            finish(self.store, opened.plan.artifact, summary.stored(code) | comparison)
        except StorageError as error:  # the segments are the evidence; the result is known and must be told
            self.reporter.warn(f"the artifact is not finished: {error.message}")
            code = code or error.exit_code
        if documents and all(d["status"] == "completed" for d in documents):
            self.submissions.set_status(opened.plan.id, "completed")
        elif documents and any(d["status"] == "cancelled" for d in documents):
            self.submissions.set_status(opened.plan.id, "cancelled")
        with contextlib.suppress(EvalfleetError):  # the broker is ours and ends now anyway
            self.ledger.forget(opened.plan.id)
        return Result(summary, code, ended, opened.plan, compared)

    def _client(self) -> Client:
        return Client(self.endpoints.base_url, self.endpoints.token, retry_for=20.0)

    def _first_contact(self, plan: Plan, open_: Callable[[Client], Awaitable[Opened]]) -> Opened:
        """What goes wrong before the first run is said in the operator's words."""

        async def main() -> Opened:
            async with self._client() as client:
                return await open_(client)

        where = self.endpoints.base_url
        try:
            return asyncio.run(main())
        except ProblemAnswer as problem:
            if problem.status == 401:
                name = token_variable(plan.target.account)
                raise CredentialError(f"{where} refuses {name}: {problem.detail}") from problem
            if problem.status in {403, 404, 422} and plan.target.base_url is not None:
                raise OperatorError(f"{where} refuses this evaluation: {problem}; look at [target]") from problem
            raise
        except TargetUnreachable as away:
            raise TargetUnreachable(f"{where} is not there: {away}") from away

    def _drive(self, opened: Opened) -> Ended:
        plan = opened.plan
        total = sum(1 for _ in plan.all_attempts())

        def reload() -> Books:
            put_graders(self.ledger, self.store, plan)
            return books(plan, asyncio.run(self._documents(plan)), self.store)

        publisher = CeleryPublisher(Broker.parse(self.endpoints.redis_url), self.ledger, plan.target.account)
        try:
            return drive_to_end(
                Dispatcher(self.ledger, plan, publisher, reload=reload, enough=self._enough(plan)),
                self.interrupts,
                tick=lambda progress, note: self.reporter.progress(progress, total, note),
                check=self.stack.check,
                leave_running=self.options.leave_running,
            )
        except EvalfleetError as error:
            return Ended("stopped", error.message, type(error).__name__)
        finally:
            publisher.close()

    def _may_end(self, ended: Ended, summary: Summary) -> bool:
        """Is what is missing allowed to be, now that the run is over (S18)?"""
        allowed = self.options.allow_missing
        if allowed is None or self.interrupts.first is not None or not allowed.covers(summary):
            return False
        return ended_by_itself(ended, self.ledger.progress(summary.submission))

    def _end(self, documents: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
        async def main() -> tuple[Mapping[str, Any], ...]:
            async with self._client() as client:
                return await end_evaluations(client, documents)

        try:
            return asyncio.run(main())
        except PlatformError as error:
            self.reporter.warn(f"the evaluations could not be ended without what is missing: {error}")
            return tuple(documents)

    def _enough(self, plan: Plan) -> Enough | None:
        most = self.options.max_failures
        return None if most is None else Enough(plan, most, allow_flaky=self.options.allow_flaky)

    async def _documents(self, plan: Plan) -> tuple[Mapping[str, Any], ...]:
        async with self._client() as client:
            return tuple([await client.get_evaluation(e.id) for e in plan.evaluations if e.id is not None])

    def _read_evaluations(self, opened: Opened) -> tuple[Mapping[str, Any], ...]:
        try:
            return asyncio.run(self._documents(opened.plan))
        except PlatformError as error:
            self.reporter.warn(f"the evaluations could not be read at the end: {error}")
            return ()


async def with_harness(client: Client, plan: Plan) -> Plan:
    """The harness's id: the embedded server gives it by name; a platform's stands in `[target]`, and its newest version
    must be the commit that the plan is pinned to (S33)."""
    if plan.target.base_url is not None:
        document = await client.harness(plan.target.harness_id, deadline=time.monotonic() + CONTACT_S)
        newest = next((str(version["commit"]) for version in document.get("versions") or ()), None)
        if newest != plan.commit:
            raise OperatorError(
                f"the platform runs {newest}, this tree is {plan.commit}: push it, or --commit {newest}"
            )
        return plan
    async for entry in client.list_harnesses():
        if entry["name"] == plan.target.harness:
            return replace(plan, target=replace(plan.target, harness_id=entry["id"]))
    raise PlatformError(f"the server at {client.base_url} holds no harness {plan.target.harness!r}")


def missing_reasons(plan: Plan, ended: Ended) -> dict[tuple[str, str, int], str]:
    """Why attempts without evidence are missing, as far as the ledger knows."""
    given_up = ended.given_up or {}
    reasons = {}
    for attempt in plan.all_attempts():
        text = reason_of(plan, attempt, given_up) or (ended.reason if ended.state == "stopped" else "")
        if text:
            reasons[(plan.cases[attempt.case].name, plan.scenario(attempt).id, attempt.trial)] = text
    return reasons


def refused_records(plan: Plan, ended: Ended) -> dict[tuple[str, str, int], str]:
    """Attempts with evidence that the server refuses to record, and why."""
    return {
        (plan.cases[attempt.case].name, plan.scenario(attempt).id, attempt.trial): str(entry["reason"])
        for name, entry in (ended.given_up or {}).items()
        if entry.get("code") == RECORD_REFUSED
        for attempt in (Attempt.parse(name),)
    }


def summary_of(
    plan: Plan,
    store: FolderResults,
    documents: Sequence[Mapping[str, Any]],
    ended: Ended,
    seconds: float | None,
) -> Summary:
    result = open_artifact(store, plan.artifact)
    return summarize(
        plan,
        result.lines(),
        artifact=store.shown(plan.artifact),
        evaluations=documents,
        reasons=missing_reasons(plan, ended),
        refused=refused_records(plan, ended),
        seconds=seconds,
    )
