"""What did not pass the last time that it was played? (`--failed`)

Each chosen scenario is looked for in the artifacts, the newest first: a run of a few of them says nothing about the
others. Whatever is not known to have passed is played, so a scenario that was never played is as well.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalfleet.artifact import list_results, open_artifact, read_summary
from evalfleet.checks.case import case_key, load_cases, load_suite, parse_case
from evalfleet.errors import AuthorError, OperatorError, StorageError
from evalfleet.results import FolderResults, results_store
from evalfleet.tree import find_tree, read_tree_config
from scheduler.pins import FAILED
from scheduler.score import recorded
from scheduler.select import DRAFT, select
from scheduler.spend import Spend
from scheduler.submissions import Submissions

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LastTime:
    """`keys`: `<case>/<scenario id>` of what is to be played again, none where everything passed. `sentence`: how that
    is known, with the artifacts it was read from. `artifact`: the newest of them, as a person opens it."""

    keys: frozenset[str]
    sentence: str
    artifact: str | None

    def document(self) -> dict[str, Any]:
        """What `--json` prints where there is nothing to play: the keys of a result, and the sentence."""
        return {
            "verdict": "pass",
            "exit_code": 0,
            "submission": None,
            "artifact": self.artifact,
            "commit": None,
            "spend": Spend().document(),
            "evaluations": [],
            "graders": [],
            "scenarios": [],
            "note": self.sentence,
        }


def not_passed(
    start: Path,
    words: Sequence[str],
    *,
    deselect: Sequence[str] = (),
    drafts: bytes | None = None,
    suite: Path | None = None,
    results: Path | None = None,
    state: Path | None = None,
) -> LastTime | None:
    """Of what the words choose in the tree. None: tree or words are refused, and `prepare` says all that is wrong.

    An unfinished evaluation that `--failed` itself began is passed over: the same command goes on with it (S34), so it
    has to choose the same again.
    """
    try:
        root = find_tree(start)
        config = read_tree_config(root)
        loaded = load_cases(root) if suite is None else load_suite(suite, root=root)
        draft = None if drafts is None else parse_case(drafts, name=DRAFT, file="--scenarios", draft=True)
        if loaded.problems or (draft is not None and draft.problems):
            return None
        chosen = select(
            loaded.cases, words, root=root, drafts=draft.cases[0] if draft is not None else None, deselect=deselect
        ).chosen
    except (AuthorError, OperatorError):
        return None
    unfinished = {
        record.artifact
        for record in Submissions((state or root / ".evalfleet").resolve()).all()
        if record.unfinished and FAILED in record.words
    }
    return last_time(results_store(results or config.results_folder), chosen, passed_over=unfinished)


def last_time(store: FolderResults, chosen: Collection[str], *, passed_over: Collection[str] = ()) -> LastTime:
    """What of the chosen keys the artifacts of a store do not show as passed."""
    verdicts: dict[str, str] = {}
    seen_in: dict[str, str] = {}
    for artifact in list_results(store):
        if len(verdicts) == len(chosen):
            break
        if artifact in passed_over:
            continue
        for key, verdict in _verdicts(store, artifact):
            if key in chosen and key not in verdicts:
                verdicts[key], seen_in[key] = verdict, artifact
    again = {key for key in chosen if verdicts.get(key) != "pass"}
    newest = max(seen_in.values(), default=None)
    place = None if newest is None else store.shown(newest)
    counted = Counter(seen_in[key] for key in (again or chosen) if key in seen_in)
    where = _places(store, counted)
    if not again:
        sentence = f"nothing to play: {_all(len(chosen))} passed when last played, {where}"
        return LastTime(frozenset(), sentence, place)
    parts = [f"{sum(counted.values())} did not pass when last played, {where}"] if counted else []
    never = len(again) - sum(counted.values())
    parts += [f"{never} never played"] if never else []
    return LastTime(frozenset(again), f"{FAILED}: {len(again)} of {len(chosen)}: {'; '.join(parts)}", place)


def _verdicts(store: FolderResults, artifact: str) -> Iterator[tuple[str, str]]:
    """Of every scenario of an artifact; nothing of one that cannot be read, which is said in the log."""
    try:
        summary = read_summary(store, artifact)
        scenarios: Sequence[Mapping[str, Any]]
        if summary is None:  # its command was killed: the evidence is all there is
            rows = recorded(open_artifact(store, artifact)).scenarios
            scenarios = [{"case": row.case, "scenario": row.scenario, "verdict": row.verdict} for row in rows]
        else:
            scenarios = [row for row in summary.get("scenarios") or () if isinstance(row, Mapping)]
        for row in scenarios:
            yield case_key(str(row.get("case")), str(row.get("scenario"))), str(row.get("verdict"))
    except (StorageError, ValueError) as problem:
        _log.warning("passed over: %s: %s", store.shown(artifact), problem)


def _places(store: FolderResults, counted: Mapping[str, int]) -> str:
    names = sorted(counted, reverse=True)
    shown = [store.shown(name) + (f" ({counted[name]})" if len(names) > 1 else "") for name in names[:3]]
    rest = len(names) - len(shown)
    return "in " + ", ".join(shown) + (f" and {rest} more" if rest else "")


def _all(number: int) -> str:
    return "the scenario" if number == 1 else f"all {number} scenarios"
