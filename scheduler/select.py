"""Which scenarios do the words on the command line mean?

A word is a case's name (with or without `.yaml`), the path of its file, a folder of case files, a glob (`to*`), or
`CASE/SCENARIO` with globs on either side. A name that is spelt exactly wins over the same text read as a glob. What a
word does not match is an error with the near names; nothing runs (S7, exit 2).
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evalfleet.checks.case import Case, case_key
from evalfleet.checks.near import folded, near_name
from evalfleet.errors import UsageError

DRAFT = "draft"
MAX_TRIALS = 100


@dataclass(frozen=True, slots=True)
class Selection:
    """What is to be scored. `cases` hold every scenario that may be played, with its trials as they will be run.

    `chosen` are the keys `<case>/<scenario id>` that are scored; the others of `cases` are context at most. `partial`:
    the tree has scenarios that are not chosen. `draft`: some come from `--scenarios` (S10).
    """

    cases: tuple[Case, ...]
    chosen: frozenset[str]
    words: tuple[str, ...] = ()
    partial: bool = False
    draft: bool = False

    @property
    def suite(self) -> str | None:
        """The name of the suite file (`--suite`) whose rows these are; None for cases of the tree."""
        return next((c.name for c in self.cases if c.scenarios[0].given is not None), None)


def select(
    cases: Sequence[Case],
    words: Sequence[str] = (),
    *,
    root: Path | None = None,
    drafts: Case | None = None,
    trials: int | None = None,
    timeout: float | None = None,
    deselect: Sequence[str] = (),
    only: Collection[str] | None = None,
) -> Selection:
    """The chosen scenarios of a tree, in file order.

    `root` is the tree's root, for words that are paths (also from another working directory). `drafts` (case `draft`)
    run alone unless words are given too (S7). `deselect` are words of what is left out again, `only` keys beside which
    everything is. `trials` and `timeout` (seconds) replace every scenario's own. UsageError: a word that matches
    nothing, nothing left, no case at all, trials out of 1–100.
    """
    if trials is not None and not 1 <= trials <= MAX_TRIALS:
        raise UsageError(f"--trials must be a whole number from 1 to {MAX_TRIALS}, not {trials}")
    if not cases and drafts is None:
        raise UsageError("there are no cases: evals/cases holds no .yaml file; `evalfleet init` writes a first one")
    everything = [*cases, *([] if drafts is None else [drafts])]
    chosen, unmatched = _all_matches(words, cases, root)
    left_out, unknown = _all_matches(deselect, everything, root)
    unmatched += [f"--deselect: {sentence}" for sentence in unknown]
    if unmatched:
        raise UsageError("\n".join(unmatched))
    if not words and drafts is None:
        chosen = set(_keys(cases))
    if drafts is not None:
        chosen |= set(_keys([drafts]))
    chosen -= left_out
    if not chosen:
        raise UsageError("nothing is left to play: --deselect leaves out everything that was chosen")
    if only is not None:
        chosen &= set(only)
    partial = drafts is None and len(chosen) < sum(len(case.scenarios) for case in cases)
    played = [case for case in everything if any(key in chosen for key in _keys([case]))]
    if trials is not None:
        played = [_with(case, trials=trials) for case in played]
    if timeout is not None:
        played = [_with(case, timeout=timeout) for case in played]
    return Selection(tuple(played), frozenset(chosen), tuple(words), partial, drafts is not None)


def _with(case: Case, **instead: Any) -> Case:
    return replace(case, scenarios=tuple(replace(scenario, **instead) for scenario in case.scenarios))


def _all_matches(words: Iterable[str], cases: Sequence[Case], root: Path | None) -> tuple[set[str], list[str]]:
    """The keys that any of the words means, and a sentence for each word that means none."""
    keys: set[str] = set()
    unmatched = []
    for word in words:
        found = set(_match(word, cases, root))
        keys |= found
        if not found:
            unmatched.append(_not_found(word, cases))
    return keys, unmatched


def _keys(cases: Iterable[Case]) -> Iterator[str]:
    for case in cases:
        for scenario in case.scenarios:
            yield case_key(case.name, scenario.id)


def _match(word: str, cases: Sequence[Case], root: Path | None) -> Iterator[str]:
    """Keys that a word means; the first reading that matches anything wins, `tone.yaml` as the name `tone` last."""
    name = _without_ending(word)
    for readings in (
        _by_path(word, cases, root),
        _by_name(word, cases),
        _by_glob(word, cases),
        _by_name(name, cases),
        _by_glob(name, cases),
    ):
        found = list(readings)
        if found:
            yield from found
            return


def _without_ending(word: str) -> str:
    """`tone.yaml` as `tone`, `tone.yaml/brief` as `tone/brief`: the ending of a case's file is no part of its name."""
    case, slash, scenario = word.partition("/")
    return f"{case.removesuffix('.yaml')}{slash}{scenario}"


def _by_path(word: str, cases: Sequence[Case], root: Path | None) -> Iterator[str]:
    if "/" not in word and not word.endswith((".yaml", ".yml")) and os.sep not in word:
        return
    places = {_plain(word)}
    if root is not None:
        top = root.resolve()
        for base in (Path.cwd(), top):
            place = Path(os.path.normpath(base / word))
            if place.is_relative_to(top):
                places.add(place.relative_to(top).as_posix())
    for case in cases:
        file = case.file.removeprefix("./")
        if file in places or any(file.startswith(f"{place}/") for place in places if place.startswith("evals")):
            yield from _keys([case])


def _plain(word: str) -> str:
    return os.path.normpath(word) if word else word


def _by_name(word: str, cases: Sequence[Case]) -> Iterator[str]:
    wanted = folded(word)
    exact = [case for case in cases if case.name == word] or [case for case in cases if folded(case.name) == wanted]
    if exact:
        yield from _keys(exact)
        return
    yield from (key for key in _keys(cases) if folded(key) == wanted)


def _by_glob(word: str, cases: Sequence[Case]) -> Iterator[str]:
    case_glob, slash, scenario_glob = word.partition("/")
    for case in cases:
        if not _fits(case.name, case_glob):
            continue
        for scenario in case.scenarios:
            if not slash or _fits(scenario.id, scenario_glob):
                yield case_key(case.name, scenario.id)


def _fits(name: str, glob: str) -> bool:
    """Exactly equal, or matched by the glob; both as folded names, so `*` never reaches over the slash of a key."""
    if folded(name) == folded(glob):
        return True
    return re.match(fnmatch.translate(folded(glob)), folded(name)) is not None


def _not_found(word: str, cases: Sequence[Case]) -> str:
    names = list(dict.fromkeys(case.name for case in cases))
    case_name, slash, scenario_id = word.partition("/")
    inside = next((case for case in cases if folded(case.name) == folded(case_name)), None)
    if slash and inside is not None:
        ids = [scenario.id for scenario in inside.scenarios]
        return f"case {inside.name!r} has no scenario {scenario_id!r}{_near(scenario_id, ids, 'it has')}"
    stem = Path(word).stem if word.endswith((".yaml", ".yml")) else case_name or word
    return f"no case matches {word!r}{_near(stem, names, 'there are')}"


def _near(word: str, names: Sequence[str], otherwise: str) -> str:
    near = near_name(word, names)
    if near is not None:
        return f" (did you mean {near!r}?)"
    listed = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
    return f"; {otherwise}: {listed}" if names else ""
