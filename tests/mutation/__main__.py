"""Would the tests notice if a module that decides verdicts decided otherwise?

    python -m tests.mutation [--jobs 2] [--only evalfleet/checks/verdict.py] [--every 10]

Each mutant (see `mutants`) is put into its module, in a process of its own, and the tests that ran its lines are run
until one fails. A mutant that no test notices has survived; `survivors.toml` says why it may. Prints a table and ends
with 1 where under 90 % are killed, where a survivor is unexplained, or where an explained one is none any more.

Every mutant is a fork of one process that has imported everything but ours: no start of an interpreter for each. A
mutant that never ends is killed by its processor time, so a busy machine changes no result.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import resource
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

import hypothesis
import pytest

from tests.mutation.mutants import Mutant, mutants_of

HOUSE = Path(__file__).resolve().parent.parent.parent
SURVIVORS = Path(__file__).with_name("survivors.toml")
WANTED = 0.9
CPU_SECONDS = 60
MEMORY = 4 * 2**30
PASSED, FAILED, NOT_COLLECTED, BROKEN = 0, 1, 2, 70

_MATCHING = (
    "tests/checks/test_matching.py",
    "tests/checks/test_matching_words.py",
    "tests/checks/test_twelve.py",
    "tests/checks/test_trial.py",
)
MODULES: Mapping[str, tuple[str, ...]] = {
    "evalfleet/checks/expectation.py": (
        *_MATCHING,
        "tests/checks/test_expectation.py",
        "tests/checks/test_case_schema.py",
        "tests/checks/test_editor_schema.py",
        "tests/checks/test_cases_page.py",
        "tests/checks/test_outcome.py",
    ),
    "evalfleet/checks/matching.py": _MATCHING,
    "evalfleet/checks/hooks.py": (*_MATCHING, "tests/checks/test_hook_trace.py"),
    "evalfleet/checks/outcome.py": ("tests/checks/test_outcome.py",),
    "evalfleet/checks/verdict.py": ("tests/checks/test_verdict.py", "tests/checks/test_intervals.py"),
    "evalfleet/checks/comparison.py": ("tests/checks/test_comparison.py",),
    "evalfleet/checks/intervals.py": ("tests/checks/test_intervals.py", "tests/checks/test_verdict.py"),
    "scheduler/gate.py": ("tests/scheduler/test_summary.py", "tests/scheduler/test_allowed.py"),
}
"""What decides a verdict, and the tests that hold it: those of the same name, not whatever happens to pass through."""

hypothesis.settings.register_profile(
    "mutation",
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=40,
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],  # a mutant is killed by any example, not the least
)


class _Traced:
    """A pytest plugin: which lines of one file each test runs, and how long it takes."""

    def __init__(self, file: Path) -> None:
        self.file = str(file)
        self.lines: dict[str, set[int]] = {}
        self.seconds: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        seen: set[int] = set()

        def here(frame: FrameType, event: str, _argument: object) -> Any:
            if event == "line":
                seen.add(frame.f_lineno)
            return here

        def call(frame: FrameType, event: str, argument: object) -> Any:
            return here(frame, event, argument) if frame.f_code.co_filename == self.file else None

        began = time.process_time()
        sys.settrace(call)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            self.lines[item.nodeid] = seen
            self.seconds[item.nodeid] = time.process_time() - began


class _Chosen:
    """A pytest plugin: only these tests, in this order."""

    def __init__(self, tests: Sequence[str]) -> None:
        self.rank = {name: number for number, name in enumerate(tests)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((i for i in items if i.nodeid in self.rank), key=lambda item: self.rank[item.nodeid])


class _Mutated(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives the module its changed code instead of its file's."""

    def __init__(self, name: str, file: Path, code: CodeType) -> None:
        self.name, self.file, self.code = name, file, code

    def find_spec(self, fullname: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        spec = importlib.machinery.ModuleSpec(fullname, self, origin=str(self.file))
        spec.has_location = True
        return spec

    def exec_module(self, module: ModuleType) -> None:
        exec(self.code, vars(module))


@dataclass(slots=True)
class Result:
    """Of one module: its mutants, and those that no test noticed."""

    module: str
    mutants: list[Mutant]
    survivors: list[Mutant] = field(default_factory=list)

    @property
    def killed(self) -> int:
        return len(self.mutants) - len(self.survivors)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at once")
    parser.add_argument("--only", action="append", choices=list(MODULES), help="this module; may be said again")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="each Nth mutant only, for a quick look")
    options = parser.parse_args(arguments)
    os.chdir(HOUSE)
    modules = options.only or list(MODULES)
    results = [mutate(module, MODULES[module], options.jobs, options.every) for module in modules]
    return report(results, explained(), whole=options.every == 1)


def explained() -> dict[tuple[str, str, str], str]:
    """(module, function, change) → why no test can notice it."""
    if not SURVIVORS.is_file():
        return {}
    rows = tomllib.loads(SURVIVORS.read_text(encoding="utf-8"))["survivor"]
    return {(row["module"], row["where"], row["change"]): row["why"] for row in rows}


def mutate(module: str, tests: Sequence[str], jobs: int, every: int) -> Result:
    """Run the mutants of `module` against the tests that touch them."""
    file = HOUSE / module
    lines, seconds, others = _trace(file, tests)
    for name in others:
        with suppress(ImportError):  # some are there in a test run only
            importlib.import_module(name)
    tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
    result = Result(module, mutants_of(tree)[::every])
    running: dict[int, Mutant] = {}
    for number, mutant in enumerate(result.mutants):
        first, last = mutant.lines
        chosen = [name for name in lines if mutant.at_import or not lines[name].isdisjoint(range(first, last + 1))]
        if not chosen:
            result.survivors.append(mutant)
            continue
        if len(running) >= jobs:
            _take_one(running, result)
        chosen.sort(key=seconds.__getitem__)
        running[_start(file, tree, mutant, chosen)] = mutant
        if number % 50 == 0:
            print(f"{module}: {number} of {len(result.mutants)}", file=sys.stderr, flush=True)
    while running:
        _take_one(running, result)
    return result


def _trace(file: Path, tests: Sequence[str]) -> tuple[dict[str, set[int]], dict[str, float], list[str]]:
    """Which lines each test runs, its seconds, and the modules of others that they need. In a process of its own: ours
    must not have imported what is to be changed."""
    with tempfile.TemporaryFile("w+") as said:
        pid = os.fork()
        if pid == 0:
            traced = _Traced(file)
            with _quiet():
                code = _pytest(tests, traced)
            ours = ("evalfleet", "scheduler", "worker", "tests", "benchmarks", "__main__")
            others = [name for name in sys.modules if name.partition(".")[0] not in ours]
            json.dump([code, {k: sorted(v) for k, v in traced.lines.items()}, traced.seconds, others], said)
            said.flush()
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        said.seek(0)
        code, lines, seconds, others = json.load(said) if status == 0 else (status, {}, {}, [])
    if code != PASSED:
        sys.exit(f"without a change the tests do not pass ({code}): python -m pytest {' '.join(tests)}")
    return {name: set(numbers) for name, numbers in lines.items()}, seconds, others


def _start(file: Path, tree: ast.Module, mutant: Mutant, tests: Sequence[str]) -> int:
    """A process that has the mutant in its tree, and ends with pytest's exit code."""
    pid = os.fork()
    if pid:
        return pid
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    mutant.make()
    name = str(file.relative_to(HOUSE).with_suffix("")).replace("/", ".")
    sys.meta_path.insert(0, _Mutated(name, file, compile(ast.fix_missing_locations(tree), str(file), "exec")))
    code = BROKEN
    try:
        with _quiet():
            code = _pytest(sorted({test.partition("::")[0] for test in tests}), _Chosen(tests))
    finally:
        os._exit(code)  # never back into what forked us


def _pytest(tests: Sequence[str], plugin: object) -> int:
    flags = ["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-profile=mutation"]
    flags += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    return int(pytest.main([*flags, *tests], [plugin]))


@contextmanager
def _quiet() -> Iterator[None]:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    yield


def _take_one(running: dict[int, Mutant], result: Result) -> None:
    pid, status = os.wait()
    mutant = running.pop(pid)
    code = os.waitstatus_to_exitcode(status)
    if code == PASSED:
        result.survivors.append(mutant)
    elif code not in (FAILED, NOT_COLLECTED) and code >= 0:  # below 0: its processor time, or a crash
        sys.exit(f"pytest ended with {code} for {mutant.where}: {mutant.change}")


def report(results: Sequence[Result], reasons: Mapping[tuple[str, str, str], str], *, whole: bool) -> int:
    """The table, and the exit code."""
    print(f"{'module':36} mutants  killed       survivors explained")
    stale = {key for key in reasons if whole and key[0] in {result.module for result in results}}
    unexplained = 0
    for result in results:
        keys = [(result.module, mutant.where, mutant.change) for mutant in result.survivors]
        stale -= set(keys)
        known = sum(key in reasons for key in keys)
        unexplained += len(keys) - known
        share = result.killed / len(result.mutants)
        print(f"{result.module:36} {len(result.mutants):7}  {result.killed:6} {share:6.1%}  {known} of {len(keys)}")
    total, killed = sum(len(r.mutants) for r in results), sum(r.killed for r in results)
    print(f"{'together':36} {total:7}  {killed:6} {killed / total:6.1%}")
    for result in results:
        for mutant in result.survivors:
            if (result.module, mutant.where, mutant.change) not in reasons:
                print(f"survived: {result.module}:{mutant.lines[0]} {mutant.where}: {mutant.change}")
    for module, where, change in sorted(stale):
        print(f"explained, and killed or gone: {module} {where}: {change}")
    return int(killed / total < WANTED or unexplained > 0 or bool(stale))


if __name__ == "__main__":
    sys.exit(main())
