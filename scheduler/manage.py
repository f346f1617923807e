"""What do the small commands do and say: `list`, `status`, `logs`, `cancel`, and what `plan` says is recorded?"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evalfleet.artifact import attempts_index, find, read_plan, read_summary
from evalfleet.checks.text import trial_number
from evalfleet.contract.client import Client
from evalfleet.errors import ResultsAway, SettingError, StorageError, UsageError
from evalfleet.plan import Attempt
from evalfleet.results import FolderResults, ResultsStore, results_store, shared_results
from evalfleet.settings import Settings
from evalfleet.tree import TreeConfig
from scheduler.embedded import Stack
from scheduler.evaluate import Options, contact_of, state_folder
from scheduler.layout import clean
from scheduler.prepare import Prepared
from scheduler.submissions import Submission, Submissions
from scheduler.submit import ago

if TYPE_CHECKING:
    from scheduler.steer import Row, Status

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Listed:
    """A submission of this tree as `list` shows it. `verdict`: how it ended, as its artifact says; None where it has
    not ended, or its artifact cannot be read from here."""

    submission: Submission
    verdict: str | None

    @property
    def status(self) -> str:
        """`unfinished` says that it is not over, not that a process works on it. A fleet's is over when its artifact
        has a summary; how far a fleet is with one that is not, only `status` and `watch` know."""
        submission = self.submission
        if not submission.unfinished:
            return submission.status
        if not submission.server:
            return "unfinished"
        return "submitted" if self.verdict is None else "unfinished" if self.verdict == "incomplete" else "completed"

    def document(self) -> dict[str, Any]:
        """One entry of `list --json`."""
        submission = self.submission
        return {
            "id": submission.id,
            "started_at": submission.started_at,
            "status": self.status,
            "verdict": self.verdict,
            "commit": submission.commit,
            "artifact": submission.artifact,
            "evaluations": list(submission.evaluations),
            "select": list(submission.words),
        }


def listed(config: TreeConfig, found: Sequence[Submission]) -> list[Listed]:
    """Each with the verdict that its artifact holds."""
    return [Listed(submission, _verdict(config, submission)) for submission in found]


def _verdict(config: TreeConfig, submission: Submission) -> str | None:
    try:
        summary = read_summary(_results_of(config, submission), submission.artifact)
    except (StorageError, ResultsAway, SettingError, UsageError, ValueError) as trouble:
        _log.debug("the verdict of %s cannot be read: %s", submission.id, trouble)
        return None
    verdict = (summary or {}).get("verdict")
    return verdict if isinstance(verdict, str) else None


def render_submissions(found: Sequence[Listed]) -> str:
    """A line for each, newest first."""
    if not found:
        return "no submission was started from this tree yet; `evalfleet eval` starts one"
    rows = []
    for each in found:
        s = each.submission
        when, words = s.started_at[:19] + "Z", " ".join(s.words) or "all"
        rows.append((s.id, when, each.status, each.verdict or "-", s.commit[:12], s.artifact, words))
    return _columns(rows)


def _columns(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    return "\n".join(
        "  ".join([*(row[i].ljust(width) for i, width in enumerate(widths)), row[-1]]).rstrip() for row in rows
    )


def render_fleet(rows: Sequence[Row], where: str) -> str:
    """A fleet's submissions, a line for each: state, how far, how old, who drives it or why it ended."""
    if not rows:
        return f"the fleet of {where} has no submission that runs, or ended within a day"
    told = [
        (row.id, row.state, f"{row.recorded} of {row.total}", ago(row.planned_at), clean(_driven(row))) for row in rows
    ]
    return f"the fleet of {where}:\n{_columns(told)}"


def _driven(row: Row) -> str:
    if row.state in {"running", "paused"}:
        return f"driven by {row.driver}" if row.driver else "nobody drives it"
    return row.reason


def render_status(status: Status) -> str:
    """One submission, a line for each thing that there is to know."""
    return "\n".join(f"{name:<10}  {clean(words)}" for name, words in _status_lines(status) if words)


def _status_lines(status: Status) -> Iterator[tuple[str, str]]:
    row, counts = status.row, status.counts
    yield "submission", row.id
    yield "state", f"{row.state}: {row.reason}" if row.reason else row.state
    yield "planned", f"{ago(row.planned_at)} ({row.planned_at[:19]}Z)" if row.planned_at else ""
    yield "recorded", f"{row.recorded} of {row.total}"
    judged = ", ".join(f"{counts[word]} {word}" for word in ("passed", "failed", "error") if counts.get(word))
    yield "judged", f"{judged}, since it was last begun" if judged else ""
    if status.verdict is None:
        under_way = f"{row.running} conversations; {status.waiting} attempts wait to be judged or recorded"
        yield "under way", under_way + (f"; {row.given_up} given up" if row.given_up else "")
        yield "driven by", row.driver or "nobody"
        yield "workers", f"{status.workers} alive, {status.slots} places for conversations"
        yield "unhealthy", "; ".join(status.unreachable)
    yield "spent", status.spent
    yield "to go", status.to_go.removesuffix(" to go")
    yield "waits for", f"paused; `evalfleet resume {row.id}` goes on" if status.note == "paused" else status.note
    yield "verdict", "" if status.verdict is None else f"{status.verdict} (exit code {status.exit_code})"
    yield "artifact", status.artifact or ""


def render_log(lines: Sequence[Mapping[str, Any]]) -> str:
    """A line for each that a part wrote about one submission, the oldest first."""
    return "\n".join(
        clean(f"{line['at'][:19]}Z  {line['level']:<7}  {line['part']}  {_of_what(line)}{line['message']}")
        for line in lines
    )


def _of_what(line: Mapping[str, Any]) -> str:
    names = [str(line[name]) for name in ("case", "scenario") if name in line]
    trial = f" trial {trial_number(line['trial'])}" if "trial" in line else ""
    return f"[{'/'.join(names)}{trial}] " if names else ""


def cancel_submission(config: TreeConfig, text: str, options: Options) -> str:
    """Cancel the evaluations of a submission; what is recorded is kept (S18). Answers what was done, in words."""
    submissions = Submissions(state_folder(config, options))
    record = submissions.find(text)
    if record.status != "running":
        return f"{record.id} is {record.status} already"
    store = _results_of(config, record)
    artifact = find(store, record.id)
    plan = read_plan(store, artifact) if artifact is not None else None

    async def main(base_url: str, token: str) -> list[dict[str, Any]]:
        async with Client(base_url, token) as client:
            return [await client.cancel_evaluation(evaluation) for evaluation in record.evaluations if evaluation]

    if plan is not None and plan.target.base_url is not None:
        ended = asyncio.run(main(*contact_of(plan, config, Settings.from_env(options.environment))))
    elif record.server:  # a fleet's: its aggregator sees that the evaluation is over, and ends the submission there
        ended = asyncio.run(main(record.server, Settings.from_env(options.environment).require_token()))
    else:
        assert isinstance(store, FolderResults)  # a submission without a server of its own is of this machine
        with Stack(config.root, state=options.state, command="evalfleet cancel") as stack:
            endpoints = stack.start(
                commit=record.commit, concurrency=1, results=store.root, with_worker=False, env=options.environment
            )
            ended = asyncio.run(main(endpoints.base_url, endpoints.token))
    submissions.set_status(record.id, "cancelled")
    kept = sum(len(case.get("recorded_attempts") or ()) for document in ended for case in document.get("cases", ()))
    return f"{record.id} is cancelled; {kept} recorded attempts are kept"


def _results_of(config: TreeConfig, record: Submission) -> ResultsStore:
    if record.results.startswith("s3://"):
        return shared_results(record.results)
    return results_store(config.root / record.results if record.results else config.results_folder)


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
