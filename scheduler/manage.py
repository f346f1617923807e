"""What do the small commands do: `list`, `cancel`, `score`, `show`, and what `plan` says is recorded?"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from evalfleet.artifact import find, list_results, open_result, read_plan
from evalfleet.checks.case import load_cases
from evalfleet.contract.client import Client
from evalfleet.errors import OperatorError, StorageError, UsageError
from evalfleet.plan import Attempt
from evalfleet.results import results_store
from evalfleet.settings import Settings
from evalfleet.tree import TreeConfig, find_tree, read_tree_config
from scheduler.embedded import Stack
from scheduler.evaluate import Options, state_folder
from scheduler.prepare import Prepared
from scheduler.submissions import Submission, Submissions
from scheduler.summary import Summary, exit_code


def render_submissions(found: Sequence[Submission]) -> str:
    """A line for each, newest first."""
    if not found:
        return "no submission was started from this tree yet; `evalfleet eval` starts one"
    rows = [
        (s.id, s.started_at[:19] + "Z", s.status, s.commit[:12], s.artifact, " ".join(s.words) or "all") for s in found
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    return "\n".join("  ".join([*(row[i].ljust(widths[i]) for i in range(5)), row[5]]) for row in rows)


def cancel_submission(config: TreeConfig, text: str, options: Options) -> str:
    """Cancel the evaluations of a submission; what is recorded is kept (S18). Answers what was done, in words."""
    submissions = Submissions(state_folder(config, options))
    record = submissions.find(text)
    if record.status != "running":
        return f"{record.id} is {record.status} already"
    store = results_store(config.root / record.results if record.results else config.results_folder)
    artifact = find(store, record.id)
    plan = read_plan(store, artifact) if artifact is not None else None

    async def main(base_url: str, token: str) -> list[dict[str, Any]]:
        async with Client(base_url, token) as client:
            return [await client.cancel_evaluation(evaluation) for evaluation in record.evaluations if evaluation]

    if plan is not None and plan.target.base_url is not None:
        key = Settings.from_env(options.environment).require_api_key()
        ended = asyncio.run(main(plan.target.base_url, key))
    else:
        with Stack(config.root, state=options.state, command="evalfleet cancel") as stack:
            endpoints = stack.start(
                commit=record.commit, concurrency=1, results=store.root, with_worker=False, env=options.environment
            )
            ended = asyncio.run(main(endpoints.base_url, endpoints.token))
    submissions.set_status(record.id, "cancelled")
    kept = sum(len(case.get("recorded_attempts") or ()) for document in ended for case in document.get("cases", ()))
    return f"{record.id} is cancelled; {kept} recorded attempts are kept"


def recorded_already(prepared: Prepared, options: Options) -> set[Attempt]:
    """What the submission that the plain command would continue has in its artifact (`plan`)."""
    from evalfleet.artifact import attempts_index

    known = Submissions(state_folder(prepared.config, options)).newest(prepared.pin.digest)
    if known is None or not known.unfinished or options.fresh:
        return set()
    store = results_store(options.results or prepared.config.results_folder)
    artifact = find(store, known.id)
    if artifact is None:
        return set()
    evidence = {key for key, entry in attempts_index(store, artifact).items() if entry.verdict is not None}
    plan = prepared.plan
    return {a for a in plan.all_attempts() if (plan.cases[a.case].name, plan.scenario(a).id, a.trial) in evidence}


def artifact_place(text: str | None, tree: Path | None, results: Path | None = None) -> Path:
    """The folder that a person means: a path, a name in the results folder, nothing for the newest."""
    if text is not None and (Path(text) / "suite.json").is_file():
        return Path(text)
    config = read_tree_config(find_tree(tree or Path.cwd()))
    folder = results or config.results_folder
    names = list_results(results_store(folder))
    if text is None:
        if not names:
            raise UsageError(f"{folder} holds no artifact yet; `evalfleet eval` makes one")
        return folder / names[0]
    matching = [name for name in names if name == text or text.lower() in name.lower()]
    if len(matching) == 1:
        return folder / matching[0]
    if not matching:
        raise UsageError(f"{text} is no artifact, and none in {folder} is called so")
    raise UsageError(f"{text} may be {', '.join(matching[:5])}: write more of it")


def score_artifact(text: str, tree: Path | None, *, as_recorded: bool, allow_flaky: bool) -> tuple[Summary, int]:
    """Score an artifact again (S32); runs nothing."""
    from scheduler.score import score

    result = open_result(artifact_place(text, tree))
    cases = None
    if not as_recorded:
        loaded = load_cases(find_tree(tree or Path.cwd()))
        if loaded.problems:
            raise OperatorError("\n\n".join(problem.render() for problem in loaded.problems))
        cases = loaded.cases
    summary = score(result, cases)
    return summary, exit_code(summary, allow_flaky=allow_flaky)


def show_artifact(
    result: str | None,
    scenario: str | None,
    trial: int | None,
    *,
    tree: Path | None,
    results: Path | None,
    stream: TextIO,
) -> None:
    """Show an artifact; a single word with a slash that is no folder is a scenario of the newest."""
    from scheduler.show import show

    if scenario is None and result is not None and "/" in result and not Path(result).is_dir():
        result, scenario = None, result
    try:
        opened = open_result(artifact_place(result, tree, results))
    except StorageError as error:
        raise UsageError(error.message) from error
    show(opened, scenario, trial, stream)
