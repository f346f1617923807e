"""How is an evaluation's evidence written as it comes in, and read back, years later and by a stranger?

The format is described in `docs/artifact.md`. An artifact is a folder of a results store:

    suite.json           the plan: what was asked
    graders.tar.gz       the grader bundle that was used, if any
    trials/000001.jsonl  immutable segments of attempt lines, each created exclusively and synced (I4)
    trials.jsonl         the segments merged, one line for each attempt in the plan's order
    summary.json         the verdicts as they stood at the end

What a line is, and which one counts: `evalfleet.evidence`.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from evalfleet.errors import SettingError, StorageError, UsageError
from evalfleet.evidence import (
    MERGED,
    AttemptKey,
    AttemptsIndex,
    Damage,
    IndexEntry,
    append_segment,
    attempts_index,
    encode_document,
)
from evalfleet.places import Places, read_segments
from evalfleet.plan import Plan
from evalfleet.results import ARTIFACT_NAME, FolderResults, ResultsStore, results_store, shared_results

__all__ = [
    "AttemptKey",
    "AttemptsIndex",
    "Damage",
    "FolderResults",
    "IndexEntry",
    "Result",
    "ResultsStore",
    "append_segment",
    "artifact_name",
    "attempts_index",
    "find",
    "finish",
    "list_results",
    "newest",
    "open_artifact",
    "open_result",
    "read_plan",
    "read_segments",
    "read_summary",
    "results_store",
    "write_plan",
]

_log = logging.getLogger(__name__)


def artifact_name(at: datetime, submission: str) -> str:
    """`<UTC time>-<8 characters of the submission's id>`: sorts by time, and can be matched with the id by eye."""
    return f"{at.astimezone(UTC):%Y%m%dT%H%M%SZ}-{submission.rpartition('_')[2][:8].lower()}"


def write_plan(store: ResultsStore, plan: Plan) -> None:
    """Make the artifact's folder and put the plan there, before the first task. Idempotent for an equal plan."""
    store.create(plan.artifact)
    data = plan.dumps()
    path = f"{plan.artifact}/suite.json"
    if not store.write_bytes_exclusive(path, data) and store.read_bytes(path) != data:
        raise StorageError(f"{store.shown(path)} holds another plan: move that folder away and start again")


def read_plan(store: ResultsStore, artifact: str) -> Plan:
    """The plan of an artifact. StorageError says what is wrong with `suite.json`."""
    path = f"{artifact}/suite.json"
    try:
        return Plan.loads(store.read_bytes(path))
    except ValueError as problem:
        raise StorageError(f"{store.shown(path)}: {problem}") from problem


def finish(store: ResultsStore, artifact: str, summary: Mapping[str, Any]) -> None:
    """Merge the segments into `trials.jsonl` and write `summary.json`. Idempotent; equal evidence gives equal bytes.

    The segments stay: they are the evidence, and a resume adds to them.
    """
    plan = read_plan(store, artifact)
    index = AttemptsIndex(store, artifact)
    index.refresh()
    store.write_bytes(f"{artifact}/{MERGED}", index.merged(plan_order(plan)))
    store.write_bytes(f"{artifact}/summary.json", encode_document(summary))
    store.sweep(artifact)
    store.sweep(f"{artifact}/trials")


def plan_order(plan: Plan) -> list[AttemptKey]:
    """All that can have a line, by case, scenario and trial as the plan has them, context included."""
    return [
        (case.name, planned.scenario.id, trial)
        for case in plan.cases
        for planned in case.scenarios
        for trial in range(max(case.trials, planned.scenario.trials))
    ]


class Result:
    """An artifact opened for reading. `place` is what a person opens. Lines are looked at when they are asked for."""

    def __init__(
        self, store: ResultsStore, name: str, plan: Plan, summary: Mapping[str, Any] | None, damage: Sequence[Damage]
    ) -> None:
        self.store = store
        self.name = name
        self.plan = plan
        self.place = store.shown(name)
        self.summary = summary
        """`summary.json` as it was written at the end, if it was."""
        self._damage = tuple(damage)
        self._damaged_lines: list[Damage] = []

    @functools.cached_property
    def places(self) -> Places:
        """Where the lines are, by the files as they were at the first question."""
        return Places(self.store, self.name, damaged=self._damaged_lines.append)

    @property
    def damage(self) -> tuple[Damage, ...]:
        """What could not be read of it."""
        self.places  # noqa: B018  - reads every line
        return (*self._damaged_lines, *self._damage)

    def lines(self) -> Iterator[dict[str, Any]]:
        """One line for each attempt that has one, and the context lines; streamed, as often as it is asked for."""
        return self.places.lines()

    def line(self, case: str, scenario: str, trial: int) -> dict[str, Any] | None:
        """One attempt's line, or the context's where it was played as that."""
        return self.places.line((case, scenario, trial))


def is_url(text: str) -> bool:
    """Is it meant as the address of an artifact, and not as a path or a name?"""
    return "://" in text


def open_result(path: str | Path) -> Result:
    """Open an artifact by its folder, by a file in it, or by its URL in a results store, as reports show it
    (`s3://bucket/prefix/<artifact>`). UsageError if there is none."""
    if isinstance(path, str) and is_url(path):
        return _open_url(path)
    folder = Path(path)
    if folder.is_file():
        folder = folder.parent
    if folder.name == "trials" and (folder.parent / "suite.json").is_file():
        folder = folder.parent
    if not (folder / "suite.json").is_file():
        seen = "holds no suite.json" if folder.is_dir() else "is not there"
        near = list_results(FolderResults(folder.parent))[:3]
        hint = f"; newest there: {', '.join(near)}" if near else ""
        raise UsageError(f"{path} {seen}, so it is no result; give a folder of evals/results{hint}")
    folder = folder.resolve()
    return open_artifact(FolderResults(folder.parent), folder.name)


def _open_url(url: str) -> Result:
    place, _, name = url.rstrip("/").rpartition("/")
    if not ARTIFACT_NAME.fullmatch(name):
        raise UsageError(f"{url} is no artifact: its address ends as s3://bucket/prefix/20261130T100211Z-2m7fb3qv does")
    try:
        store = shared_results(place)
        store.check()
    except SettingError as wrong:  # it is no setting here
        raise UsageError(wrong.message.removeprefix(f"{wrong.setting}: ")) from wrong
    if not store.exists(f"{name}/suite.json"):
        near = list_results(store)[:3]
        hint = f"; newest there: {', '.join(near)}" if near else ""
        raise UsageError(f"{url} holds no suite.json, so it is no result{hint}")
    return open_artifact(store, name)


def open_artifact(store: ResultsStore, artifact: str) -> Result:
    """Open an artifact of a store. StorageError for one that cannot be read."""
    damage: list[Damage] = []
    summary: Mapping[str, Any] | None = None
    try:
        summary = read_summary(store, artifact)
    except ValueError as problem:
        damage.append(Damage(store.shown(f"{artifact}/summary.json"), 1, str(problem)))
    return Result(store, artifact, read_plan(store, artifact), summary, damage)


def read_summary(store: ResultsStore, artifact: str) -> Mapping[str, Any] | None:
    """`summary.json` as the last command wrote it at its end, None if there is none. ValueError: it is unreadable."""
    if not store.exists(f"{artifact}/summary.json"):
        return None
    read = orjson.loads(store.read_bytes(f"{artifact}/summary.json"))
    if not isinstance(read, dict):
        raise ValueError(f"expected an object, found {type(read).__name__}")  # noqa: TRY004 - a fact of the file
    return read


def list_results(store: ResultsStore) -> list[str]:
    """Names of the artifacts in a store, newest first."""
    return sorted((name for name in store.list() if ARTIFACT_NAME.fullmatch(name)), reverse=True)


def newest(store: ResultsStore) -> str | None:
    """The newest artifact that holds a plan."""
    return next((name for name in list_results(store) if store.exists(f"{name}/suite.json")), None)


def find(store: ResultsStore, submission: str) -> str | None:
    """The artifact of a submission: by its id, or by the artifact's own name."""
    names = list_results(store)
    if submission in names:
        return submission
    short = submission.rpartition("_")[2][:8].lower()
    for name in sorted(names, key=lambda name: not name.endswith(short)):
        try:
            if store.exists(f"{name}/suite.json") and read_plan(store, name).id == submission:
                return name
        except StorageError as problem:  # another evalfleet's, or damaged: one bad folder must not hide the others
            _log.warning("passed over while looking for %s: %s", submission, problem)
    return None
