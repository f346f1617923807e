"""What do the small commands do: `list`, `cancel`, and what `plan` says is recorded?"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from evalfleet.artifact import attempts_index, find, read_plan
from evalfleet.contract.client import Client
from evalfleet.plan import Attempt
from evalfleet.results import results_store
from evalfleet.settings import Settings
from evalfleet.tree import TreeConfig
from scheduler.embedded import Stack
from scheduler.evaluate import Options, state_folder
from scheduler.prepare import Prepared
from scheduler.submissions import Submission, Submissions


def render_submissions(found: Sequence[Submission]) -> str:
    """A line for each, newest first."""
    if not found:
        return "no submission was started from this tree yet; `evalfleet eval` starts one"
    rows = [
        (s.id, s.started_at[:19] + "Z", shown_status(s), s.commit[:12], s.artifact, " ".join(s.words) or "all")
        for s in found
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    return "\n".join("  ".join([*(row[i].ljust(widths[i]) for i in range(5)), row[5]]) for row in rows)


def shown_status(submission: Submission) -> str:
    """The record's `running` says that it is not over, not that a process works on it. How far a fleet is with one,
    this folder does not know: `watch` does."""
    if submission.unfinished:
        return "submitted" if submission.server else "unfinished"
    return submission.status


def submission_document(submission: Submission) -> dict[str, Any]:
    """One entry of `list --json`."""
    return {
        "id": submission.id,
        "started_at": submission.started_at,
        "status": shown_status(submission),
        "commit": submission.commit,
        "artifact": submission.artifact,
        "evaluations": list(submission.evaluations),
        "select": list(submission.words),
    }


def cancel_submission(config: TreeConfig, text: str, options: Options) -> str:
    """Cancel the evaluations of a submission; what is recorded is kept (S18). Answers what was done, in words."""
    submissions = Submissions(state_folder(config, options))
    record = submissions.find(text)
    if record.status != "running":
        return f"{record.id} is {record.status} already"
    store = results_store(config.root / record.results if record.results else config.results_folder)
    artifact = find(store, record.id)
    plan = read_plan(store, artifact) if artifact is not None else None

    async def main(base_url: str, token: str) -> list[dict[str, Any]]:
        async with Client(base_url, token) as client:
            return [await client.cancel_evaluation(evaluation) for evaluation in record.evaluations if evaluation]

    if plan is not None and plan.target.base_url is not None:
        key = Settings.from_env(options.environment).require_api_key()
        ended = asyncio.run(main(plan.target.base_url, key))
    elif record.server:  # a fleet's: its aggregator sees that the evaluation is over, and ends the submission there
        ended = asyncio.run(main(record.server, Settings.from_env(options.environment).require_token()))
    else:
        with Stack(config.root, state=options.state, command="evalfleet cancel") as stack:
            endpoints = stack.start(
                commit=record.commit, concurrency=1, results=store.root, with_worker=False, env=options.environment
            )
            ended = asyncio.run(main(endpoints.base_url, endpoints.token))
    submissions.set_status(record.id, "cancelled")
    kept = sum(len(case.get("recorded_attempts") or ()) for document in ended for case in document.get("cases", ()))
    return f"{record.id} is cancelled; {kept} recorded attempts are kept"


def recorded_already(prepared: Prepared, options: Options) -> set[Attempt]:
    """What the submission that the plain command would continue has in its artifact (`plan`)."""
    known = Submissions(state_folder(prepared.config, options)).newest(prepared.pin.digest)
    if known is None or not known.unfinished or options.fresh:
        return set()
    store = results_store(options.results or prepared.config.results_folder)
    artifact = find(store, known.id)
    if artifact is None:
        return set()
    evidence = {key for key, entry in attempts_index(store, artifact).items() if entry.verdict is not None}
    plan = prepared.plan
    return {a for a in plan.all_attempts() if (plan.cases[a.case].name, plan.scenario(a).id, a.trial) in evidence}
