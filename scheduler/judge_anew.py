"""What do `score --regrade` and `score --record` do, from the old artifact to the new one and its evaluation?"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from evalfleet.artifact import FolderResults, Result, finish, open_artifact
from evalfleet.contract.client import Client
from evalfleet.errors import UsageError
from evalfleet.evidence import AttemptKey
from evalfleet.graders.bundle import Bundle, remove_unpacked, unpack
from evalfleet.ledger import Progress
from evalfleet.plan import Plan, PlannedGraders
from evalfleet.quarantine import Quarantine
from evalfleet.settings import Settings
from evalfleet.tree import TreeConfig, harness_files
from scheduler.anew import NewArtifact, as_ours, plan_anew
from scheduler.changes import ChangeCounter
from scheduler.evaluate import Options
from scheduler.prepare import bundle_of, planned_graders
from scheduler.record import Server, cancel, check_runs, create_evaluations, record, server_of
from scheduler.regrade import Regrading, Reporter, check_today, grader_pool
from scheduler.score import Rescored, Today, all_lines, recorded, set_against
from scheduler.submit import MOST_GENERATIONS
from scheduler.summary import exit_code, summed_up
from scheduler.tallies import PlanLines
from scheduler.validate import check_judge


@dataclass(frozen=True, slots=True)
class Anew:
    """`rescored`: against what was recorded; its summary is the new artifact's, and so is `plan`. `evaluations`:
    documents, if they were recorded. `stopped`: why grading did not come to its end, in words; `signal` that ended it.
    """

    rescored: Rescored
    plan: Plan
    evaluations: Sequence[Mapping[str, Any]] = ()
    stopped: str = ""
    signal: int | None = None


def judge_anew(
    result: Result,
    today: Today,
    config: TreeConfig,
    options: Options,
    reporter: Reporter,
    *,
    regrade: bool,
    recording: bool,
    quarantine: Sequence[Quarantine] = (),
) -> Anew:
    """A new artifact beside the old one, as `today` judges, with today's graders (`regrade`); put on a new evaluation
    of the same commit, with the same runs (`recording`).

    GraderRefused, UsageError before anything is done; OperatorError where the runs are gone.
    """
    if not isinstance(result.store, FolderResults):
        raise UsageError(
            f"--regrade and --record write a new artifact beside the old one, in a folder: copy {result.place} into "
            "evals/results first (`aws s3 sync`)"
        )
    now = datetime.now(UTC)
    bundle, graders = (
        _todays_graders(config, today, result.plan, options.environment) if regrade else (None, result.plan.graders)
    )
    with ExitStack() as stack:
        server = stack.enter_context(server_of(result.plan, config, options, result.store)) if recording else None
        plan = _opened(server, result, today, now, graders, again=now.isoformat() if regrade else "")
        made = NewArtifact.of(result.store, plan, result, None if bundle is None else bundle.data)
        work = _Work(result, made, today)
        if bundle is None:
            with made:
                work.judge()
        else:
            folder = stack.enter_context(_unpacked(bundle))
            with made:
                work.regrade(config, options, reporter, folder)
        documents = _record(server, made, stopped=work.stopped) if server is not None else []
    rescored = work.rescored(documents, quarantine)
    code = exit_code(rescored.summary, allow_flaky=options.allow_flaky, signal=work.signal)
    finish(result.store, made.plan.artifact, rescored.summary.stored(code))
    return Anew(rescored, made.plan, documents, work.stopped, work.signal)


def _todays_graders(
    config: TreeConfig, today: Today, plan: Plan, environment: Mapping[str, str]
) -> tuple[Bundle, PlannedGraders]:
    names = check_today(config, today, plan)
    if not names:
        raise UsageError("--regrade: none of the scenarios that can be judged calls a grader")
    if plan.target.base_url is None:  # else the platform's judge is asked
        check_judge(config, names, environment)
    bundle = bundle_of(config, names, harness_files(config))
    return bundle, planned_graders(config, names, bundle, plan.target)


def _opened(
    server: Server | None, source: Result, today: Today, now: datetime, graders: PlannedGraders | None, *, again: str
) -> Plan:
    """The new plan; with a server, its evaluations are created, or those of the same command that died are found."""
    if server is None:
        return plan_anew(source.plan, today, now=now, graders=graders, again=again)

    async def main(server: Server) -> Plan:
        async with Client(server.base_url, server.token) as client:
            await check_runs(client, source, server.shown)
            for number in range(MOST_GENERATIONS):
                another = again + (f" {number}" if number else "")
                plan = plan_anew(source.plan, today, now=now, graders=graders, again=another)
                plan, usable = await create_evaluations(client, plan)
                if usable:
                    return plan
        raise UsageError(f"{MOST_GENERATIONS} recordings of this artifact were cut short")

    return asyncio.run(main(server))


def _record(server: Server, made: NewArtifact, *, stopped: str) -> list[dict[str, Any]]:
    async def main() -> list[dict[str, Any]]:
        async with Client(server.base_url, server.token) as client:
            if stopped:
                await cancel(client, made.plan)
                return []
            written = open_artifact(made.store, made.plan.artifact)
            return await record(client, made.plan, written, server.shown)

    return asyncio.run(main())


@contextmanager
def _unpacked(bundle: Bundle) -> Iterator[Path]:
    """The bundle in a folder of its own, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="evalfleet-regrade-") as folder:
        copy = unpack(bundle.data, bundle.digest, Path(folder) / "bundle")
        try:
            yield copy
        finally:
            remove_unpacked(copy)


@dataclass(slots=True)
class _Work:
    """The lines on their way from the old artifact to the new one."""

    source: Result
    made: NewArtifact
    today: Today
    stopped: str = ""
    signal: int | None = None
    counter: ChangeCounter = field(default_factory=ChangeCounter)
    now: PlanLines = field(init=False)
    absent: dict[AttemptKey, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.now = PlanLines(self.made.plan)

    def judge(self) -> None:
        for line in self._lines():
            self._take(line, self.today.judged(line))

    def regrade(self, config: TreeConfig, options: Options, reporter: Reporter, folder: Path) -> None:
        settings = Settings.from_env(options.environment)
        total = sum(1 for _ in self.made.plan.all_attempts())
        regrading: Regrading | None = None

        async def main() -> None:
            nonlocal regrading
            async with grader_pool(self.made.plan, config, folder, settings, options.environment) as grader_for:
                regrading = Regrading(self.today, grader_for, at_once=settings.graders_at_once or 4)
                async with aclosing(regrading.lines(self._lines())) as lines:
                    await self._show(lines, regrading, reporter, total)

        try:
            asyncio.run(main())
        except KeyboardInterrupt:
            self.stopped, self.signal = "interrupted", 2
        else:
            self.stopped = regrading.stopped if regrading is not None else ""
        reporter.done()

    async def _show(
        self,
        lines: AsyncGenerator[tuple[Mapping[str, Any], Mapping[str, Any]], None],
        regrading: Regrading,
        reporter: Reporter,
        total: int,
    ) -> None:
        judged = 0
        async for line, now in lines:
            self._take(line, now)
            judged += not line.get("context")
            progress = Progress(counts=regrading.counts, recorded=judged, running=regrading.running)
            reporter.progress(progress, total, "", done="judged")

    def _lines(self) -> Iterator[Mapping[str, Any]]:
        for line in all_lines(self.source):
            if line.get("recorded") == "elsewhere" and not line.get("trial_record"):
                self.absent[line["case"], line["scenario"], line["trial"]] = "recorded elsewhere, no evidence here"
            else:
                yield as_ours(line)

    def _take(self, line: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        self.now.add(now)
        self.counter.add(line, now)
        self.made.add(now)

    def rescored(self, documents: Sequence[Mapping[str, Any]], quarantine: Sequence[Quarantine]) -> Rescored:
        plan = self.made.plan
        reasons = dict(self.absent)
        if self.stopped:
            for attempt in plan.all_attempts():
                case, id_ = plan.cases[attempt.case].name, plan.scenario(attempt).id
                if not self.now.of(case, id_).has(attempt.trial):
                    reasons.setdefault((case, id_, attempt.trial), f"not graded again: {self.stopped}")
        after = summed_up(
            self.now,
            artifact=self.made.store.shown(plan.artifact),
            evaluations=documents,
            reasons=reasons,
            quarantine=quarantine,
        )
        return set_against(recorded(self.source), after, self.counter, self.today)
