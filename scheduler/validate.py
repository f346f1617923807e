"""What would refuse a run of this tree, told all at once and without a run?

Case files (S1–S7), the settings file, the graders that cases call (imported in a killable child, S6), the agent's
command, the results folder, and the API's limits. Nothing is written and no agent is started.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, TypeVar

from evalfleet.checks.case import Case, CaseProblem, LoadedCases, Place, case_key, load_cases
from evalfleet.checks.expectation import Grader
from evalfleet.checks.near import folded, near_name
from evalfleet.checks.text import visible
from evalfleet.credentials import url_variable
from evalfleet.errors import (
    AuthorError,
    CaseFilesInvalid,
    ConfigError,
    EvalfleetError,
    OperatorError,
    UnfitHost,
    UsageError,
)
from evalfleet.graders.bundle import links_to_nowhere
from evalfleet.graders.check import GraderProblem, asking, check_graders, check_graders_by_ast
from evalfleet.graders.rest import rest_of
from evalfleet.plan import PlannedTarget
from evalfleet.server.drivers import make_driver
from evalfleet.settings import Settings
from evalfleet.surroundings import user_environment
from evalfleet.tree import CONFIG_FILE, TreeConfig, TreeVersion, read_tree_config, read_tree_version
from scheduler.plan import build_plan
from scheduler.select import Selection, select

CASES_FOLDER = "evals/cases"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Validation:
    """`config` None: the settings file itself is refused. `problems` are in the case files, `errors` elsewhere.
    `version` None: the harness's files could not be read."""

    root: Path
    config: TreeConfig | None
    cases: tuple[Case, ...]
    warnings: tuple[CaseProblem, ...]
    problems: tuple[CaseProblem, ...]
    errors: tuple[EvalfleetError, ...]
    version: TreeVersion | None = None

    @property
    def ok(self) -> bool:
        return not self.problems and not self.errors

    def raise_if_refused(self) -> None:
        """Nothing when a run may start; else one error that says everything (exit 2)."""
        if self.problems:
            raise CaseFilesInvalid((*self.problems, *map(_Said, self.errors)))
        if len(self.errors) == 1:
            raise self.errors[0]
        if self.errors:
            kind = OperatorError if isinstance(self.errors[0], OperatorError) else type(self.errors[0])
            raise kind("\n\n".join(error.message for error in self.errors))

    def render(self) -> str:
        """For a person: every problem, every warning, and the sum of it."""
        parts = [problem.render() for problem in self.problems]
        parts += [error.message for error in self.errors]
        parts += [f"warning: {warning.render()}" for warning in self.warnings]
        scenarios = sum(len(case.scenarios) for case in self.cases)
        bad = len(self.problems) + len(self.errors)
        found = f"{_count(len(self.cases), 'case')}, {_count(scenarios, 'scenario')}"
        if bad:
            parts.append(f"{_count(bad, 'problem')}; nothing can run")
        else:
            warned = f", {_count(len(self.warnings), 'warning')}" if self.warnings else ""
            parts.append(f"{found}: ready to run{warned}")
        return "\n\n".join(parts)

    def document(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "ok": self.ok,
            "cases": len(self.cases),
            "scenarios": sum(len(case.scenarios) for case in self.cases),
            "problems": [problem.document("error") for problem in self.problems],
            "errors": [document for error in self.errors for document in _error_documents(error)],
            "warnings": [warning.document("warning") for warning in self.warnings],
        }


def _error_documents(error: EvalfleetError) -> Iterator[dict[str, Any]]:
    """What is wrong outside the case files, in the shape of what is wrong in them."""
    parts = error.parts if isinstance(error, ConfigError) else (("", error.message),)
    for place, text in parts:
        file, line, column = [*place.split(":", 2), "", ""][:3]
        message, _, shown = text.partition("\n  | ")
        yield {
            "error": type(error).__name__,
            "severity": "error",
            "file": file or None,
            "line": int(line) if line else None,
            "column": int(column) if column else None,
            "end_line": None,
            "end_column": None,
            "pointer": None,
            "message": message,
            "hint": "",
            "source_line": shown.partition("\n")[0],
        }


@dataclass(frozen=True, slots=True)
class _Said:
    error: EvalfleetError

    def render(self) -> str:
        return self.error.message


def validate(
    root: Path,
    *,
    words: Sequence[str] = (),
    deselect: Sequence[str] = (),
    drafts: LoadedCases | None = None,
    suite: LoadedCases | None = None,
    target: bool = False,
    results: Path | None = None,
    environment: Mapping[str, str] | None = None,
    import_graders: bool = True,
) -> Validation:
    """Look at everything; never raises for what the tree holds.

    `words` and `deselect` are as on the command line: what they leave out is still looked at, but the API's limits hold
    for what they choose. `drafts` are what `--scenarios` brought: they need no case beside them, and come last in
    `cases`. `suite` are the rows of `--suite`, in the place of the tree's cases. `target`: runs are to go to
    `[target]`, so its settings and key are looked at and not the agent's command. `results` replaces the folder of the
    settings; `environment` is what an agent and `--target` would get, by default this process's. `import_graders`
    False: a machine without their environment only reads them (S6).
    """
    environment = user_environment() if environment is None else environment
    errors: list[EvalfleetError] = []
    config = _caught(errors, lambda: read_tree_config(root))
    loaded = load_cases(root, folder=CASES_FOLDER) if suite is None else suite
    if drafts is None and suite is None and not loaded.cases and not loaded.problems:
        errors.append(_no_cases(root))
    whole = loaded if drafts is None else _with_drafts(loaded, drafts)
    problems = list(whole.problems)
    version = None
    if config is not None:
        version = _caught(errors, lambda: read_tree_version(config))
        if whole.cases and not problems:  # a refused file's case would look like a name that matches nothing
            draft = drafts.cases[0] if drafts is not None and drafts.cases else None
            chosen = _caught(errors, lambda: _check_selection(config, loaded.cases, words, deselect, draft))
            if chosen is not None and import_graders and not target:
                _caught(errors, lambda: check_judge(config, _called(chosen), environment))
        if whole.grader_places():
            files = version.files if version is not None else ()
            _caught(errors, lambda: problems.extend(look_at_graders(config, whole, files, import_them=import_graders)))
        if target:
            _caught(errors, lambda: check_target(config, environment))
        else:
            _caught(errors, lambda: check_harness(config, environment))
        _caught(errors, lambda: check_writable(results or config.results_folder))
        if whole.cases and not problems:
            _caught(errors, lambda: check_quarantine(config, whole.cases, of_suite=suite is not None))
    over = [] if config is None else quarantines_over(config, datetime.now(UTC).date())
    if config is not None and version is not None and whole.grader_places():
        _caught(errors, lambda: over.extend(what_graders_miss(config, version.files)))
    warnings = (*whole.warnings, *over, *dangling(root))
    return Validation(root, config, whole.cases, warnings, tuple(problems), tuple(errors), version)


def _caught(errors: list[EvalfleetError], look: Callable[[], T]) -> T | None:
    """One look after the other: an error of one is kept and the next still happens. A fault of ours is not kept."""
    try:
        return look()
    except (AuthorError, OperatorError) as error:
        errors.append(error)
        return None


def _with_drafts(loaded: LoadedCases, drafts: LoadedCases) -> LoadedCases:
    return LoadedCases(
        (*loaded.cases, *drafts.cases),
        (*loaded.problems, *drafts.problems),
        (*loaded.warnings, *drafts.warnings),
    )


def _no_cases(root: Path) -> UsageError:
    if not (root / "evals").is_dir():
        return UsageError(f"{root} has no evals/; `evalfleet init` writes a first case there")
    return UsageError(f"{root / CASES_FOLDER} holds no case (a .yaml file); `evalfleet init` writes a first one")


def look_at_graders(
    config: TreeConfig, cases: LoadedCases, harness: Sequence[str] = (), *, import_them: bool = True
) -> list[CaseProblem]:
    """A problem at the case's line for each grader that cannot be called (S6). `harness`: its files. GraderRefused,
    UnfitHost: none can."""
    names = cases.grader_places()
    places = {str(place): place for _, place in names}
    asked = [(name, str(place)) for name, place in names]
    found = look(config, asked, harness) if import_them else check_graders_by_ast(config.root, asked)
    pointers = cases.pointers() if found else {}
    return [
        CaseProblem(
            place := places[problem.place],
            f"grader {problem.name}: {problem.message}",
            _source_line(config.root, place),
            end=(place.line, place.column + len(Grader.kind)),
            pointer=pointers.get(place),
        )
        for problem in found
    ]


def look(config: TreeConfig, asked: Sequence[tuple[str, str]], harness: Sequence[str]) -> list[GraderProblem]:
    """Import the graders with these names, each with its place, in the copy of the tree that their calls get."""
    return check_graders(config.root, asked, config.graders, harness=harness, results=config.results_folder)


def what_graders_miss(config: TreeConfig, harness: Sequence[str]) -> list[CaseProblem]:
    """A warning where the tree is too large to be copied for its graders (S28)."""
    rest = rest_of(config.root, harness, config.results_folder)
    return [CaseProblem(Place(CONFIG_FILE, 1, 1), rest.left_out)] if rest.left_out else []


def _source_line(root: Path, place: Place) -> str:
    try:
        lines = (root / place.file).read_text(encoding="utf-8-sig", errors="replace").split("\n")
    except OSError:  # a draft from elsewhere: its place has to do
        return ""
    return lines[place.line - 1].rstrip("\r") if place.line <= len(lines) else ""


def _check_selection(
    config: TreeConfig, cases: Sequence[Case], words: Sequence[str], deselect: Sequence[str], draft: Case | None
) -> Selection:
    """What is chosen. A plan of it, thrown away: the words match, and no group is over the API's limits (A11)."""
    chosen = select(cases, words, root=config.root, drafts=draft, deselect=deselect)
    build_plan(
        config,
        chosen,
        target=PlannedTarget(None, "", None, ""),
        commit="",
        graders=None,
        created_at=datetime.now(UTC),
    )
    return chosen


def _called(chosen: Selection) -> set[str]:
    """The graders that chosen scenarios call."""
    return {
        grader.name
        for case in chosen.cases
        for scenario in case.scenarios
        if case_key(case.name, scenario.id) in chosen.chosen
        for grader in scenario.graders
    }


def check_judge(config: TreeConfig, names: Collection[str], environment: Mapping[str, str]) -> None:
    """ConfigError where one of these graders may ask the judge, and the key that `[judge]` names is not set: else each
    scenario would say so, after its run was paid for (S26)."""
    from evalfleet.server.judge import Judge  # most trees have none

    if config.judge is not None and asking(config.root, names):
        Judge(config.judge, environ=environment).check()


def check_harness(config: TreeConfig, environment: Mapping[str, str]) -> None:
    """ConfigError when the agent could not be run as the settings and the environment stand; starts nothing."""
    if config.harness is None and config.target is not None:
        raise UsageError(
            f"{CONFIG_FILE} has a [target] and no [harness]: --target sends the runs to that platform, "
            "[harness.command] would run an agent here"
        )
    if config.harness is None:
        raise UsageError(
            f"{CONFIG_FILE} says no harness: write [harness.command] with the argv of a program that plays one turn "
            "(or [harness.http], [harness.openai]); `evalfleet init` writes an example"
        )
    make_driver(config.harness, config.root, config.root / ".evalfleet", environ=environment).check()


def check_target(config: TreeConfig, environment: Mapping[str, str]) -> None:
    """What `--target` needs: a [target], its address, and the key of its profile, which may be sent there (S40)."""
    settings = Settings.from_env(environment)
    if config.target is None:
        raise UsageError(
            f"--target needs a [target] in {CONFIG_FILE}: base_url and harness_id of the platform's harness"
        )
    profile = config.target.profile
    base_url = config.target.base_url or settings.address(profile)
    if base_url is None:
        raise UsageError(f"[target] in {CONFIG_FILE} has no base_url, and {url_variable(profile)} is not set")
    settings.require_key(profile)
    settings.check_address(profile, base_url, vouched=True)


def check_quarantine(config: TreeConfig, cases: Sequence[Case], *, of_suite: bool = False) -> None:
    """ConfigError with every entry of `[[quarantine]]` that names none of these scenarios, being the tree's or, with
    `of_suite`, a suite's rows; and for a suite whose file is not there. Other suites' rows are not read."""
    file = cases[0].file if of_suite else None
    keys = [case_key(case.name, scenario.id) for case in cases for scenario in case.scenarios]
    known = {folded(key) for key in keys}
    told = [
        (str(entry.place), f"there is no suite {entry.suite!r} in the tree")
        for entry in config.quarantine
        if entry.suite is not None and not (config.root / entry.suite).is_file()
    ]
    for entry in config.quarantine:
        if entry.suite != file or folded(entry.scenario) in known:
            continue
        near = near_name(entry.scenario, keys)
        hint = f" (did you mean {near!r}?)" if near else "; write it as CASE/SCENARIO"
        told.append((str(entry.place), f"{file or 'the tree'} has no scenario {entry.scenario!r}{hint}"))
    if not told:
        return
    (place, first), *others = told
    raise ConfigError(place, first, others)


def quarantines_over(config: TreeConfig, today: date) -> list[CaseProblem]:
    """A warning for each quarantine that holds no more."""
    return [CaseProblem(entry.place, entry.over()) for entry in config.quarantine if not entry.holds(today)]


def dangling(root: Path) -> list[CaseProblem]:
    """A warning for each file of graders that is a link to nothing; one that a case calls is refused anyway."""
    return [
        CaseProblem(Place(path, 1, 1), f"this link leads nowhere, to {visible(to)}: no grader sees it")
        for path, to in links_to_nowhere(root)
    ]


def check_writable(folder: Path) -> None:
    """UnfitHost when results could not be written there. Tried without leaving a trace: as root, and on a read-only
    mount, the permission bits say nothing."""
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        if not place.is_dir():
            raise NotADirectoryError(20, "a file stands in the way")
        with tempfile.TemporaryFile(dir=place):
            return
    except OSError as error:
        where = str(folder) if place == folder else f"{folder} (at {place})"
        raise UnfitHost(f"results cannot be written to {where}: {error.strerror or error}") from error


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
