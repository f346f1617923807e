"""What do the commands share: reading the words of a person, printing what came back, and the exit code (S36, S37)?"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

import typer

from evalfleet.errors import CaseFilesInvalid, EvalfleetError, OurFault, StorageError, UsageError
from evalfleet.surroundings import user_environment

if TYPE_CHECKING:
    from scheduler.changes import Changes
    from scheduler.compare import Compared
    from scheduler.evaluate import Options, Result
    from scheduler.prepare import Prepared
    from scheduler.reports import ReportFiles
    from scheduler.score import Today
    from scheduler.summary import Summary

P = ParamSpec("P")

WARNINGS_SHOWN = 3
"""Before a run; `validate` shows all."""


def command(body: Callable[P, int | None]) -> Callable[P, None]:
    """Errors of ours become one message on stderr and their exit code; a bug says that it is one (70)."""

    @functools.wraps(body)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            code = body(*args, **kwargs) or 0
        except EvalfleetError as error:
            say(f"evalfleet: {error.message}")
            if isinstance(error, CaseFilesInvalid):
                mark_problems(error.problems, tree_of(kwargs.get("tree")))
            code = error.exit_code
        except typer.Exit:
            raise
        except KeyboardInterrupt:
            say("evalfleet: interrupted")
            code = 130
        except Exception:  # noqa: BLE001  - the outermost boundary: a bug must not look like a verdict
            traceback.print_exc()
            say("evalfleet: this is a fault of ours; please report it with the lines above")
            code = 70
        raise typer.Exit(code)

    return run


def tree_of(tree: object) -> Path | None:
    """The root of the tree that `--tree` or the working folder means; None if there is none."""
    from evalfleet.tree import find_tree

    with contextlib.suppress(EvalfleetError):
        return find_tree(tree if isinstance(tree, Path) else Path.cwd())
    return None


def mark_problems(problems: Sequence[object], root: Path | None) -> None:
    """In GitHub Actions: show each problem of a case file at its line."""
    if os.environ.get("GITHUB_ACTIONS") == "true":
        from scheduler.reports import github

        for line in github.problem_commands(problems, root, os.environ):
            print(line, file=sys.stderr, flush=True)  # noqa: T201 - never wrapped: GitHub reads it


def tell(text: str) -> None:
    """Words on stdout. One that is closed changes nothing (S36)."""
    with stdout_may_close():
        print(text, flush=True)  # noqa: T201


def tell_people(text: str) -> None:
    """As `tell`, broken at blanks where a terminal would break a line in the middle of a word."""
    from scheduler.layout import width_of, wrap

    width = width_of(sys.stdout)
    tell("\n".join(piece for line in text.split("\n") for piece in wrap(line, width)))


@contextlib.contextmanager
def stdout_may_close() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:  # `| head`: what follows goes nowhere, also what Python flushes at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except OSError as problem:
        raise StorageError(f"the result could not be printed: {problem.strerror}") from problem


def say(text: str) -> None:
    """Words on stderr, broken at blanks where a terminal would break them in the middle of a word."""
    from scheduler.layout import width_of, wrap

    width = width_of(sys.stderr)
    for line in text.split("\n"):
        for piece in wrap(line, width):
            print(piece, file=sys.stderr, flush=True)  # noqa: T201


def say_warnings(warnings: Sequence[str]) -> None:
    """The first few of a tree's warnings: before a run they are no list to work through, which `validate` has."""
    for warning in warnings[:WARNINGS_SHOWN]:
        say(warning)
    if (more := len(warnings) - WARNINGS_SHOWN) > 0:
        say(f"and {more} more {'warning' if more == 1 else 'warnings'}: `evalfleet validate` shows all of them")


def options_of(state: Path | None, results: Path | None, **more: Any) -> Options:
    from scheduler.evaluate import Options

    return Options(state=state, results=results, environment=user_environment(), **more)


def settings_of(metrics_port: int | None) -> Any:
    from evalfleet.settings import Settings

    environment = dict(os.environ)
    if metrics_port is not None:
        environment["EVALFLEET_METRICS_PORT"] = str(metrics_port)
    return Settings.from_env(environment)


def prepared_of(
    tree: Path | None,
    select: list[str] | None,
    scenarios: Path | None,
    *,
    failed: bool = False,
    state: Path | None = None,
    suite: Path | None = None,
    as_json: bool = False,
    **asked: Any,
) -> Prepared:
    """What the words of `eval`, `plan` and `submit` mean, in the tree that they name. With `failed` the command may end
    here: everything passed when it was last played."""
    from scheduler.prepare import prepare

    place, words, drafts = tree or Path.cwd(), select or (), drafts_of(scenarios, suite)
    only = None
    if failed:
        from scheduler.last import not_passed

        last = not_passed(
            place,
            words,
            deselect=asked["deselect"],
            drafts=drafts,
            suite=suite,
            results=asked["results"],
            state=state,
        )
        if last is not None and not last.keys:
            tell(json.dumps(last.document()) if as_json else last.sentence)
            raise typer.Exit(0)
        if last is not None:
            say(last.sentence)
        only = None if last is None else last.keys
    prepared = prepare(place, words, drafts=drafts, suite=suite, only=only, environment=user_environment(), **asked)
    if failed and only is None:
        raise OurFault("--failed found nothing to go by, and the tree was not refused")
    return prepared


def words_of(
    select: list[str] | None,
    deselect: list[str] | None,
    *,
    failed: bool = False,
    suite: Path | None = None,
    trials: int | None = None,
    timeout: float | None = None,
) -> list[str]:
    """What was asked for, as `list` shows it later."""
    from scheduler.pins import FAILED

    left_out = (word for pattern in deselect or () for word in ("--deselect", pattern))
    rows = [] if suite is None else ["--suite", str(suite)]
    limits = [] if timeout is None else ["--timeout", f"{timeout:g}"]
    times = [] if trials is None else ["-k", str(trials)]
    return [*([FAILED] if failed else []), *rows, *(select or ()), *left_out, *times, *limits]


def drafts_of(place: Path | None, suite: Path | None = None) -> bytes | None:
    if place is None:
        return None
    if suite is not None:
        raise UsageError("--suite and --scenarios each say what to play instead of the tree's cases: take one")
    try:
        return sys.stdin.buffer.read() if str(place) == "-" else place.read_bytes()
    except OSError as error:
        raise UsageError(f"--scenarios {place}: {error.strerror}") from error


def log_level(verbose: bool, default: str = "WARNING") -> None:
    import logging

    logging.basicConfig(
        level="INFO" if verbose else default, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    logging.getLogger("httpx").setLevel("WARNING")


def show_plan(prepared: Prepared, options: Options, *, files: bool, as_json: bool) -> int:
    from scheduler.manage import recorded_already
    from scheduler.plan import plan_document, render_plan

    if files:
        from evalfleet.tree import read_tree_version
        from scheduler.plan import render_files

        tell(render_files(read_tree_version(prepared.config)))
        return 0
    recorded = recorded_already(prepared, options)
    if as_json:
        tell(json.dumps(plan_document(prepared.plan, recorded)))
    else:
        tell_people(render_plan(prepared.plan, recorded))
    return 0


def show_result(result: Result, *, as_json: bool) -> int:
    from scheduler.render import incomplete_message

    code = print_result(result.summary, result.exit_code, as_json=as_json, compared=result.compared)
    if code == 1 and sys.stderr.isatty():
        say(f"why: evalfleet show {shlex.quote(result.summary.artifact)}")
    if result.ended.state == "stopped" and result.ended.reason:
        say(f"evalfleet: stopped: {result.ended.reason}")
    if result.summary.missing or result.summary.unrecorded:
        say(incomplete_message(result.summary))
    return code


def print_result(
    summary: Summary,
    code: int,
    *,
    as_json: bool,
    changes: Changes | None = None,
    compared: Compared | None = None,
    recorded_on: Sequence[Mapping[str, Any]] = (),
) -> int:
    """`changes`: what was judged anew; `compared`: the result beside a baseline; `recorded_on`: documents of the
    evaluations that new verdicts were put on."""
    from scheduler.differences import change_lines, comparison_lines, recorded_lines
    from scheduler.render import print_summary
    from scheduler.reports import result_document

    if as_json:
        tell(json.dumps(result_document(summary, code, changes, compared), ensure_ascii=True))
        return code
    sections = [] if changes is None else [functools.partial(change_lines, changes)]
    sections += [] if compared is None else [functools.partial(comparison_lines, compared)]
    sections += [functools.partial(recorded_lines, recorded_on)] if recorded_on else []
    with stdout_may_close():
        print_summary(summary, sys.stdout, sections)
        sys.stdout.flush()
    return code


def report_files(output: list[Path] | None) -> ReportFiles | None:
    """What `-o` asks for; what is wrong with it is told before anything runs."""
    if not output:
        return None
    from scheduler.reports import ReportFiles

    return ReportFiles(output)


def deliver(
    files: ReportFiles | None,
    summary: Summary,
    code: int,
    *,
    root: Path | None,
    today: Today | None = None,
    allow_flaky: bool = False,
    ended: str = "",
    changes: Changes | None = None,
    compared: Compared | None = None,
) -> int:
    """Write the reports that were asked for, and what GitHub Actions reads. `root`: the tree's folder. The exit code:
    another one than `code` only if that is 0 and a report could not be written."""
    in_actions = os.environ.get("GITHUB_ACTIONS") == "true"
    if files is None and not in_actions:
        return code
    from evalfleet.artifact import open_result
    from scheduler.reports import github, report_of

    try:
        result = open_result(summary.artifact)
        report = report_of(
            result,
            summary,
            code,
            today=today,
            allow_flaky=allow_flaky,
            ended=ended,
            changes=changes,
            compared=compared,
        )
        if in_actions:
            for line in github.commands(report, root, os.environ):
                print(line, file=sys.stderr, flush=True)  # noqa: T201 - never wrapped: GitHub reads it
            try:
                github.step_summary(report, os.environ)
            except StorageError as error:
                say(f"evalfleet: {error.message}")
        if files is not None:
            files.write(report)
    except EvalfleetError as error:
        say(f"evalfleet: {error.message}")
        return code or error.exit_code
    return code
