"""How does an attempt that waits for graders get its verdict, and what if it gets none?

One grading is one worker's at a time, by a claim of its own. The graders are on the books beside the plan, by the
digest that the plan names; they run in the worker's pool of cages. A judge that is away is nobody's failure (S26): the
grading is tried again, then left missing.
"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import functools
import itertools
import logging
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from evalfleet.bulk import is_large, made_whole, packed
from evalfleet.checks.outcome import GraderAnswer
from evalfleet.contract import jsontext
from evalfleet.errors import PlanRefused, PlatformError, StorageError, TargetUnreachable, UnfitHost
from evalfleet.graders.bundle import digest_of, remove_unpacked, unpack
from evalfleet.graders.judge_call import judge_at, platform_judge
from evalfleet.graders.judging import MORE_GRADES, Graded, grade
from evalfleet.graders.pool import GraderPool, GraderSettings
from evalfleet.ledger import FAULT, JUDGE_ROW, JudgeRow, Ledger
from evalfleet.logs import about
from evalfleet.plan import Attempt, Plan
from evalfleet.seal import REFUSED
from worker.evidence import Play, attempt_line, missing_line
from worker.played import GaveUp, fault_of_ours

if TYPE_CHECKING:
    from worker.tasks import Crew

log = logging.getLogger(__name__)

COPIES_KEPT = 8


class Grading:
    """The grading half of a worker: its cages, and the graders that it has unpacked."""

    def __init__(self, crew: Crew) -> None:
        self.crew = crew
        self._guard = threading.Lock()
        self._pool: GraderPool | None = None
        self._bundles: collections.OrderedDict[str, Path] = collections.OrderedDict()
        self._calls: collections.Counter[str] = collections.Counter()
        self._unpacked = itertools.count()
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    async def aclose(self) -> None:
        """End what graders still do; on the loop thread."""
        if self._pool is not None:
            await self._pool.aclose()

    def cleanup(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    def grade(self, submission: str, attempt: Attempt) -> None:
        plan = self.crew.plan(submission)
        what = (submission, attempt)
        if plan is None or not self.crew.heart.take(what):
            return
        mine, next_step = True, None
        try:
            asks = plan.may_ask(plan.scenario(attempt))
            blob = self.crew.ledger.claim_grade(submission, attempt, self.crew.heart.incarnation, asks=asks)
            mine = blob is not None
            if blob is not None:
                names = {"case": plan.cases[attempt.case].name, "scenario": plan.scenario(attempt).id}
                with about(trial=attempt.trial, **names):
                    next_step = self._grade(plan, attempt, blob)
        finally:
            release = functools.partial(Ledger.release_grade, submission=submission, attempt=attempt)
            keep = not mine or next_step == "recorded"  # its record has taken the claim off the books
            self.crew.heart.give_back(
                what, None if keep else lambda ledger: release(ledger, inc=self.crew.heart.incarnation)
            )
        if next_step == "again":
            self.crew.publisher.grade(plan, attempt)

    def _grade(self, plan: Plan, attempt: Attempt, blob: bytes) -> Literal["again", "recorded"] | None:
        """What comes of it. "again": it is to be graded again at once."""
        try:
            document = jsontext.loads(blob)
            play = Play.from_json(self._whole(plan, document) if is_large(document) else document)
            call = functools.partial(self._call_grader, plan, play)
            graded = self.crew.loop.run(grade(plan.scenario(attempt), play.trial, play.meaning, call))
            if self.crew.stopping.is_set() and (graded.judgement is None or graded.judgement.outcome != "passed"):
                return None  # its own leaving may have ended the grader: another worker grades it again
            if graded.stopped is not None:
                self.crew.ledger.end(plan.id, "stopped", graded.stopped, "judge")
                return None
            return self._judged(plan, play, graded)
        except concurrent.futures.CancelledError:
            return None
        except UnfitHost as unfit:
            if not self.crew.stopping.is_set():
                self._cannot_grade(plan, attempt, unfit)
        except PlanRefused as refused:
            log.error("%s", refused)  # noqa: TRY400  - the sentence is enough
            self.crew.ledger.end(plan.id, "stopped", refused.message, REFUSED)
        except (StorageError, TargetUnreachable) as trouble:
            log.warning("grading %s of %s goes back: %s", attempt, plan.id, trouble)
        except PlatformError as unreadable:
            log.warning("grading %s of %s: %s", attempt, plan.id, unreadable)
            if self.crew.ledger.count_grade(plan.id, attempt) > MORE_GRADES:
                gave_up = GaveUp((attempt,), f"its runs cannot be read again: {unreadable}", "unreadable")
                self.leave_ungraded(plan, attempt, missing_line(plan, attempt, gave_up), gave_up.reason)
        except Exception as fault:  # as for a conversation
            if self.crew.stopping.is_set():
                raise
            log.exception("grading %s of %s", attempt, plan.id)
            gave_up = GaveUp((attempt,), fault_of_ours(fault), FAULT)
            self.leave_ungraded(plan, attempt, missing_line(plan, attempt, gave_up), gave_up.reason)
        return None

    def _whole(self, plan: Plan, document: Mapping[str, Any]) -> dict[str, Any]:
        """With the trial that was too large for the ledger."""

        async def on_loop() -> dict[str, Any]:
            return await made_whole(document, plan, self.crew.client(plan))

        return self.crew.loop.run(on_loop())

    def _judged(self, plan: Plan, play: Play, graded: Graded) -> Literal["again", "recorded"] | None:
        assert graded.judgement is not None
        line = attempt_line(plan, play, graded.judgement, graded.answers)
        if graded.judgement.outcome != "missing":
            if graded.judge_answered:
                self.crew.ledger.judge_answered(plan.id)
            self.crew.record(plan, play.attempt, line)
            return "recorded"
        reason = graded.judgement.reason or "judge_unavailable"
        row = self.crew.ledger.judge_failed(plan.id, reason)
        if row is JudgeRow.TENTH:
            log.error("%d gradings in a row had no judge; grading pauses: %s", JUDGE_ROW, reason)
        if row is not JudgeRow.SHORT:
            return None  # nobody's turn is used up; the dispatcher sends it again when the pause is over
        if self.crew.ledger.count_grade(plan.id, play.attempt) <= MORE_GRADES:
            return "again"
        self.leave_ungraded(plan, play.attempt, {**line, "code": "judge_unavailable"}, reason)
        return None

    def leave_ungraded(self, plan: Plan, attempt: Attempt, line: Mapping[str, Any], reason: str) -> None:
        """Missing until a resume; what is known of it goes to the artifact."""
        self.crew.ledger.put_note(plan.id, str(attempt), packed(line, attempt))
        self.crew.ledger.give_up(plan.id, attempt, reason, str(line["code"]))
        self.crew.ledger.drop_play(plan.id, attempt)
        self.crew.publisher.aggregate(plan)

    def _cannot_grade(self, plan: Plan, attempt: Attempt, unfit: UnfitHost) -> None:
        """This host lost its cage twice under one call: another worker may do better, and somebody has to end it."""
        log.warning("grading %s of %s: %s", attempt, plan.id, unfit)
        if self.crew.ledger.count_grade(plan.id, attempt) > MORE_GRADES:
            self.crew.ledger.end(plan.id, "stopped", unfit.message, "grader_cage")

    async def _call_grader(
        self, plan: Plan, play: Play, name: str, case: dict[str, Any], run: dict[str, Any], about: dict[str, Any]
    ) -> GraderAnswer:
        assert plan.graders is not None
        assert play.run_id is not None
        config = GraderSettings(
            python=plan.graders.python,
            env=plan.graders.env,
            network=plan.graders.network,
            memory_mb=plan.graders.memory_mb,
        )
        if self._pool is None:
            self._pool = GraderPool(workers=self.crew.settings.graders_at_once or 4)
        judge_call, judge = platform_judge(self.crew.client(plan), play.run_id), judge_at(plan.graders.judge_address)
        digest = plan.graders.digest
        self._calls[digest] += 1
        try:
            bundle = self._bundles.get(digest)
            if bundle is None:
                bundle = await asyncio.to_thread(self._bundle, plan)
            self._bundles.move_to_end(digest)
            await self._drop_copies(self._pool)
            return await self._pool.grade(bundle, config, name, case, run, judge_call, about=about, judge=judge)
        finally:
            self._calls[digest] -= 1

    async def _drop_copies(self, pool: GraderPool) -> None:
        """Of the unpacked trees, each up to 32 MiB and more, those that were not used for the longest time."""
        idle = [digest for digest in self._bundles if not self._calls[digest]]
        for digest in idle[: max(len(self._bundles) - COPIES_KEPT, 0)]:
            folder = self._bundles.pop(digest)
            await pool.drop(folder)
            await asyncio.to_thread(remove_unpacked, folder)

    def _bundle(self, plan: Plan) -> Path:
        """The unpacked bundle that the plan names. PlanRefused: what stands on the books is another."""
        assert plan.graders is not None
        digest = plan.graders.digest
        with self._guard:
            known = self._bundles.get(digest)
            if known is None:
                data = self.crew.ledger.graders(plan.id)
                if data is None:
                    raise StorageError(f"the graders of {plan.id} are not on the books; its scheduler puts them there")
                if digest_of(data) != digest:
                    raise PlanRefused(f"the graders of {plan.id} are refused: they are not those that its plan names")
                if self._folder is None:
                    self._folder = tempfile.TemporaryDirectory(
                        prefix="evalfleet-graders-", dir=self.crew.settings.state, ignore_cleanup_errors=True
                    )
                name = f"{next(self._unpacked)}-{digest.rpartition(':')[2][:32]}"
                known = unpack(data, digest, Path(self._folder.name) / name)
                self._bundles[digest] = known
            return known
