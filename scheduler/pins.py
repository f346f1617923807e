"""When is a submission the same one as before, and if it is not, what has changed?

The pin is a digest over everything that decides what would be recorded (S34). A submission is a pin and a generation:
the plain command continues the newest generation that is unfinished, else it starts the next one. The pin's parts are
kept one by one, each as a digest, so that a person can be told which of them moved.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

from evalfleet.checks.case import case_key
from evalfleet.checks.digest import digest
from evalfleet.contract.ids import public_id
from evalfleet.errors import UsageError
from evalfleet.harnessfiles import files_of
from evalfleet.plan import PlannedEvaluation, PlannedTarget, Scorer
from evalfleet.tree import TreeConfig, TreeVersion
from scheduler.select import Selection

GRADERS_FOLDER = "evals/graders"


@dataclass(frozen=True, slots=True)
class Pin:
    """`digest` 64 hex digits over `parts`: a part's name for people → a digest or a plain id. No part holds a value of
    an environment variable."""

    digest: str
    parts: Mapping[str, str]


def make_pin(
    config: TreeConfig,
    *,
    target: PlannedTarget,
    commit: str,
    evaluations: Sequence[PlannedEvaluation],
    scorer: Scorer,
    baseline: str | None = None,
    server: str | None = None,
    environment: Mapping[str, str],
) -> Pin:
    """S34: suite keys and versions, k, harness, commit, scorer, baseline, the `[harness]`, `[judge]` and `[graders]`
    settings, and the values of the variables in `[harness] pin_env` (hashed).
    `server`: the address of a fleet's own server, whose evaluations are others than those of this tree's folder.
    """
    parts = {f"suite {evaluation.suite.key}": evaluation.suite.version for evaluation in evaluations}
    parts["trials"] = ",".join(str(evaluation.k) for evaluation in evaluations)
    # The embedded server gives a harness its id; on a platform the id is the harness, and the platform part of it.
    parts["harness"] = target.harness if target.base_url is None else f"{target.name} {target.harness_id}"
    if server is not None:
        parts["server"] = server
    parts["machine"] = target.machine_id or ""
    parts["commit"] = commit
    parts["scorer"] = f"{scorer.id} {scorer.version}"
    parts["baseline"] = baseline or ""
    parts["[harness] settings"] = digest(_settings(config.harness))
    parts["[judge] settings"] = digest(_settings(config.judge))
    parts["[graders] settings"] = digest(_settings(config.graders))
    for name in () if config.harness is None else config.harness.pin_env:
        parts[f"environment variable {name}"] = _hashed(name, environment.get(name))
    return Pin(digest(parts), parts)


def _hashed(name: str, value: str | None) -> str:
    if value is None:
        return "not set"
    text = f"evalfleet pin_env\0{name}\0{value}".encode("utf-8", "surrogateescape")
    return hashlib.sha256(text).hexdigest()


def _settings(value: Any) -> Any:
    """A settings dataclass as JSON; its class is part of it, since two drivers may have equal fields."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: _settings(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"is": type(value).__name__, **fields}
    if isinstance(value, Mapping):
        return {key: _settings(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_settings(item) for item in value]
    return str(value.normalize()) if isinstance(value, Decimal) else value


def submission_id(pin: str, generation: int) -> str:
    """`sub_` and 26 base32 characters, a pure function of pin and generation (S34)."""
    summed = hashlib.sha256(f"submission\0{pin}\0{generation}".encode("ascii")).digest()
    return public_id("sub", UUID(bytes=summed[:16]))


def evaluation_key(submission: str, k: int, part: int = 0) -> str:
    """The idempotency key under which a submission's evaluation of `k` trials is created; `part` where they are several
    (`scheduler.plan.split`), from 0."""
    which = f"\0{part}" if part else ""
    return hashlib.sha256(f"evaluation\0{submission}\0{k}{which}".encode("ascii")).hexdigest()


def file_digests(config: TreeConfig, selection: Selection, version: TreeVersion) -> dict[str, str]:
    """The files that a pin's parts come from, so that a change can be named: case files by what they say (comments
    don't count), grader files, and the harness files that differ from git HEAD (all of them without git)."""
    files = dict(version.changed)
    said: dict[str, list[str]] = {}
    for case in selection.cases:
        chosen = [s.id for s in case.scenarios if case_key(case.name, s.id) in selection.chosen]
        content = digest([[[scenario.content(), scenario.given] for scenario in case.scenarios], chosen])
        for file in {case.file, *(s.place.file for s in case.scenarios)}:  # rows may stand beside their suite's file
            said.setdefault(file, []).append(content)
    files |= {file: digest(sorted(contents)) for file, contents in said.items()}
    folder = config.root / GRADERS_FOLDER
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        if path.is_file() and "__pycache__" not in path.parts:
            files[path.relative_to(config.root).as_posix()] = _file_digest(path)
    return files


def _file_digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error


def what_changed(
    before: Mapping[str, str], now: Mapping[str, str], files_before: Mapping[str, str], files_now: Mapping[str, str]
) -> str:
    """The parts of two pins that differ, in words, files first; "" when nothing does."""
    said = []
    if before.get("commit") != now.get("commit") or _suites(before) != _suites(now):
        changed = [p for p in {*files_before, *files_now} if files_before.get(p) != files_now.get(p)]
        if changed:
            said.append(f"{files_of(changed)} changed")
    if before.get("commit") != now.get("commit") and not said:
        said.append(f"the commit was {before.get('commit', '?')[:12]} and is {now.get('commit', '?')[:12]}")
    if _suites(before) != _suites(now) and not said:
        keys = sorted(set(_suites(before)) ^ set(_suites(now)))
        said.append(f"other scenarios or trials are asked for ({', '.join(keys)})" if keys else "the scenarios changed")
    others = sorted({*before, *now} - {*_suites(before), *_suites(now), "commit", "trials"})
    said += [f"{part} changed" for part in others if before.get(part) != now.get(part)]
    return "; ".join(said)


def _suites(parts: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in parts.items() if name.startswith("suite ")}
