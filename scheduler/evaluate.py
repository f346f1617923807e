"""How does `evalfleet eval` do its job on one machine, from a tree to a summary and an exit code?

The same parts as on a fleet, started here: an embedded Valkey, the server on SQLite (or a platform, `--target`), one
worker with all three queues. This module starts them; `scheduler.conduct`, imported while they boot, drives the
submission through them. Nothing is printed: a `Reporter` shows progress, the caller renders the `Result`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from evalfleet.artifact import find, finish, open_artifact, read_plan
from evalfleet.errors import EvalfleetError, OperatorError, UsageError
from evalfleet.host_limits import make_room
from evalfleet.importing import uncollected
from evalfleet.quarantine import in_force
from evalfleet.results import FolderResults, results_store
from evalfleet.settings import Settings
from scheduler.embedded import START_WITHIN, Stack, Target
from scheduler.interrupt import Interrupts
from scheduler.submissions import Submission, Submissions

if TYPE_CHECKING:
    from evalfleet.contract.client import Client
    from evalfleet.graders.bundle import Bundle
    from evalfleet.ledger import Ledger, Progress
    from evalfleet.plan import Plan
    from evalfleet.tree import TreeConfig
    from scheduler.allowed import AllowedMissing
    from scheduler.compare import Baseline, Compared, FailOn
    from scheduler.dispatch import Ended
    from scheduler.prepare import Prepared
    from scheduler.submit import Opened
    from scheduler.summary import Summary


class Reporter(Protocol):
    """Who shows how far it is. Called from the driving thread only."""

    def note(self, text: str) -> None: ...
    def warn(self, text: str) -> None: ...
    def progress(self, progress: Progress, total: int, note: str, *, done: str = "recorded") -> None: ...
    def done(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Options:
    """What the flags of `eval` and `resume` say beside the selection. `budget` and `max_time`: a resume's, as written;
    those of `eval` are in its plan."""

    state: Path | None = None
    results: Path | None = None
    fresh: bool = False
    allow_flaky: bool = False
    leave_running: bool = False
    max_failures: int | None = None
    budget: str | None = None
    max_time: str | None = None
    allow_missing: AllowedMissing | None = None
    baseline: Baseline | None = None
    fail_on: FailOn | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Result:
    """How it ended: what was found, the exit code (S36), and in words what to do if it is not over."""

    summary: Summary
    exit_code: int
    ended: Ended
    plan: Plan
    compared: Compared | None = None

    @property
    def ended_early(self) -> str:
        """Why it stopped before its end, in words, or ""."""
        return self.ended.reason if self.ended.state == "stopped" else ""


def state_folder(config: TreeConfig, options: Options) -> Path:
    return Path(os.path.realpath(options.state or config.root / ".evalfleet"))


def results_folder(config: TreeConfig, options: Options) -> Path:
    return Path(os.path.realpath(options.results or config.results_folder))


def evaluate(
    prepared: Prepared,
    options: Options,
    reporter: Reporter,
    *,
    words: Sequence[str] = (),
    interrupts: Interrupts | None = None,
) -> Result:
    """Run what was prepared. Raises EvalfleetError for what ends before anything is judged. `interrupts`: what ends it
    early, for a caller on another thread than the main one; by default the signals."""
    config = prepared.config
    store = results_store(results_folder(config, options))
    submissions = Submissions(state_folder(config, options))

    async def open_(client: Client) -> Opened:
        from scheduler.conduct import with_harness
        from scheduler.submit import open_submission

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
            baseline=None if prepared.baseline is None else prepared.baseline.commit,
        )

    options = replace(options, baseline=prepared.baseline)
    interrupts = interrupts or Interrupts()
    return _run(config, prepared.plan, prepared.bundle, options, reporter, store, submissions, open_, interrupts)


def resume(config: TreeConfig, record: Submission, options: Options, reporter: Reporter, *, commit: str) -> Result:
    """Go on with a submission as it was planned; on a complete one run nothing and give the stored result (S34)."""
    if record.server and record.unfinished:
        raise UsageError(
            f"{record.id} was submitted to the fleet of {record.server}: with EVALFLEET_BROKER_URL and "
            "EVALFLEET_RESULTS_URL set as there, the same command goes on with it"
        )
    folder = Path(record.results) if record.results else results_folder(config, options)
    store = results_store(folder if folder.is_absolute() else config.root / folder)
    artifact = find(store, record.id)
    if artifact is None:
        raise UsageError(f"{store.shown()} holds no artifact of {record.id}; --results DIR says where it is")
    from scheduler.prepare import with_limits

    plan = read_plan(store, artifact)
    plan = replace(plan, limits=replace(with_limits(plan.limits, options.budget, options.max_time), grade=True))
    submissions = Submissions(state_folder(config, options))
    if options.baseline is not None:
        options.baseline.check(plan)
    else:
        from scheduler.compare import planned_baseline

        older = planned_baseline(plan, store, options.fail_on, reporter.warn, anywhere=True)
        options = replace(options, baseline=older)
    if record.status != "running":
        from scheduler.dispatch import Ended
        from scheduler.score import recorded
        from scheduler.summary import exit_code

        stored = open_artifact(store, artifact)
        summary = recorded(stored)
        if options.allow_missing is not None and record.status == "cancelled" and options.allow_missing.covers(summary):
            summary = replace(summary, missing_allowed=True)
        compared = None if options.baseline is None else options.baseline.against(plan, summary)
        code = exit_code(summary, allow_flaky=options.allow_flaky, regressed=compared is not None and compared.is_lost)
        if stored.summary is None:  # its disk was full when it ended
            finish(store, artifact, summary.stored(code))
        return Result(summary, code, Ended(record.status), plan, compared)
    if plan.target.base_url is None and commit != plan.commit:
        raise OperatorError(
            f"the harness moved from {plan.commit} to {commit}: {record.id} is pinned to the former; "
            "check that commit out, or `evalfleet eval` starts anew"
        )

    today = datetime.now(UTC).date()
    for entry in plan.quarantine:
        if not entry.holds(today):
            reporter.warn(entry.over())
    plan = replace(plan, quarantine=in_force(plan.quarantine, today))

    async def open_(client: Client) -> Opened:
        from scheduler.submit import reopen

        return await reopen(client, plan, record)

    options = replace(options, results=store.root)
    return _run(config, plan, None, options, reporter, store, submissions, open_, Interrupts())


def _run(
    config: TreeConfig,
    plan: Plan,
    bundle: Bundle | None,
    options: Options,
    reporter: Reporter,
    store: FolderResults,
    submissions: Submissions,
    open_: Callable[[Client], Awaitable[Opened]],
    signals: Interrupts,
) -> Result:
    began = time.monotonic()
    ledgers: list[Ledger] = []
    make_room(min(plan.concurrency, sum(case.trials for case in plan.cases)), "concurrency (-j)")
    with signals as interrupts, _stack(config, options, reporter, ledgers) as stack:
        target = _target(plan, config, options)
        deadline = time.monotonic() + START_WITHIN
        endpoints = stack.launch(
            commit=plan.commit,
            concurrency=plan.concurrency,
            results=store.root,
            with_server=target is None,
            target=target,
            env=options.environment,
        )
        # Half a second of imports (HTTP, Celery, Redis), which the parts use to boot: a cold start counts.
        with uncollected():
            from evalfleet.ledger import Ledger
            from scheduler.conduct import Conductor

        stack.await_ready(deadline, interrupts.check)
        ledger = Ledger(endpoints.redis_url)
        ledgers.append(ledger)
        try:
            ledger.open_epoch(mine=True)
            conductor = Conductor(stack, endpoints, ledger, store, submissions, interrupts, options, reporter)
            result = conductor.conduct(plan, bundle, open_, began)
        finally:
            ledger.close()
        if result.ended.state == "completed":
            stack.stop(hand_over=False)
        return result


def _target(plan: Plan, config: TreeConfig, options: Options) -> Target | None:
    if plan.target.base_url is None:
        return None
    return Target(*contact_of(plan, config, Settings.from_env(options.environment)), plan.target.profile)


def contact_of(plan: Plan, config: TreeConfig, settings: Settings) -> tuple[str, str]:
    """Address and key of the platform that a plan in this tree's results names; raises what `Settings.contact` does.
    The tree's own `[target]` vouches for an address: an artifact may have come from elsewhere."""
    target = config.target
    its_own = target is not None and (target.base_url, target.profile) == (plan.target.base_url, plan.target.profile)
    return settings.contact(plan.target, vouched=its_own)


@contextlib.contextmanager
def _stack(config: TreeConfig, options: Options, reporter: Reporter, ledgers: Sequence[Ledger]) -> Iterator[Stack]:
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
        command="evalfleet eval",
        on_death=on_death,
        on_restart=on_restart,
    )
    with stack:
        yield stack
