"""What must be true at the end, whatever happened on the way?

Each check reads two places that must agree: the server's tables, the artifact, the agents' own lines, Redis, the fault
log. All of them answer with sentences, so that a failing seed shows everything that is wrong with it at once.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
from sqlalchemy import text

from evalfleet.artifact import FolderResults, find, open_artifact
from evalfleet.server.engines import make_engine
from tests.chaos.suite import Call

QUEUES = ("run", "grade", "aggregate")
OF_THE_SERVER = frozenset({"server_lost", "internal_error"})
"""Codes of runs whose server died, or could not write what its agent said."""
UNACKED = {"ef:unacked", "ef:unacked_index"}


@dataclass(frozen=True, slots=True)
class Run:
    """A run as the server keeps it."""

    id: str
    chat: str
    turn: int
    status: str
    code: str
    case: str
    trial: int
    number: int

    @property
    def place(self) -> tuple[str, int, int, int]:
        return self.case, self.trial, self.turn, self.number


@dataclass(frozen=True, slots=True)
class Recorded:
    """An attempt as an evaluation holds it."""

    scenario: str
    index: int
    run: str
    verdict: str


def _read(database: str, query: str) -> Sequence[Any]:
    engine = make_engine(database)
    try:
        with engine.connect() as connection:
            return connection.execute(text(query)).all()
    finally:
        engine.dispose()


def runs(database: str) -> list[Run]:
    rows = _read(database, "SELECT id, chat_id, turn, status, failure, metadata FROM runs")
    made = []
    for run_id, chat, turn, status, failure, metadata in rows:
        about = json.loads(metadata)
        code = json.loads(failure)["code"] if failure else ""
        made.append(
            Run(
                run_id, chat, turn, status, code,
                about["evalfleet.case"], about["evalfleet.trial"], about["evalfleet.try"],
            )
        )  # fmt: skip
    return made


def recorded(database: str) -> list[Recorded]:
    cases = "JOIN evaluation_cases USING (evaluation_id, position)"
    rows = _read(database, f"SELECT key, attempt_index, run_id, verdict FROM attempts {cases}")
    return [Recorded(json.loads(key), index, run, verdict) for key, index, run, verdict in rows]


def unfinished_evaluations(database: str) -> list[str]:
    rows = _read(database, "SELECT id, status FROM evaluations WHERE status <> 'completed'")
    return [f"evaluation {identity} is {status}" for identity, status in rows]


def all_recorded_once(attempts: Sequence[Recorded], wanted: int) -> Iterator[str]:
    if len(attempts) != wanted:
        yield f"{len(attempts)} attempts are recorded, {wanted} were asked for"
    doubled = [key for key, n in Counter((a.scenario, a.index) for a in attempts).items() if n > 1]
    if doubled:
        yield f"recorded more than once: {doubled[:5]}"


def called_once(calls: Sequence[Call], made: Sequence[Run]) -> Iterator[str]:
    """An agent call for each run that an agent played, and a run for each (conversation, turn, try)."""
    for what, places in (("agent calls", [c.place for c in calls]), ("runs", [r.place for r in made])):
        doubled = {place: n for place, n in Counter(places).items() if n > 1}
        if doubled:
            yield f"more than one of the {what} of (case, trial, turn, try): {doubled}"
    called = {call.run for call in calls}
    for run in made:
        if run.status == "succeeded" and run.id not in called:
            yield f"{run.id} of {run.place} succeeded without an agent"
    unknown = called - {run.id for run in made}
    if unknown:
        yield f"agents were called for runs that nobody keeps: {unknown}"


def repeats_are_explained(made: Sequence[Run], killed_agents: Collection[str], server_faults: int) -> Iterator[str]:
    """A try follows another one only where a server was lost under that one, or lost its database; an agent that was
    killed is not tried again (S17: `agent_exit` is the agent's)."""
    lost = {(run.case, run.trial, run.number) for run in made if run.code in OF_THE_SERVER}
    for case, trial, number in sorted({(run.case, run.trial, run.number) for run in made if run.number > 0}):
        if (case, trial, number - 1) not in lost:
            yield f"{case} trial {trial}: try {number} has no reason, a server was not lost in try {number - 1}"
    if lost and not server_faults:
        yield f"no server had a fault, and {len(lost)} tries lost theirs"
    for run in made:
        if run.status not in {"succeeded", "failed"}:
            yield f"{run.id} of {run.place} is {run.status}"
        if run.code not in {"", *OF_THE_SERVER} and run.id not in killed_agents:
            yield f"{run.id} of {run.place} has failed with {run.code}, and nobody killed its agent"


def verdicts_are_right(
    attempts: Sequence[Recorded], made: Sequence[Run], killed_agents: Collection[str]
) -> Iterator[str]:
    """Everything passes but for conversations whose agent was killed in the very try that counts (I5)."""
    by_id = {run.id: run for run in made}
    hurt = {(r.case, r.trial, r.number) for r in made if r.id in killed_agents and r.code not in {"", *OF_THE_SERVER}}
    for attempt in attempts:
        run = by_id.get(attempt.run)
        if run is None:
            yield f"{attempt} names a run that the server has not"
        elif run.trial != attempt.index or not attempt.scenario.startswith(f"{run.case}/"):
            yield f"{attempt} names a run of {run.place}"
        elif attempt.verdict != "passed" and (run.case, run.trial, run.number) not in hurt:
            yield f"{attempt} failed, and nothing had been done to its agent"


def artifact_is_the_evaluation(results: Path, submission: str, attempts: Sequence[Recorded]) -> Iterator[str]:
    store = FolderResults(results)
    name = find(store, submission)
    if name is None:
        yield f"{results} holds no artifact of {submission}"
        return
    result = open_artifact(store, name)
    if result.damage:
        yield f"the artifact is damaged: {result.damage}"
    if result.summary is None:
        yield "the artifact has no summary"
    lines = {(f"{line['case']}/{line['scenario']}", line["trial"]): line for line in result.lines()}
    shown = {key: (line["run_id"], _wire_verdict(line["outcome"])) for key, line in lines.items()}
    held = {(a.scenario, a.index): (a.run, a.verdict) for a in attempts}
    for key in sorted(shown.keys() | held.keys()):
        if shown.get(key) != held.get(key):
            yield f"{key}: the artifact says {shown.get(key)}, the evaluation {held.get(key)}"
    if errors := [key for key, line in lines.items() if line["outcome"] == "error"]:
        yield f"trouble of ours became an error of the agent's (I5): {errors}"
    elsewhere = [key for key, line in lines.items() if line.get("recorded") == "elsewhere"]
    if elsewhere:
        yield f"recorded elsewhere, though nobody else was there: {elsewhere}"


def _wire_verdict(outcome: str) -> str:
    return "passed" if outcome == "passed" else "failed"  # S16


def nothing_stays_in_redis(client: redis.Redis, submission: str) -> Iterator[str]:
    """docs/fleet.md, "What stays in Redis": nothing beyond it."""
    bindings = {f"ef:_kombu.binding{kind}.{queue}" for kind in ("", "_permanent") for queue in QUEUES}
    for raw in client.scan_iter("*", count=1000):
        key = raw.decode()
        parts = key.split(":")
        ttl = client.ttl(key)
        if key in bindings | {"ef:epoch"}:
            continue
        if key in UNACKED:
            if client.hlen("ef:unacked") > client.zcard("ef:unacked_index"):
                yield "a message of a dead worker has no entry in ef:unacked_index: it never comes back"
        elif parts[1:3] == ["s", submission]:
            if parts[3] not in {"meta", "counts", "givenup", "log"} or ttl < 0:
                yield f"{key} stays, with a TTL of {ttl} s"
        elif ttl == -1:
            yield f"{key} stays for ever"


def summary_of(made: Sequence[Run], calls: Sequence[Call]) -> Mapping[str, Any]:
    """Numbers for the table."""
    return {
        "runs": len(made),
        "calls": len(calls),
        "tries_again": len({(r.case, r.trial, r.number) for r in made if r.number > 0}),
        "server_lost": sum(r.code in OF_THE_SERVER for r in made),
        "agents_killed": sum(r.code not in {"", *OF_THE_SERVER} for r in made),
    }
