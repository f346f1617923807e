"""Which submissions were started from this tree, and how far did each get?

One small JSON file for each in the state folder, written whole (temporary file, sync, rename). What is recorded is the
evaluations' business (I1); this is what the plain command, `resume`, `cancel` and `list` find a submission by (S34).
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast, get_args

from evalfleet.errors import StorageError, UsageError
from evalfleet.plan import Plan
from scheduler.pins import Asked, Pin, what_changed

Status = Literal["running", "completed", "cancelled"]
FORMAT = 1
_ID = re.compile(r"sub_[0-9A-HJKMNP-TV-Z]{26}")


@dataclass(frozen=True, slots=True)
class Submission:
    """`status` running: unfinished, whether or not a process works on it. `words` is the selection as it was written;
    `parts` and `files` say what its pin was made of (digests only). Times are RFC 3339 UTC. `server`: the fleet's that
    it was handed to; "" for one that ran here or on a target."""

    id: str
    pin: str
    generation: int
    started_at: str
    artifact: str
    commit: str
    evaluations: tuple[str, ...]
    status: Status
    words: tuple[str, ...]
    parts: Mapping[str, str]
    files: Mapping[str, str]
    results: str = ""
    server: str = ""

    @property
    def unfinished(self) -> bool:
        return self.status == "running"

    @property
    def asked(self) -> Asked:
        return Asked(self.words, self.parts, self.files)

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "id": self.id,
            "pin": self.pin,
            "generation": self.generation,
            "started_at": self.started_at,
            "artifact": self.artifact,
            "commit": self.commit,
            "evaluations": list(self.evaluations),
            "status": self.status,
            "words": list(self.words),
            "parts": dict(self.parts),
            "files": dict(self.files),
            "results": self.results,
            "server": self.server,
        }

    @classmethod
    def from_json(cls, document: Any) -> Submission:
        """ValueError for what is no record of ours."""
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise ValueError(f"not a submission of format {FORMAT}")
        try:
            status = document["status"]
            if status not in get_args(Status):
                raise ValueError(f"unknown status {status!r}")
            return cls(
                id=str(document["id"]),
                pin=str(document["pin"]),
                generation=int(document["generation"]),
                started_at=str(document["started_at"]),
                artifact=str(document["artifact"]),
                commit=str(document["commit"]),
                evaluations=tuple(document["evaluations"]),
                status=cast("Status", status),
                words=tuple(document["words"]),
                parts=dict(document["parts"]),
                files=dict(document["files"]),
                results=str(document.get("results", "")),
                server=str(document.get("server", "")),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"a field is missing or unreadable: {error}") from error


def submission_of(
    plan: Plan,
    pin: Pin,
    *,
    words: tuple[str, ...] = (),
    files: Mapping[str, str] | None = None,
    results: str = "",
) -> Submission:
    """The record of a plan that starts now; `results` is where its artifact is."""
    return Submission(
        id=plan.id,
        pin=plan.pin,
        generation=plan.generation,
        started_at=plan.created_at,
        artifact=plan.artifact,
        commit=plan.commit,
        evaluations=tuple(evaluation.id or "" for evaluation in plan.evaluations),
        status="running",
        words=words,
        parts=pin.parts,
        files=files or {},
        results=results,
        server=pin.parts.get("server", ""),
    )


def is_id(text: str) -> bool:
    """Whether it is a whole id, spelt as we spell it."""
    return _ID.fullmatch(text) is not None


class Submissions:
    """The records of one state folder (`<state>/submissions/<id>.json`)."""

    def __init__(self, state: Path) -> None:
        self.folder = state / "submissions"

    def write(self, submission: Submission) -> None:
        """All or nothing, synced. StorageError when the folder takes no write."""
        if not _ID.fullmatch(submission.id):
            raise ValueError(f"no submission id: {submission.id!r}")
        data = json.dumps(submission.to_json(), indent=1, sort_keys=True).encode("ascii")
        path = self.folder / f"{submission.id}.json"
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _replace_whole(path, data)
        except OSError as error:
            raise StorageError(f"the state folder takes no write: {path}: {error.strerror or error}") from error

    def set_status(self, submission_id: str, status: Status) -> Submission:
        """The record with its new status, written."""
        changed = replace(self.find(submission_id), status=status)
        self.write(changed)
        return changed

    def read(self) -> tuple[list[Submission], list[str]]:
        """All records, newest first, and a sentence for each file that is none (it is left alone)."""
        found, damaged = [], []
        try:
            paths = sorted(self.folder.glob("sub_*.json"))
        except OSError as error:
            raise StorageError(f"{self.folder} cannot be read: {error.strerror or error}") from error
        for path in paths:
            try:
                found.append(Submission.from_json(json.loads(path.read_bytes())))
            except (OSError, ValueError) as error:
                damaged.append(f"{path} is no readable submission ({error}); delete it to be rid of this line")
        found.sort(key=lambda submission: (submission.started_at, submission.generation), reverse=True)
        return found, damaged

    def all(self) -> list[Submission]:
        """Newest first."""
        return self.read()[0]

    def newest(self, pin: str) -> Submission | None:
        """The highest generation of a pin."""
        return max((s for s in self.all() if s.pin == pin), key=lambda s: s.generation, default=None)

    def find(self, text: str) -> Submission:
        """By id, or by any beginning of it, with or without `sub_`, in either case. UsageError: none, or several."""
        wanted = text.strip().upper().removeprefix("SUB_")
        everything = self.all()
        found = [s for s in everything if wanted and s.id.removeprefix("sub_").startswith(wanted)]
        if len(found) == 1:
            return found[0]
        if not found:
            known = _listed(everything)
            raise UsageError(f"no submission {text!r} in {self.folder}" + (f"; there are:\n{known}" if known else ""))
        raise UsageError(f"{text!r} is the beginning of {len(found)} submissions:\n{_listed(found)}")

    def latest_unfinished(self) -> Submission:
        """What `resume` without an id means. UsageError when everything is finished."""
        for submission in self.all():
            if submission.unfinished and not submission.server:
                return submission
        fleets = [submission for submission in self.all() if submission.unfinished]
        if fleets:
            raise UsageError(
                f"nothing to resume here: {fleets[0].id} is unfinished and was submitted to the fleet of "
                f"{fleets[0].server}; `evalfleet resume {fleets[0].id}` with EVALFLEET_BROKER_URL set goes on with it"
            )
        raise UsageError("nothing to resume: no submission here is unfinished; `evalfleet list` shows what there is")


def why_not_resumed(previous: Submission | None, current: Submission) -> str:
    """Why the plain command starts `current` and does not go on with `previous`; "" when there is nothing to explain.

    Names the files or settings that changed (S34); a finished submission is never answered from.
    """
    if previous is None or not previous.unfinished or previous.pin == current.pin or previous.server != current.server:
        return ""
    changed = what_changed(previous.asked, current.asked)
    return (
        f"not going on with {previous.id} (started {previous.started_at[:19]}Z): {changed or 'its pin is another'}; "
        f"`evalfleet {'watch' if previous.server else 'resume'} {previous.id}` "
        f"{'follows it' if previous.server else 'finishes it as it was'}"
    )


def _listed(submissions: list[Submission]) -> str:
    lines = [
        f"  {s.id}  {s.started_at[:19]}Z  {s.status}  {' '.join(s.words) or 'all cases'}" for s in submissions[:10]
    ]
    return "\n".join(lines + ([f"  and {len(submissions) - 10} more"] if len(submissions) > 10 else []))


def _replace_whole(path: Path, data: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".new")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
