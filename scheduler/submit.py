"""How does a plan become a submission that workers can play: created, pinned, with what is recorded already?

Everything here is idempotent: a submission's id is a pure function of its pin and generation (S34), its evaluations are
created under keys made of that id, and its artifact is found by it. A command that dies at any line is continued by the
same command.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from evalfleet.artifact import AttemptsIndex, find, open_artifact, read_plan, write_plan
from evalfleet.checks.outcome import LEFT_OUT
from evalfleet.contract import jsontext
from evalfleet.contract.client import Client, Created
from evalfleet.errors import OperatorError, ProblemAnswer, UsageError
from evalfleet.graders.bundle import Bundle
from evalfleet.ledger import Ledger
from evalfleet.plan import Attempt, Plan
from evalfleet.results import ResultsStore
from evalfleet.seal import Seal
from scheduler.budget import spent_before
from scheduler.dispatch import Books
from scheduler.pins import Pin, evaluation_key
from scheduler.plan import at_generation, evaluation_body
from scheduler.submissions import Submission, Submissions, submission_of, why_not_resumed

MOST_GENERATIONS = 10_000
CUT_SHORT = frozenset({"cancelled", "failed"})
"""An evaluation that takes no more attempts: its submission cannot be finished, whatever its other ones say."""
ENDED = CUT_SHORT | {"completed"}
TO_BE_GRADED = frozenset({"judge_unavailable", LEFT_OUT})
"""Codes of missing attempts whose trial is in the artifact."""
GRADERS_FILE = "graders.tar.gz"


@dataclass(frozen=True, slots=True)
class Opened:
    """A submission that can be driven. `resumed`: it had begun before; `note` says so, or why an older one was not."""

    plan: Plan
    evaluations: tuple[Mapping[str, Any], ...]
    resumed: bool
    note: str


async def open_submission(
    client: Client,
    plan: Plan,
    pin: Pin,
    *,
    store: ResultsStore,
    submissions: Submissions,
    words: Sequence[str],
    files: Mapping[str, str],
    fresh: bool,
    own_server: bool,
    baseline: str | None = None,
    seal: Seal = Seal(),  # noqa: B008  - it is immutable
) -> Opened:
    """Find the newest unfinished generation of the pin, else start the next one (S34).

    `own_server`: the evaluations live in this state folder's database, so what the folder has no record of is gone.
    `baseline`: the commit that the server is asked to compare with, where it knows it (S31). `seal` signs the plan;
    what is gone on with must bear its signature already. PlanRefused otherwise.
    """
    known = submissions.newest(pin.digest)
    generation = 0
    if known is not None:
        generation = known.generation if known.unfinished and not fresh else known.generation + 1
    for number in range(generation, generation + MOST_GENERATIONS):
        candidate = at_generation(plan, number, datetime.now(UTC))
        recorded = known if known is not None and known.id == candidate.id else None
        folder = find(store, candidate.id)
        if folder is not None and recorded is None and own_server:
            continue  # its evaluations went with an older state folder; the artifact stays readable as it is
        documents, replayed = await _create(client, candidate, baseline)
        begun = recorded is not None or replayed
        status = {d["status"] for d in documents}
        if begun and (fresh or status <= ENDED or status & CUT_SHORT):
            continue
        opened = _with_artifact(candidate, documents, store, folder, seal)
        record = submission_of(opened, pin, words=tuple(words), files=files, results=store.shown())
        previous = next((s for s in submissions.all() if s.unfinished and s.id != record.id), None)
        why_new = "" if fresh else why_not_resumed(previous, record)
        note = _resuming(opened, documents, recorded) if begun else why_new
        submissions.write(replace(recorded, status="running") if recorded is not None else record)
        return Opened(opened, documents, begun, note)
    raise UsageError(f"{MOST_GENERATIONS} generations of this submission are finished; change the suite's name")


async def reopen(client: Client, plan: Plan, record: Submission) -> Opened:
    """Go on with a submission as it was planned; never creates anything (`resume`)."""
    documents = tuple([await client.get_evaluation(e.id) for e in plan.evaluations if e.id is not None])
    return Opened(plan, documents, True, _resuming(plan, documents, record))


async def _create(client: Client, plan: Plan, baseline: str | None) -> tuple[tuple[Mapping[str, Any], ...], bool]:
    """Create the evaluations, or find them again. After a replay the document is read: the replayed one is from
    creation (S34)."""
    documents: list[Mapping[str, Any]] = []
    replayed = False
    for group in range(len(plan.evaluations)):
        created = await created_evaluation(client, plan, group, baseline)
        document: Mapping[str, Any] = created.document
        if created.replayed:
            replayed = True
            document = await client.get_evaluation(document["id"])
        documents.append(document)
    return tuple(documents), replayed


async def created_evaluation(client: Client, plan: Plan, group: int, baseline: str | None = None) -> Created:
    """One evaluation. The baseline is the server's to know: where it does not (or did not, when the evaluation was
    first created), the evaluation has none, and ours is compared from artifacts alone."""
    k = plan.evaluations[group].k
    key = evaluation_key(plan.id, k, sum(evaluation.k == k for evaluation in plan.evaluations[:group]))
    if baseline is not None:
        try:
            return await client.create_evaluation(evaluation_body(plan, group, baseline=baseline), key=key)
        except ProblemAnswer as problem:
            unknown = any(error.get("name") == "/baseline_harness_commit" for error in problem.errors)
            if not unknown and problem.code != "idempotency_key_conflict":
                raise
    return await client.create_evaluation(evaluation_body(plan, group), key=key)


def _with_artifact(
    plan: Plan, documents: Sequence[Mapping[str, Any]], store: ResultsStore, folder: str | None, seal: Seal
) -> Plan:
    """The plan with its evaluations' ids, stored before the first task; a resume keeps its folder (S35)."""
    ids = [str(document["id"]) for document in documents]
    if folder is None:
        named = seal.signed(plan.with_evaluations(ids))
        write_plan(store, named)
        return named
    earlier = seal.check(plan.id, read_plan(store, folder))
    if [e.id for e in earlier.evaluations] != ids:
        raise OperatorError(
            f"{store.shown(folder)} belongs to {earlier.id}, but to other evaluations than the platform's; "
            "move that folder away, or use --fresh"
        )
    again = replace(
        earlier,
        concurrency=plan.concurrency,
        limits=plan.limits,
        quarantine=plan.quarantine,
        baseline=plan.baseline,
    )
    return seal.signed(again)


def put_bundle(store: ResultsStore, plan: Plan, bundle: Bundle | None) -> None:
    """The graders, by digest, beside the plan that names them. One that is gone on with keeps its own: what no pin
    holds of the tree (a case that it does not play) may have changed since."""
    if bundle is None or plan.graders is None:
        return
    path = f"{plan.artifact}/{GRADERS_FILE}"
    if plan.graders.digest == bundle.digest:
        store.write_bytes_exclusive(path, bundle.data)
    elif not store.exists(path):
        raise OperatorError(
            f"{plan.id} was cut short before its graders were stored, and evals/ has changed since: --fresh starts over"
        )


def put_graders(ledger: Ledger, store: ResultsStore, plan: Plan) -> None:
    """The stored bundle on the books, where workers find it that have no access to the results."""
    if plan.graders is not None and plan.limits.grade:
        path = f"{plan.artifact}/{GRADERS_FILE}"
        ledger.put_graders(plan.id, plan.graders.digest, lambda: store.read_bytes(path))


def recorded_attempts(plan: Plan, documents: Sequence[Mapping[str, Any]]) -> Iterator[Attempt]:
    """What the evaluations hold."""
    by_key = {(plan.key_of(a), a.trial): a for a in plan.all_attempts()}
    for document in documents:
        for case in document.get("cases", ()):
            for trial in case.get("recorded_attempts") or ():
                attempt = by_key.get((case["key"], trial))
                if attempt is not None:
                    yield attempt


def books(plan: Plan, documents: Sequence[Mapping[str, Any]], store: ResultsStore) -> Books:
    """What is done, by the evaluations and the evidence; what it cost where a budget counts it."""
    done = dict.fromkeys(recorded_attempts(plan, documents), "recorded")
    index = AttemptsIndex(store, plan.artifact)
    index.refresh()
    for attempt in plan.all_attempts():
        entry = index.entries.get((plan.cases[attempt.case].name, plan.scenario(attempt).id, attempt.trial))
        if entry is not None and entry.verdict is not None:
            done[attempt] = entry.outcome
    if plan.limits.budget is None:
        return Books(done)
    still_open = {a.conversation for a in plan.all_attempts() if a not in done}
    return Books(done, spent_before(plan, open_artifact(store, plan.artifact).lines(), still_open))


def put_on_books(ledger: Ledger, opened: Opened, store: ResultsStore) -> None:
    """Hand the submission to dispatcher and workers. What only its judge failed is graded again, never played (S26); so
    is what graders were left out of, unless they are again."""
    plan = opened.plan
    known = books(plan, opened.evaluations, store)
    put_graders(ledger, store, plan)
    if not ledger.add(plan, known.done, spent=known.spent, replay=opened.resumed):
        return  # it runs
    index = AttemptsIndex(store, plan.artifact)
    index.refresh()
    for attempt in plan.all_attempts():
        entry = index.entries.get((plan.cases[attempt.case].name, plan.scenario(attempt).id, attempt.trial))
        if entry is None or entry.verdict is not None:
            continue
        line = index.line(entry)
        if line.get("code") not in TO_BE_GRADED or not line.get("trial_record"):
            continue
        if not plan.limits.grade:
            ledger.give_up(plan.id, attempt, str(line.get("reason")), str(line["code"]))
        else:
            kept = ("trial_record", "meaning", "run_id", "chat_id", "tries", "usage")
            play = {"attempt": str(attempt), **{name: line[name] for name in kept}}
            ledger.put_play(plan.id, attempt, jsontext.dumps(play))


def _resuming(plan: Plan, documents: Sequence[Mapping[str, Any]], record: Submission | None) -> str:
    total = sum(1 for _ in plan.all_attempts())
    have = sum(1 for _ in recorded_attempts(plan, documents))
    started = record.started_at if record is not None else str(documents[0].get("created_at", ""))
    return f"resuming {plan.id} (started {ago(started)}, {have} of {total} recorded; --fresh starts over)"


def ago(stamp: str, now: datetime | None = None) -> str:
    """`2 h ago`, `just now`; the stamp itself when it is no time."""
    try:
        then = datetime.fromisoformat(stamp)
    except ValueError:
        return stamp or "earlier"
    seconds = ((now or datetime.now(UTC)) - then).total_seconds()
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit} ago"
    return "just now" if seconds < 10 else f"{int(seconds)} s ago"
