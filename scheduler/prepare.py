"""What does a command know before it starts anything: the tree, valid; the selection; the plan; the pin?

`prepare` refuses with everything that is wrong at once (exit 2) and touches neither network nor state.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from evalfleet.checks.case import load_suite, parse_case
from evalfleet.checks.duration import seconds_of
from evalfleet.credentials import url_variable
from evalfleet.errors import UsageError
from evalfleet.graders.bundle import Bundle, build_bundle
from evalfleet.graders.check import asking, resolve_python
from evalfleet.money import read_amount
from evalfleet.plan import Limits, Plan, PlannedGraders, PlannedTarget
from evalfleet.results import ResultsStore, results_store
from evalfleet.settings import Settings
from evalfleet.tree import TreeConfig, find_tree
from evalfleet.treeconfig import OpenAIHarness
from scheduler.compare import Baseline, FailOn, asked_baseline
from scheduler.pins import Pin, file_digests
from scheduler.plan import build_plan
from scheduler.select import DRAFT, Selection, select
from scheduler.validate import Validation, validate

MOST_WEIGHT = 100
DRAFTS_FILE = "--scenarios"
"""How places in drafts are named: they are no file of the tree."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """All that `eval`, `plan` and `submit` need. `warnings` are rendered; `plan` has no evaluations' ids yet."""

    config: TreeConfig
    selection: Selection
    plan: Plan
    pin: Pin
    baseline: Baseline | None
    bundle: Bundle | None
    files: Mapping[str, str]
    warnings: tuple[str, ...]


def check(
    start: Path,
    words: Sequence[str] = (),
    *,
    deselect: Sequence[str] = (),
    drafts: bytes | None = None,
    suite: Path | None = None,
    on_target: bool = False,
    results: Path | None = None,
    environment: Mapping[str, str],
    by_ast: bool = False,
) -> Validation:
    """Everything that would refuse a run of this tree, or of the rows of a suite file in the place of its cases."""
    root = find_tree(start)
    return validate(
        root,
        words=words,
        deselect=deselect,
        drafts=None if drafts is None else parse_case(drafts, name=DRAFT, file=DRAFTS_FILE, draft=True),
        suite=None if suite is None else load_suite(suite, root=root),
        target=on_target,
        results=results,
        environment=environment,
        import_graders=not by_ast,
    )


def prepare(
    start: Path,
    words: Sequence[str],
    *,
    trials: int | None,
    concurrency: int | None,
    drafts: bytes | None,
    suite: Path | None = None,
    on_target: bool,
    results: Path | None,
    environment: Mapping[str, str],
    by_ast: bool = False,
    commit: str | None = None,
    harness: str | None = None,
    machine: str | None = None,
    server: str | None = None,
    deselect: Sequence[str] = (),
    only: Collection[str] | None = None,
    timeout: float | None = None,
    budget: str | None = None,
    max_time: str | None = None,
    baseline: str | None = None,
    fail_on: FailOn | None = None,
    no_graders: bool = False,
    weight: int | None = None,
    max_failures: int | None = None,
    allow_flaky: bool = False,
    fleet: ResultsStore | None = None,
) -> Prepared:
    """Read, check and plan. Raises CaseFilesInvalid, OperatorError or UsageError with all that is wrong.

    `commit` pins a target's run to it instead of to the tree's (`--commit`, S33); `harness` and `machine` are ids
    that replace those of `[target]`. `server`: the fleet's own, for a submission that is handed to one. `deselect`,
    `only` and `timeout` as for `select`; `budget` and `max_time` as they were written. `baseline` and `fail_on` as
    for `asked_baseline`: what nothing can be compared with is refused, too. With `no_graders` none is imported, and
    none asked before a resume. `max_failures`, with `allow_flaky`, is for a fleet: a command that drives itself
    counts itself. `fleet`: its results, where the baseline is looked for then.
    """
    settings = Settings.from_env(environment)
    limits = Limits(settings.tries, settings.losses, settings.stall, settings.queued)
    limits = replace(with_limits(limits, budget, max_time), grade=not no_graders)
    if max_failures is not None:
        limits = replace(limits, max_failures=max_failures, allow_flaky=allow_flaky)
    if weight is not None:
        if not 1 <= weight <= MOST_WEIGHT:
            raise UsageError(f"--weight must be a whole number from 1 to {MOST_WEIGHT}, not {weight}")
        limits = replace(limits, weight=weight)
    if concurrency is not None and concurrency < 1:
        raise UsageError(f"--concurrency must be a whole number from 1, not {concurrency}")
    found = check(
        start,
        words,
        deselect=deselect,
        drafts=drafts,
        suite=suite,
        on_target=on_target,
        results=results,
        environment=environment,
        by_ast=by_ast or no_graders,
    )
    found.raise_if_refused()
    config, version = found.config, found.version
    assert config is not None
    assert version is not None
    another = _other(harness, config)
    config = retargeted(config, harness, machine, on_target=on_target)
    if limits.budget is not None and not on_target and not counts_money(config):
        raise UsageError("--budget needs [harness.openai] price: without it no run has an amount")
    draft = next((case for case in found.cases if case.file == DRAFTS_FILE), None)
    cases = [case for case in found.cases if case is not draft]
    selection = select(
        cases, words, root=config.root, drafts=draft, trials=trials, timeout=timeout, deselect=deselect, only=only
    )
    target = _target(config, settings, on_target=on_target, another=another)
    bundle = graders = None
    names = {grader.name for case in selection.cases for scenario in case.scenarios for grader in scenario.graders}
    if names:
        bundle = bundle_of(config, names, version.files)
        graders = planned_graders(config, names, bundle, target)
    if commit is not None and not (on_target and re.fullmatch(r"[0-9a-f]{40}", commit)):
        raise UsageError(f"--commit takes 40 hex digits and goes with --target only, not {commit!r}")
    store = fleet or results_store(results or config.results_folder)
    older = asked_baseline(baseline, fail_on, store, config.root)
    plan, pin = build_plan(
        config,
        selection,
        target=target,
        commit=commit or version.commit,
        graders=graders,
        created_at=datetime.now(UTC),
        limits=limits,
        concurrency=concurrency,
        server=server,
        timeout=timeout,
        baseline=None if older is None else older.commit,
        environment=environment,
    )
    if older is not None:
        older.check(plan)
        plan = replace(plan, baseline=older.planned(store))
    return Prepared(
        config=config,
        selection=selection,
        plan=plan,
        pin=pin,
        baseline=older,
        bundle=bundle,
        files=file_digests(config, selection, version),
        warnings=tuple(f"warning: {warning.render()}" for warning in found.warnings),
    )


def with_limits(limits: Limits, budget: str | None, max_time: str | None) -> Limits:
    """With what `--budget` and `--max-time` say; UsageError for what they cannot mean."""
    flag, text = "--budget", budget or ""
    try:
        if budget is not None:
            limits = replace(limits, budget=read_amount(budget))
        flag, text = "--max-time", max_time or ""
        if max_time is not None:
            limits = replace(limits, max_time=int(seconds_of(max_time.strip())))
    except ValueError as error:
        raise UsageError(f"{flag} {text!r}: {error}") from error
    return limits


def counts_money(config: TreeConfig) -> bool:
    """Whether runs on this machine can have an amount: a budget that nothing counts towards would hold nothing back."""
    driver = None if config.harness is None else config.harness.driver
    return not (isinstance(driver, OpenAIHarness) and driver.price is None)


def _other(harness: str | None, config: TreeConfig) -> bool:
    return harness is not None and config.target is not None and harness != config.target.harness_id


def retargeted(config: TreeConfig, harness: str | None, machine: str | None, *, on_target: bool) -> TreeConfig:
    """With these ids in the place of `[target] harness_id` and `machine_id`. A machine belongs to its harness: another
    harness without a machine of its own has none."""
    for flag, text in (("--harness", harness), ("--machine", machine)):
        if text is not None and not on_target:
            raise UsageError(f"{flag} names what a platform holds: it goes with --target only")
        if text is not None and (not text.strip() or not text.isprintable()):
            raise UsageError(f"{flag} {text!r}: write an id, as the platform shows it")
    target = config.target
    if target is None or (harness is None and machine is None):
        return config
    kept = None if _other(harness, config) else target.machine_id
    new = replace(target, harness_id=harness or target.harness_id, machine_id=machine or kept)
    return replace(config, target=new)


def bundle_of(config: TreeConfig, names: Collection[str], harness: Sequence[str]) -> Bundle:
    """The graders with these names, and the tree that they judge. `harness`: its files."""
    return build_bundle(config.root, names, config.graders.files, harness=harness, results=config.results_folder)


def planned_graders(
    config: TreeConfig, names: Collection[str], bundle: Bundle, target: PlannedTarget
) -> PlannedGraders:
    """What a plan says of them."""
    table = config.graders
    return PlannedGraders(
        digest=bundle.digest,
        python=resolve_python(table.python, config.root),
        env=table.env,
        network=table.network,
        memory_mb=table.memory_mb,
        judge=target.base_url is not None or config.judge is not None,
        version=bundle.version,
        judge_address=judge_address(config, target),
        asking=asking(config.root, names),
    )


def judge_address(config: TreeConfig, target: PlannedTarget) -> str:
    """Where `t.llm` ends up: the platform, or the endpoint that `[judge]` names; "" for nowhere."""
    return target.base_url or ("" if config.judge is None else config.judge.base_url)


def _target(config: TreeConfig, settings: Settings, *, on_target: bool, another: bool) -> PlannedTarget:
    """Where the runs go (S40). On the embedded server the harness's id is known once it runs. `another`: the platform's
    harness is not the one that `[target]` names, so the tree's name is not its name."""
    if on_target:
        target = config.target
        if target is None:
            raise UsageError(
                "--target needs a [target] in evalfleet.toml: base_url and harness_id of the platform's harness"
            )
        base_url = target.base_url or settings.address(target.profile)
        if base_url is None:
            raise UsageError(f"[target] has no base_url, and {url_variable(target.profile)} is not set")
        name = config.harness.name if config.harness is not None and not another else target.harness_id
        return PlannedTarget(base_url, target.harness_id, target.machine_id, name, target.profile)
    assert config.harness is not None
    return PlannedTarget(None, "", None, config.harness.name)
