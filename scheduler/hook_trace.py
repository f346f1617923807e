"""Whose hooks does `hook-trace` tell of, and where is their journal?

Of a run by its id, or of the harness's newest run, from the server: the platform with `--target`, the fleet's server
where `EVALFLEET_BASE_URL` names it, else this tree's own, which is started to be read. Or from an artifact: a run of
it, a scenario, one trial, or all of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.text import Text

from evalfleet.artifact import Result
from evalfleet.checks.assertions import HOOK_POINTS
from evalfleet.checks.hook_trace import HookPoint, hook_trace, never_reached
from evalfleet.checks.near import near_name
from evalfleet.checks.text import trial_number
from evalfleet.checks.trial import HookCall, Trial, hook_calls
from evalfleet.contract.client import Client
from evalfleet.credentials import key_variable
from evalfleet.errors import CredentialError, OperatorError, ProblemAnswer, TargetUnreachable, UsageError
from evalfleet.settings import Settings
from evalfleet.tree import TreeConfig, tree_commit
from scheduler.embedded import Stack
from scheduler.evaluate import Options, results_folder
from scheduler.layout import clean, pad, wrap
from scheduler.render import trials_in_words
from scheduler.show import choose
from scheduler.validate import check_target

CONTACT_S = 10.0
"""A server that does not answer for this long (seconds) is not there."""


@dataclass(frozen=True, slots=True)
class Trace:
    """`of`: in words, whose hooks these are. `run_id` where they are one run's."""

    of: str
    run_id: str | None
    points: Sequence[HookPoint]

    def lines(self, width: int | None) -> Iterator[Text]:
        """One line for each hook point (more where a terminal is narrow), then the known ones never reached."""
        names = max((len(clean(point.name)) for point in self.points), default=0)
        said = [f"{pad(clean(point.name), names)}  {point.sentence()}" for point in self.points]
        never = ", ".join(never_reached(self.points, HOOK_POINTS))
        for text in [*said, f"never reached: {never}"] if said else ["no hook was reached"]:
            first, *more = wrap(text, width)
            yield Text(first)
            for part in wrap(" ".join(more), None if width is None else width - 4) if more else ():
                yield Text(f"    {part}")

    def document(self) -> dict[str, Any]:
        return {"run_id": self.run_id, "of": self.of, "hooks": [point.document() for point in self.points]}


def trace_run(run: str | None, config: TreeConfig, options: Options, *, on_target: bool) -> Trace:
    """The hooks of a run as its journal on the server has them; None: the harness's newest run.

    UsageError for a run that nobody knows, and where the harness has none yet.
    """
    settings = Settings.from_env(options.environment)
    if on_target:
        check_target(config, options.environment)
        assert config.target is not None
        profile = config.target.profile
        base_url = config.target.base_url or settings.address(profile) or ""
        key = settings.require_key(profile)
        return _ask(base_url, key, key_variable(profile), run, config.target.harness_id, "")
    name = "" if config.harness is None else config.harness.name
    if settings.base_url is not None:
        return _ask(settings.base_url, settings.require_token(), "EVALFLEET_TOKEN", run, None, name)
    with Stack(config.root, state=options.state, command="evalfleet hook-trace") as stack:
        endpoints = stack.start(
            commit=tree_commit(config),
            concurrency=1,
            results=results_folder(config, options),
            with_worker=False,
            env=options.environment,
        )
        return _ask(endpoints.base_url, endpoints.token, "EVALFLEET_TOKEN", run, None, name, shown="this tree's server")


def trace_artifact(result: Result, wanted: str | None, trial: int | None) -> Trace:
    """The hooks of an artifact: `wanted` is a run's id, CASE/SCENARIO (with `trial`: that one), or None for all of it.

    Context counts too: its hooks were asked. UsageError for what the artifact does not hold.
    """
    if wanted is None or "/" not in wanted:
        if trial is not None:
            raise UsageError("--trial says which trial of a scenario: name it too, as CASE/SCENARIO")
        return _of_runs(result, wanted)
    case, _, id_ = wanted.partition("/")
    known = result.places.trials(case, id_)
    if not known:
        names = [f"{planned.name}/{p.scenario.id}" for planned in result.plan.cases for p in planned.scenarios]
        near = near_name(wanted, names)
        hint = f"; did you mean {near}?" if near else ""
        raise UsageError(f"{result.place} holds no trial of {wanted}{hint}")
    if trial is not None and trial not in known:
        there = trials_in_words(known)
        raise UsageError(f"{wanted} has no trial {trial_number(trial)} in {result.place}, only {there}")
    chosen = known if trial is None else [trial]
    calls = (hook for number in chosen for hook in _hooks(result.line(case, id_, number)))
    of = f"{wanted}, {f'{len(known)} trials' if trial is None else f'trial {trial_number(trial)}'}"
    return Trace(of, None, hook_trace(calls))


def _of_runs(result: Result, run: str | None) -> Trace:
    found = run is None

    def calls() -> Iterator[HookCall]:
        nonlocal found
        for line in result.lines():
            found = found or any(turn.get("run_id") == run for turn in _turns(line))
            yield from (hook for hook in _hooks(line) if run is None or hook.run_id == run)

    points = hook_trace(calls())
    if not found:
        raise UsageError(f"{result.place} holds no run {run}; without --result it is looked for on the server")
    return Trace(f"all of {result.place}" if run is None else f"{run} in {result.place}", run, points)


def _turns(line: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    record = line.get("trial_record")
    return record.get("turns") or () if isinstance(record, Mapping) else ()


def _hooks(line: Mapping[str, Any] | None) -> tuple[HookCall, ...]:
    """A trial that cannot be read has none; `show` says why."""
    try:
        return Trial.from_json(line["trial_record"]).hooks if line and line.get("trial_record") else ()
    except ValueError:
        return ()


def _ask(
    base_url: str, token: str, key: str, run: str | None, harness_id: str | None, harness: str, *, shown: str = ""
) -> Trace:
    where = shown or base_url

    async def main() -> Trace:
        async with Client(base_url, token, retry_for=CONTACT_S) as client:
            wanted = run if run is not None else await _newest_run(client, harness_id, harness, where)
            events = [event async for event in client.journal(wanted)]
            newest = "" if run is not None else f", the newest run of {harness or harness_id}"
            return Trace(f"{wanted}{newest}", wanted, hook_trace(hook_calls(wanted, events)))

    try:
        return asyncio.run(main())
    except ProblemAnswer as problem:
        if problem.status == 401:
            raise CredentialError(f"{where} refuses {key}: {problem.detail}") from problem
        if problem.status == 404:
            raise UsageError(f"{where} knows no run {run}; an artifact's runs are read with --result") from problem
        raise
    except TargetUnreachable as away:
        raise TargetUnreachable(f"{where} is not there: {away}") from away


async def _newest_run(client: Client, harness_id: str | None, harness: str, where: str) -> str:
    if harness_id is None:
        async for entry in client.list_harnesses():
            if entry["name"] == harness:
                harness_id = str(entry["id"])
                break
        else:
            raise OperatorError(f"{where} holds no harness {harness!r}")
    async for found in client.list_runs(harness_id=harness_id, limit=1):
        return str(found["id"])
    raise UsageError(f"{where} has no run of {harness or harness_id} yet")


def artifact_of(text: str | None, config: TreeConfig, results: Path | None) -> Result:
    """What `--result` names; without it the newest."""
    result, _ = choose(text, None, results or config.results_folder)
    return result
