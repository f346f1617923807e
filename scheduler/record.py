"""How do verdicts of today get onto an evaluation, with the runs of then? (S32, `score --record`)

A new evaluation of the same commit and the same run ids: fixing a check never pays for runs again. Evidence before
record (I4): the verdicts are a new artifact first. All of it is idempotent, so the same command ends what a killed one
began.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from evalfleet.artifact import Result
from evalfleet.checks.text import trial_number
from evalfleet.contract.client import Client
from evalfleet.errors import OperatorError, ProblemAnswer
from evalfleet.evidence import EVIDENCE
from evalfleet.plan import Plan
from evalfleet.recording import BATCH, OF_SOME, refused_attempts, wire_attempt
from evalfleet.results import FolderResults
from evalfleet.settings import Settings
from evalfleet.tree import TreeConfig
from scheduler.embedded import Stack
from scheduler.evaluate import Options, contact_of, state_folder
from scheduler.submissions import Submissions
from scheduler.submit import created_evaluation

log = logging.getLogger(__name__)

_RUN_AT = re.compile(r"/attempts/(\d+)/run_id")


@dataclass(frozen=True, slots=True)
class Server:
    """Where the runs of a plan are. `shown` in words."""

    base_url: str
    token: str
    shown: str


@contextlib.contextmanager
def server_of(plan: Plan, config: TreeConfig, options: Options, store: FolderResults) -> Iterator[Server]:
    """The platform that a plan names; the fleet's server that it was submitted to, or that EVALFLEET_BASE_URL names;
    else this tree's own, which is started for it."""
    settings = Settings.from_env(options.environment)
    if plan.target.base_url is not None:
        yield Server(*contact_of(plan, config, settings), plan.target.name)
        return
    origin = plan.rescored_from or plan.id
    records = Submissions(state_folder(config, options)).all()
    fleet = next((r.server for r in records if r.id == origin and r.server), None) or settings.base_url
    if fleet is not None:
        yield Server(fleet, settings.require_token(), fleet)
        return
    with Stack(config.root, state=options.state, command="evalfleet score --record") as stack:
        endpoints = stack.start(
            commit=plan.commit, concurrency=1, results=store.root, with_worker=False, env=options.environment
        )
        yield Server(endpoints.base_url, endpoints.token, f"this tree's own server ({stack.state})")


async def check_runs(client: Client, source: Result, shown: str) -> None:
    """OperatorError where the first run is not there any more: the others went with it, or are told of later."""
    run_id = next((line["run_id"] for line in source.lines() if line.get("run_id") and not line.get("context")), None)
    if run_id is None:
        raise OperatorError(f"{source.place} holds no run, so there is nothing to record")
    try:
        await client.get_run(run_id)
    except ProblemAnswer as problem:
        if problem.status == 404:
            raise _gone(shown, [run_id]) from problem
        raise


async def create_evaluations(client: Client, plan: Plan) -> tuple[Plan, bool]:
    """The plan with the ids of its evaluations, and whether it can be recorded on them: not if one was cut short."""
    ids, usable = [], True
    for group in range(len(plan.evaluations)):
        try:
            created = await created_evaluation(client, plan, group)
        except ProblemAnswer as problem:
            if problem.status in {404, 422}:
                raise OperatorError(
                    f"{client.base_url} takes no evaluation of {plan.target.harness} at {plan.commit}: {problem.detail}"
                ) from problem
            raise
        document: Mapping[str, Any] = created.document
        if created.replayed:
            document = await client.get_evaluation(document["id"])
        usable = usable and document["status"] in {"running", "completed"}
        ids.append(str(document["id"]))
    return plan.with_evaluations(ids), usable


async def record(client: Client, plan: Plan, written: Result, shown: str) -> list[dict[str, Any]]:
    """Send every verdict of the new artifact and end its evaluations: completed, or, where attempts are missing,
    cancelled, which keeps what is recorded. Their documents, in the plan's order.

    OperatorError where runs are not on the server any more; what was begun is cancelled then.
    """
    attempts = {(plan.cases[a.case].name, plan.scenario(a).id, a.trial): a for a in plan.all_attempts()}
    waiting: list[list[dict[str, Any]]] = [[] for _ in plan.evaluations]
    try:
        for line in written.lines():
            attempt = attempts.get((line["case"], line["scenario"], line["trial"]))
            if attempt is None or line.get("context") or line["outcome"] not in EVIDENCE:
                continue
            group = plan.cases[attempt.case].scenarios[attempt.scenario].evaluation
            assert group is not None
            waiting[group].append(wire_attempt(plan, attempt, line))
            if len(waiting[group]) >= BATCH:
                await _send(client, str(plan.evaluations[group].id), waiting[group], shown)
                waiting[group] = []
        for evaluation, batch in zip(plan.evaluations, waiting, strict=True):
            if batch:
                await _send(client, str(evaluation.id), batch, shown)
    except OperatorError:
        await cancel(client, plan)
        raise
    return [await _end(client, str(evaluation.id)) for evaluation in plan.evaluations]


async def cancel(client: Client, plan: Plan) -> None:
    """End what was begun and will not be recorded."""
    for evaluation in plan.evaluations:
        await client.cancel_evaluation(str(evaluation.id))


async def _send(client: Client, evaluation: str, batch: list[dict[str, Any]], shown: str) -> None:
    """All of the batch but what the server refuses, which stays missing and is told with its reason (S18)."""
    while batch:
        try:
            await client.record_attempts(evaluation, batch)
        except ProblemAnswer as problem:
            gone = _unknown_runs(problem, batch)
            if gone:
                raise _gone(shown, gone) from problem
            refused = refused_attempts(problem, range(len(batch))) if problem.status in OF_SOME else {}
            if not refused:
                raise
            for number, why in refused.items():
                trial = trial_number(batch[number]["attempt_index"])
                log.warning("%s, trial %d: %s", batch[number]["case_key"], trial, why)
            batch = [attempt for number, attempt in enumerate(batch) if number not in refused]
        else:
            return


async def _end(client: Client, evaluation: str) -> dict[str, Any]:
    document = await client.get_evaluation(evaluation)
    if document["status"] != "running":
        return document
    if any(case.get("missing_attempts") for case in document["cases"]):
        return await client.cancel_evaluation(evaluation)
    return await client.complete_evaluation(evaluation)


def _unknown_runs(problem: ProblemAnswer, batch: list[dict[str, Any]]) -> list[str]:
    """The runs of a refused batch that the server does not know, or not as runs of this commit."""
    named = (error for error in problem.errors if error.get("code") != "run_already_used")
    found = (_RUN_AT.fullmatch(str(error.get("name"))) for error in named)
    numbers = [int(match[1]) for match in found if match is not None] if problem.status == 422 else []
    return [str(batch[number]["run_id"]) for number in numbers if number < len(batch)]


def _gone(shown: str, runs: list[str]) -> OperatorError:
    more = f" and {len(runs) - 1} more" if len(runs) > 1 else ""
    return OperatorError(
        f"{runs[0]}{more} is not on {shown}, or no run of this harness at this commit, so the verdicts cannot be "
        "recorded there; without --record they are only printed"
    )
