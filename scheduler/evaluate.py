"""How does `evalfleet eval` do its job on one machine, from a tree to a summary and an exit code?

The same parts as on a fleet, started here: an embedded Valkey, the server on SQLite (or a platform, `--target`), one
worker with all three queues. This module joins them; what each does is in its own room. Nothing is printed: a
`Reporter` shows progress, the caller renders the `Result`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from evalfleet.artifact import find, finish, open_artifact, read_plan
from evalfleet.contract.client import Client
from evalfleet.errors import (
    CredentialError,
    EvalfleetError,
    OperatorError,
    PlatformError,
    ProblemAnswer,
    TargetUnreachable,
    UsageError,
)
from evalfleet.graders.bundle import Bundle
from evalfleet.ledger import Ledger, Progress
from evalfleet.plan import Plan
from evalfleet.results import FolderResults, results_store
from evalfleet.settings import Broker, Settings
from evalfleet.tree import TreeConfig
from scheduler.dispatch import Dispatcher, Ended
from scheduler.drive import drive_to_end
from scheduler.embedded import Endpoints, Stack, Target
from scheduler.interrupt import Interrupts
from scheduler.prepare import Prepared
from scheduler.publisher import CeleryPublisher
from scheduler.submissions import Submission, Submissions
from scheduler.submit import Opened, books, open_submission, put_bundle, put_on_books, reopen
from scheduler.summary import Summary, exit_code, summarize

CONTACT_S = 15.0
"""A target that does not answer its first question within this many seconds is not there."""


class Reporter(Protocol):
    """Who shows how far it is. Called from the driving thread only."""

    def note(self, text: str) -> None: ...
    def warn(self, text: str) -> None: ...
    def progress(self, progress: Progress, total: int, note: str) -> None: ...
    def done(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Options:
    """What the flags of `eval` and `resume` say beside the selection."""

    state: Path | None = None
    results: Path | None = None
    fresh: bool = False
    allow_flaky: bool = False
    leave_running: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Result:
    """How it ended: what was found, the exit code (S36), and in words what to do if it is not over."""

    summary: Summary
    exit_code: int
    ended: Ended
    plan: Plan


def state_folder(config: TreeConfig, options: Options) -> Path:
    return (options.state or config.root / ".evalfleet").resolve()


def results_folder(config: TreeConfig, options: Options) -> Path:
    return (options.results or config.results_folder).resolve()


def evaluate(prepared: Prepared, options: Options, reporter: Reporter, *, words: Sequence[str] = ()) -> Result:
    """Run what was prepared. Raises EvalfleetError for what ends before anything is judged."""
    config = prepared.config
    store = results_store(results_folder(config, options))
    submissions = Submissions(state_folder(config, options))

    async def open_(client: Client) -> Opened:
        plan = await with_harness(client, prepared.plan)
        return await open_submission(
            client,
            plan,
            prepared.pin,
            store=store,
            submissions=submissions,
            words=words,
            files=prepared.files,
            fresh=options.fresh,
            own_server=plan.target.base_url is None,
        )

    return _run(config, prepared.plan, prepared.bundle, options, reporter, store, submissions, open_)


def resume(config: TreeConfig, record: Submission, options: Options, reporter: Reporter, *, commit: str) -> Result:
    """Go on with a submission as it was planned; on a complete one run nothing and give the stored result (S34)."""
    folder = Path(record.results) if record.results else results_folder(config, options)
    store = results_store(folder if folder.is_absolute() else config.root / folder)
    artifact = find(store, record.id)
    if artifact is None:
        raise UsageError(f"{store.shown()} holds no artifact of {record.id}; --results DIR says where it is")
    plan = read_plan(store, artifact)
    submissions = Submissions(state_folder(config, options))
    if record.status != "running":
        summary = _summary(plan, store, (), {}, None)
        code = exit_code(summary, allow_flaky=options.allow_flaky)
        return Result(summary, code, Ended(record.status), plan)
    if plan.target.base_url is None and commit != plan.commit:
        raise OperatorError(
            f"the harness moved from {plan.commit} to {commit}: {record.id} is pinned to the former; "
            "check that commit out, or `evalfleet eval` starts anew"
        )

    async def open_(client: Client) -> Opened:
        return await reopen(client, plan, record)

    return _run(config, plan, None, replace(options, results=store.root), reporter, store, submissions, open_)


def _run(
    config: TreeConfig,
    plan: Plan,
    bundle: Bundle | None,
    options: Options,
    reporter: Reporter,
    store: FolderResults,
    submissions: Submissions,
    open_: Callable[[Client], Awaitable[Opened]],
) -> Result:
    began = time.monotonic()
    with Interrupts() as interrupts, _stack(config, plan, options, store, reporter) as (stack, endpoints, ledger):

        async def opening() -> Opened:
            async with _client(endpoints) as client:
                return await open_(client)

        opened = _first_contact(opening, plan, endpoints)
        put_bundle(store, opened.plan, bundle)
        if opened.note:
            reporter.note(opened.note)
        put_on_books(ledger, opened, store)
        ended = _drive(opened, ledger, store, stack, endpoints, interrupts, options, reporter)
        reporter.done()
        documents = _read_evaluations(opened, endpoints, reporter)
        reasons = missing_reasons(opened.plan, ended)
        summary = _summary(opened.plan, store, documents, reasons, time.monotonic() - began)
        code = exit_code(
            summary,
            allow_flaky=options.allow_flaky,
            signal=interrupts.first if ended.state != "completed" else None,
        )
        finish(store, opened.plan.artifact, summary.stored(code))
        if documents and all(d["status"] == "completed" for d in documents):
            submissions.set_status(opened.plan.id, "completed")
        elif documents and any(d["status"] == "cancelled" for d in documents):
            submissions.set_status(opened.plan.id, "cancelled")
        with contextlib.suppress(EvalfleetError):  # the broker is ours and ends now anyway
            ledger.forget(opened.plan.id)
        return Result(summary, code, ended, opened.plan)


@contextlib.contextmanager
def _stack(
    config: TreeConfig, plan: Plan, options: Options, store: FolderResults, reporter: Reporter
) -> Iterator[tuple[Stack, Endpoints, Ledger]]:
    ledgers: list[Ledger] = []

    def on_death(part: str, pid: int) -> None:
        """A supervisor knows at once: nobody needs to wait for a heartbeat to run out."""
        if part != "worker":
            return
        for ledger in ledgers:
            try:
                for worker in ledger.workers():
                    if worker.get("pid") == pid and worker.get("host") == socket.gethostname():
                        ledger.declare_dead(worker["incarnation"])
            except EvalfleetError as error:
                reporter.warn(f"the worker died ({pid}) and the broker could not be told: {error}")

    def on_restart(part: str, _pid: int) -> None:
        reporter.warn(f"the {part} died and was restarted; what it did is done again")

    stack = Stack(
        config.root,
        state=options.state,
        command=f"evalfleet eval (pid {os.getpid()})",
        on_death=on_death,
        on_restart=on_restart,
    )
    target = None
    if plan.target.base_url is not None:
        settings = Settings.from_env(options.environment)
        target = Target(plan.target.base_url, settings.require_api_key())
    with stack:
        endpoints = stack.start(
            commit=plan.commit,
            concurrency=plan.concurrency,
            results=store.root,
            with_server=target is None,
            target=target,
            env=options.environment,
        )
        ledger = Ledger(endpoints.redis_url)
        ledgers.append(ledger)
        try:
            ledger.open_epoch(mine=True)
            yield stack, endpoints, ledger
        finally:
            ledger.close()


def _client(endpoints: Endpoints) -> Client:
    return Client(endpoints.base_url, endpoints.token, retry_for=20.0)


def _first_contact(opening: Callable[[], Awaitable[Opened]], plan: Plan, endpoints: Endpoints) -> Opened:
    """What goes wrong before the first run is said in the operator's words."""

    async def main() -> Opened:
        return await opening()

    try:
        return asyncio.run(main())
    except ProblemAnswer as problem:
        if problem.status == 401:
            name = "SPLOX_API_KEY" if plan.target.base_url is not None else "EVALFLEET_TOKEN"
            raise CredentialError(f"{endpoints.base_url} refuses {name}: {problem.detail}") from problem
        if problem.status in {403, 404, 422} and plan.target.base_url is not None:
            raise OperatorError(
                f"{endpoints.base_url} refuses this evaluation: {problem}; look at [target]"
            ) from problem
        raise
    except TargetUnreachable as away:
        raise TargetUnreachable(f"{endpoints.base_url} is not there: {away}") from away


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


def _drive(
    opened: Opened,
    ledger: Ledger,
    store: FolderResults,
    stack: Stack,
    endpoints: Endpoints,
    interrupts: Interrupts,
    options: Options,
    reporter: Reporter,
) -> Ended:
    plan = opened.plan
    total = sum(1 for _ in plan.all_attempts())

    def reload() -> dict[Any, str]:
        return books(plan, asyncio.run(_documents(plan, endpoints)), store)

    publisher = CeleryPublisher(Broker.parse(endpoints.redis_url), ledger)
    try:
        return drive_to_end(
            Dispatcher(ledger, plan, publisher, reload=reload),
            interrupts,
            tick=lambda progress, note: reporter.progress(progress, total, note),
            check=stack.check,
            leave_running=options.leave_running,
        )
    except EvalfleetError as error:
        return Ended("stopped", error.message, type(error).__name__)
    finally:
        publisher.close()


async def _documents(plan: Plan, endpoints: Endpoints) -> tuple[Mapping[str, Any], ...]:
    async with _client(endpoints) as client:
        return tuple([await client.get_evaluation(e.id) for e in plan.evaluations if e.id is not None])


def _read_evaluations(opened: Opened, endpoints: Endpoints, reporter: Reporter) -> tuple[Mapping[str, Any], ...]:
    try:
        return asyncio.run(_documents(opened.plan, endpoints))
    except PlatformError as error:
        reporter.warn(f"the evaluations could not be read at the end: {error}")
        return ()


def missing_reasons(plan: Plan, ended: Ended) -> dict[tuple[str, str, int], str]:
    """Why attempts without evidence are missing, as far as the ledger knows."""
    given_up = ended.given_up or {}
    reasons = {}
    for attempt in plan.all_attempts():
        why = given_up.get(str(attempt)) or given_up.get(str(attempt.conversation))
        text = why["reason"] if why else (ended.reason if ended.state == "stopped" else "")
        if text:
            reasons[(plan.cases[attempt.case].name, plan.scenario(attempt).id, attempt.trial)] = text
    return reasons


def _summary(
    plan: Plan,
    store: FolderResults,
    documents: Sequence[Mapping[str, Any]],
    reasons: Mapping[tuple[str, str, int], str],
    seconds: float | None,
) -> Summary:
    result = open_artifact(store, plan.artifact)
    return summarize(
        plan,
        result.lines(),
        artifact=store.shown(plan.artifact),
        evaluations=documents,
        reasons=reasons,
        seconds=seconds,
    )
