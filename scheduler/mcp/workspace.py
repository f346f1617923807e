"""What does a tool work on, what is it given, and what does it give back?"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalfleet.errors import UsageError
from evalfleet.surroundings import user_environment
from evalfleet.tree import TreeConfig, find_tree, read_tree_config
from scheduler.evaluate import Options
from scheduler.interrupt import Interrupts
from scheduler.prepare import retargeted
from scheduler.progress import in_words
from scheduler.show import is_result

if TYPE_CHECKING:
    from collections.abc import Callable

    from evalfleet.ledger import Progress

DEFAULT_BUDGET = "5"
"""What one evaluation may spend when neither the call nor the operator says: in the currency that the runs report."""

_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a tool found: for a reader, and as the JSON object that its output schema describes."""

    text: str
    document: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Workspace:
    """The tree that one server works on, and what its operator said about it. `budget`: as written."""

    tree: Path
    state: Path | None = None
    results: Path | None = None
    budget: str = DEFAULT_BUDGET
    playing: dict[Call, tuple[str, str]] = field(default_factory=dict)
    """What `harness_eval` is at now, in words: for each call its selection and how far it is."""

    def config(self, *, on_target: bool = False, harness: str | None = None) -> TreeConfig:
        """As the files say now: they are edited between two calls."""
        config = read_tree_config(find_tree(self.tree))
        return retargeted(config, harness, None, on_target=on_target)

    def options(self, **more: Any) -> Options:
        return Options(state=self.state, results=self.results, environment=user_environment(), **more)

    def results_folder(self) -> Path:
        return self.results or self.config().results_folder

    def own(self, result: str | None) -> str | None:
        """The name of an artifact, if it is one of this tree's. A client chooses it, so neither another folder nor a
        bucket is read on its word: UsageError."""
        if result is None or not is_result(result):
            return result
        folder = self.results_folder()
        if "://" in result or not Path(result).resolve().is_relative_to(folder.resolve()):
            raise UsageError(f"{result} is not below {folder}: only artifacts of this tree are read here")
        return result


class Call:
    """One call of a tool: what ends it early, and who hears how far it is. A `Reporter`, called from its thread.

    `send(recorded, total, words)` passes progress on.
    """

    def __init__(self, send: Callable[[int, int | None, str], None]) -> None:
        self.interrupts = Interrupts(signals=())
        self.notes: list[str] = []
        self.warnings: list[str] = []
        self.said = ""
        self._send = send
        self._recorded = 0

    def note(self, text: str) -> None:
        self.notes.append(text)
        self._send(self._recorded, None, text)

    def warn(self, text: str) -> None:
        self.warnings.append(text)
        self._send(self._recorded, None, f"warning: {text}")

    def progress(self, progress: Progress, total: int, note: str, *, done: str = "recorded") -> None:
        self._recorded = progress.recorded
        self.said = "; ".join(filter(None, [in_words(progress, total, done=done), note]))
        self._send(progress.recorded, total, self.said)

    def done(self) -> None:
        return


def draft_of(scenarios: Any) -> bytes | None:
    """The bytes of a draft that came as data: JSON, which is YAML, one entry a line, so that the line and column of a
    message lead somewhere. Text is taken as YAML that the caller wrote."""
    if scenarios is None:
        return None
    if isinstance(scenarios, str):
        return scenarios.encode("utf-8", "surrogatepass")
    text = json.dumps(scenarios, ensure_ascii=False, indent=2)
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text).encode("utf-8")
