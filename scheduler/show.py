"""Which artifact, and which trial of it, does a person want to read?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

from rich.text import Text

from evalfleet.artifact import Result, find, is_url, newest, open_artifact, open_result
from evalfleet.checks.near import near_name
from evalfleet.checks.text import trial_number
from evalfleet.errors import UsageError
from evalfleet.plan import Plan, PlannedScenario
from evalfleet.results import results_store
from scheduler.layout import clean, width_of, wrap, write_lines
from scheduler.render import Section, summary_lines, trials_in_words
from scheduler.score import recorded
from scheduler.summary import Summary
from scheduler.transcript import MOST_SHOWN, OUTCOMES, transcript

_CONTEXT = "played as context"
_ENDED = {"error": "ended in an error"}


def choose(result: str | None, scenario: str | None, results: Path) -> tuple[Result, str | None]:
    """The artifact and the CASE/SCENARIO that two optional words of `show` mean.

    An artifact is a folder (or a file in it), a URL, its name in the results folder, or a submission's id; without it
    the newest is meant. A single word that is none of these is a CASE/SCENARIO of the newest. UsageError when nothing
    fits.
    """
    store = results_store(results)
    if result is not None:
        if is_result(result):
            return open_result(result), scenario
        name = find(store, result)
        if name is not None:
            return open_artifact(store, name), scenario
        if scenario is not None or not _is_key(result):
            raise UsageError(
                f"{result} is no result: neither a folder with a suite.json nor a name or id in {store.shown()}"
            )
        scenario = result
    name = newest(store)
    if name is None:
        raise UsageError(f"there is no result in {store.shown()} yet; `evalfleet eval` makes one")
    return open_artifact(store, name), scenario


def show(
    result: Result,
    stream: TextIO,
    *,
    scenario: str | None = None,
    trial: int | None = None,
    more: Sequence[Section] = (),
) -> None:
    """Print the verdicts, then one trial: of `scenario` (CASE/SCENARIO) if given, else the first that did not pass.

    `trial` is an index, from 0; without it the scenario's first failure, else its first trial. `more` stands before the
    last line of the verdicts. UsageError, before anything is printed, for what the artifact does not hold.
    """
    width = width_of(stream)
    summary = recorded(result)
    key = _wanted(result, summary, scenario, trial)
    write_lines(_page(result, summary, key, width, more), stream)


def _page(
    result: Result, summary: Summary, key: tuple[str, str, int] | None, width: int | None, more: Sequence[Section]
) -> Iterator[Text]:
    yield from summary_lines(summary, width, more)
    for damage in result.damage:
        yield Text(f"damaged: {clean(damage)}", "bold red")
    if key is None:
        yield Text()
        hint = "no trial of these failed; `evalfleet show CASE/SCENARIO` shows one that passed"
        yield from (Text(part, "dim") for part in wrap(hint, width))
        return
    yield Text()
    yield Text("─" * (width or 80), "dim")
    yield from _trial_lines(result, key, width, MOST_SHOWN)
    yield from _others(result, key, width)


def whole_trial(result: Result, scenario: str, trial: int | None) -> tuple[tuple[str, str, int], Iterator[Text]]:
    """(case, scenario, trial) that the words mean, as `show` reads them, and the transcript with no text shortened."""
    key = _wanted(result, recorded(result), scenario, trial)
    assert key is not None
    return key, _trial_lines(result, key, None, None)


def _trial_lines(result: Result, key: tuple[str, str, int], width: int | None, most: int | None) -> Iterator[Text]:
    line = result.line(*key)
    planned = _planned(result.plan, f"{key[0]}/{key[1]}")
    assert line is not None
    assert planned is not None
    trials = planned.scenario.trials if planned.evaluation is not None else None
    yield from transcript(line, trials, width, planned.scenario, most=most)


def _others(result: Result, key: tuple[str, str, int], width: int | None) -> Iterator[Text]:
    """Which other trials there are, by how they ended: a flaky scenario is understood by its two kinds of trials."""
    ended: dict[str, list[int]] = {word: [] for word in (*OUTCOMES, _CONTEXT)}
    for trial in result.places.trials(*key[:2]):
        line = result.line(*key[:2], trial) if trial != key[2] else None
        if line is not None:
            word = _CONTEXT if line.get("context") else str(line.get("outcome"))
            ended.setdefault(word, []).append(trial)
    parts = [f"{trials_in_words(trials)} {_ENDED.get(word, clean(word))}" for word, trials in ended.items() if trials]
    if parts:
        yield Text()
        yield from (Text(part, "dim") for part in wrap(f"others: {'; '.join(parts)} (--trial N shows one)", width))


def _wanted(result: Result, summary: Summary, scenario: str | None, trial: int | None) -> tuple[str, str, int] | None:
    """Whose transcript to show; None when every trial passed and none was asked for."""
    if scenario is None:
        if trial is not None:
            raise UsageError("--trial says which trial of a scenario: name it too, as CASE/SCENARIO")
        for found in summary.scenarios:
            if found.first_failure_trial is not None and result.line(
                found.case, found.scenario, found.first_failure_trial
            ):
                return found.case, found.scenario, found.first_failure_trial
        return None
    if _planned(result.plan, scenario) is None:
        keys = [f"{case.name}/{p.scenario.id}" for case in result.plan.cases for p in case.scenarios]
        guess = near_name(scenario, keys)
        hint = (
            f"; did you mean {guess}?"
            if guess
            else f"; it holds {', '.join(keys[:10])}{' …' if len(keys) > 10 else ''}"
        )
        raise UsageError(f"{result.place} holds no scenario {scenario}{hint}")
    case, _, id_ = scenario.partition("/")
    trials = result.places.trials(case, id_)
    if not trials:
        why = next(
            (s.missing[0].reason for s in summary.scenarios if (s.case, s.scenario) == (case, id_) and s.missing), ""
        )
        raise UsageError(f"{scenario} has no trial in {result.place}{': ' + why if why else ''}")
    if trial is None:
        failed = next((s.first_failure_trial for s in summary.scenarios if (s.case, s.scenario) == (case, id_)), None)
        trial = failed if failed in trials else trials[0]
    if trial not in trials:
        there = trials_in_words(trials)
        raise UsageError(f"{scenario} has no trial {trial_number(trial)} in {result.place}, only {there}")
    return case, id_, trial


def _planned(plan: Plan, key: str) -> PlannedScenario | None:
    for case in plan.cases:
        for planned in case.scenarios:
            if f"{case.name}/{planned.scenario.id}" == key:
                return planned
    return None


def is_result(text: str) -> bool:
    """Is this an artifact's folder, a file in one, or a URL, which can be nothing else?"""
    if is_url(text):
        return True
    path = Path(text)
    folder = path if path.is_dir() else path.parent
    return path.exists() and any((place / "suite.json").is_file() for place in (folder, folder.parent))


def _is_key(text: str) -> bool:
    """CASE/SCENARIO: neither name can hold a slash (S3)."""
    case, slash, scenario = text.partition("/")
    return bool(case and slash and scenario) and "/" not in scenario and not text.startswith(".")
