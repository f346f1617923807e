"""Is what the documents say true: commands run, links lead somewhere, examples are valid, what is named exists?"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from evalfleet.checks.case import parse_case
from evalfleet.tree import read_tree_config
from evalfleet.treeconfig import parse_tree_config
from scheduler.validate import validate
from tests.pages import Page, Terminal, pages, same_but_for_what_every_run_changes

ROOT = Path(__file__).resolve().parent.parent
PAGES = pages(ROOT)
EVALFLEET = [sys.executable, "-P", "-m", "scheduler.cli"]
README = next(page for page in PAGES if page.name == "README.md")

RUN = {"mkdir my-agent && cd my-agent", *(f"evalfleet {name}" for name in ("init", "validate", "plan", "eval", "show"))}
"""What the README says to type and a test types, one after the other."""
NOT_RUN = {
    "pipx install .": "`make smoke` installs the wheel in a fresh environment",
    "make demo": "installs everything anew; `make smoke` and CI do",
    "make test": "this test is a part of it",
    "make e2e": "CI runs it",
    "make lint types": "CI runs them",
}


# -- commands ---------------------------------------------------------------------------------------------------------


def commands(page: Page) -> Iterator[str]:
    for block in page.blocks("sh"):
        for line in block.splitlines():
            if command := line.partition("  #")[0].strip():
                yield command


def test_every_command_of_the_readme_is_run_or_has_a_reason_not_to_be() -> None:
    assert set(commands(README)) == RUN | set(NOT_RUN)


@pytest.mark.e2e
def test_the_readmes_first_commands_run_one_after_the_other(tmp_path: Path) -> None:
    folder = tmp_path
    for command in commands(README):
        if command.startswith("mkdir"):
            folder = tmp_path / shlex.split(command)[1]
            folder.mkdir()
        elif command in RUN:
            words = [*EVALFLEET, *shlex.split(command)[1:]]
            done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=100, check=False)
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


def a_copy(folder: Path) -> Path:
    """This repository's own tree, without what a run left in it."""
    for name in ("examples/concierge/agent.py", "evalfleet.toml", *(str(p.relative_to(ROOT)) for p in own_checks())):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes((ROOT / name).read_bytes())
    return folder


def own_checks() -> Iterator[Path]:
    for kind in ("cases", "graders"):
        yield from (path for path in (ROOT / "evals" / kind).iterdir() if path.is_file())


def replaced(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{old!r} in {path.name}"
    path.write_text(text.replace(old, new), encoding="utf-8")


def break_the_guard(tree: Path) -> None:
    replaced(tree / "examples/concierge/agent.py", "LONGEST_STAY = 14", "LONGEST_STAY = 40")


def take_the_price_list_away(tree: Path) -> None:
    line = 'say("error", message="the price list does not answer", code="upstream_unavailable", retryable=True)'
    replaced(
        tree / "examples/concierge/agent.py",
        "    text = answer(turn)\n",
        f'    if "suite" in turn.message:\n        return {line}\n    text = answer(turn)\n',
    )


def make_three_mistakes(tree: Path) -> None:
    replaced(tree / "evals/cases/booking.yaml", "timeout: 60s", "timeout: 60 seconds")
    replaced(tree / "evals/cases/guard.yaml", "decision: deny", "decison: deny")
    replaced(tree / "evals/cases/tone.yaml", "quality.brief", "quality.breif")


def nothing(tree: Path) -> None:
    pass


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("page", "change", "outputs", "code"),
    [
        pytest.param("README.md", nothing, ["eval of this tree"], 0, id="readme"),
        pytest.param(
            "reading-a-result.md",
            break_the_guard,
            ["eval of a broken guard", "show of a broken guard", "hook-trace of a broken guard"],
            1,
            id="a broken guard",
        ),
        pytest.param(
            "reading-a-result.md",
            take_the_price_list_away,
            ["eval without a price list", "the way on"],
            3,
            id="no price list",
        ),
        pytest.param(
            "reading-a-result.md", make_three_mistakes, ["validate with three mistakes"], 2, id="three mistakes"
        ),
    ],
)
def test_output_that_is_called_real_is_what_the_program_says(
    tmp_path: Path, page: str, change: Callable[[Path], None], outputs: list[str], code: int
) -> None:
    """At 80 columns. Ids, times and durations may differ; of a text that is cut (`[…]`) the rest is compared."""
    tree = a_copy(tmp_path)
    change(tree)
    terminal = Terminal(tree, EVALFLEET, columns=80)
    shown = next(p for p in PAGES if p.name == page)
    for position, name in enumerate(outputs):
        text = shown.real(name)
        command, _, rest = text.partition("\n")
        if command.startswith("$ evalfleet "):
            ended = terminal.type(shlex.split(command.removeprefix("$ evalfleet ")))
            assert ended == (code if position == 0 else 0), terminal.said_aside
            said = terminal.said
        else:
            said, rest = terminal.said_aside, text
            said = said[said.find(text.partition(":")[0]) :]  # a slow machine says before how far it is
        if rest.startswith("[…]\n"):
            rest = rest.removeprefix("[…]\n")
            said = said[said.index(rest.split("\n", 1)[0]) :]
        assert same_but_for_what_every_run_changes(said) == same_but_for_what_every_run_changes(rest)


# -- links and names --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_lead_to_files_and_headings_that_exist(page: Page) -> None:
    by_path = {other.path: other for other in PAGES}
    for target in page.links():
        file, _, anchor = target.partition("#")
        path = (page.path.parent / file).resolve() if file else page.path
        assert path.exists(), f"{page}: {target}"
        if anchor:
            assert anchor in by_path[path].anchors(), f"{page}: {target}"


def test_the_readme_leads_to_every_page() -> None:
    linked = {(ROOT / target.partition("#")[0]).resolve() for target in README.links()}
    for page in PAGES:
        if page.path.parent in {ROOT, ROOT / "docs"} and page is not README:
            assert page.path in linked, f"README.md does not name {page}"


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_files_of_ours_that_a_page_names_exist(page: Page) -> None:
    named = r"`((?:tests|evalfleet|scheduler|worker|docs|deploy|benchmarks|examples)/[\w./-]+)`"
    for path in re.findall(named, page.text):
        assert (ROOT / path).exists(), f"{page}: {path}"


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_tests_that_a_page_names_exist(page: Page) -> None:
    """`tests/….py`: names in backticks after it, up to the next file."""
    for file, after in re.findall(r"`(tests/[\w/]+\.py)`((?:(?!`tests/).)*)", page.text, re.DOTALL):
        for name in re.findall(r"`(test_\w+)`", after):
            source = (ROOT / file).read_text(encoding="utf-8")
            assert re.search(rf"def {name}\(", source), f"{page}: {file} has no {name}"


def test_the_rooms_that_the_design_draws_are_there() -> None:
    page = next(page for page in PAGES if page.name == "design.md")
    top, seen = ROOT, 0
    (picture,) = [block for block in page.blocks("") if block.startswith("evalfleet/")]
    for line in picture.splitlines():
        names = re.match(r"( *)((?:[\w.]+(?:/|\.py) *)+)", line)
        assert names is not None, line
        if not names[1]:
            top = ROOT / names[2].split()[0]
        folder = ROOT if not names[1] else top if len(names[1]) == 2 else top / "server"
        for name in names[2].split():
            assert (folder / name).exists(), f"{name} in {folder.name}"
            seen += 1
    assert seen > 60


def test_every_invariant_has_a_test_that_tries_to_break_it() -> None:
    page = next(page for page in PAGES if page.name == "design.md")
    for number in range(1, 9):
        _, _, rest = page.text.partition(f"**I{number}. ")
        assert "`tests/" in rest.partition("\n\n")[0], f"I{number}"


def test_every_rule_that_the_code_cites_is_on_the_page_of_rules() -> None:
    page = next(page for page in PAGES if page.name == "rules.md")
    ruled = [int(number) for number in re.findall(r"^- \*\*S(\d+)\*\* ", page.text, re.MULTILINE)]
    assert ruled == list(range(1, len(ruled) + 1))
    for folder in ("evalfleet", "scheduler", "worker", "tests"):
        for path in (ROOT / folder).rglob("*.py"):
            for number in re.findall(r"(?<![\w-])S(\d{1,2})(?!\w)", path.read_text(encoding="utf-8")):
                assert int(number) in ruled, f"S{number} in {path.relative_to(ROOT)}"


DECISIONS = [page for page in PAGES if page.path.parent.name == "decisions"]


@pytest.mark.parametrize("page", DECISIONS, ids=str)
def test_a_decision_has_its_number_a_problem_and_the_test_that_holds_it(page: Page) -> None:
    assert re.match(rf"# {page.name[:3]} [A-Z]", page.text), page.text.split("\n", 1)[0]
    assert re.search(r"Problem|Decision", page.text)
    assert re.search(r"`(?:tests/|make |test_)", page.text), "no test is named"
    assert len(page.text.splitlines()) < 90, "one page"


def test_decisions_are_numbered_without_a_gap() -> None:
    assert [page.name[:3] for page in DECISIONS] == [f"{n:03}" for n in range(1, len(DECISIONS) + 1)]


# -- examples ---------------------------------------------------------------------------------------------------------


TREES = [ROOT, *sorted(path.parent for path in (ROOT / "examples").glob("*/evals"))]


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: "this repository" if tree == ROOT else tree.name)
def test_every_example_tree_validates(tree: Path) -> None:
    found = validate(tree, environment={"PATH": os.environ["PATH"]})
    assert found.ok, found.render()
    assert found.cases
    assert not found.warnings
    assert read_tree_config(tree).harness is not None


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_snippets_are_read_by_our_own_parsers(page: Page) -> None:
    for text in page.blocks("toml"):
        parse_tree_config(text.encode(), root=ROOT)
    for text in page.blocks("yaml"):
        if text.startswith("expect:"):
            text = "scenarios:\n  - id: x\n    user: x\n" + re.sub("^", "    ", text, flags=re.MULTILINE)
        if "scenarios:" in text:
            found = parse_case(text.encode(), name="page", file=str(page))
            assert not found.problems, "\n".join(problem.render() for problem in found.problems)
        else:
            yaml.safe_load(text)
    for text in page.blocks("json"):
        json.loads(text)


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_no_page_names_a_place_on_somebodys_machine_or_a_package_index(page: Page) -> None:
    assert not re.findall(r"(?<![\w.])/(?:home|Users|work|root)/[^\s`]*", page.text)
    assert not re.findall(r"https?://\S+/(?:simple|packages)/|--(?:extra-)?index-url", page.text, re.IGNORECASE)


# -- dependencies -----------------------------------------------------------------------------------------------------


def licence_of(package: str) -> str | None:
    """As the installed package's metadata says it; None where that says nothing, or the whole text of a licence."""
    metadata = importlib.metadata.metadata(package)
    said: list[str] = metadata.get_all("License-Expression") or metadata.get_all("License") or [""]
    return said[0] if 0 < len(said[0]) < 60 and "©" not in said[0] else None


def test_the_page_on_dependencies_names_each_with_its_licence() -> None:
    page = next(page for page in DECISIONS if page.name.startswith("013"))
    table = page.text.partition("| --- | --- | --- | --- |\n")[2]
    rows = dict(re.findall(r"^\| ([\w-]+) \| ([^|]+) \| [^|]+ \| [^|]+ \|$", table, re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = {re.split(r"[\[<>=~!; ]", requirement)[0] for requirement in project["dependencies"]}
    assert set(rows) == asked
    for package, licence in rows.items():
        said = licence_of(package)
        if said is None:
            assert "licence file" in licence, package
        else:
            assert said.removesuffix(" License") in licence, f"{package}: {said}"
