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
FAILED = "--failed"
"""How the flag stands in a submission's words."""


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


@dataclass(frozen=True, slots=True)
class Asked:
    """What a submission was made of, as far as a person can be told of it: its words on the command line, the parts of
    its pin, and the digests of the files behind them."""

    words: Sequence[str]
    parts: Mapping[str, str]
    files: Mapping[str, str]


def what_changed(before: Asked, now: Asked) -> str:
    """Why two pins differ, in words; "" when they do not.

    Where something else was asked for (a selection, -k, --timeout), that is the reason, and no case file is named: what
    is known of these is what the selection took of them.
    """
    moved = before.parts.get("commit") != now.parts.get("commit")
    other_scenarios = _suites(before.parts) != _suites(now.parts)
    differently = other_scenarios and list(before.words) != list(now.words)
    chosen_anew = other_scenarios and not differently and FAILED in now.words
    said = []
    if moved or other_scenarios:
        changed = [p for p in {*before.files, *now.files} if before.files.get(p) != now.files.get(p)]
        if differently or chosen_anew:
            graders = f"{GRADERS_FOLDER}/"
            changed = [p for p in changed if p.startswith(graders) or (moved and not p.startswith("evals/"))]
        if changed:
            said.append(f"{files_of(changed)} changed")
    if moved and not said:
        said.append(f"the commit was {before.parts.get('commit', '?')[:12]} and is {now.parts.get('commit', '?')[:12]}")
    if differently:
        said.append(f"it was asked for {_words(before)}, and this is {_words(now)}")
    elif chosen_anew:
        said.append(f"{FAILED} chooses other scenarios now")
    elif other_scenarios and not said:
        were, are = before.parts.get("trials"), now.parts.get("trials")
        said.append("the scenarios changed" if were == are else f"trials were {were} and are {are}")
    others = sorted({*before.parts, *now.parts} - {*_suites(before.parts), *_suites(now.parts), "commit", "trials"})
    said += [f"{part} changed" for part in others if before.parts.get(part) != now.parts.get(part)]
    return "; ".join(said)


def _words(asked: Asked) -> str:
    return f"`{' '.join(asked.words)}`" if asked.words else "all cases"


def _suites(parts: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in parts.items() if name.startswith("suite ")}
