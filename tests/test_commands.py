"""Is every command, argument, flag and variable on the page about the command line, and nothing that is gone?"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer

from evalfleet.checks import CaseProblem, Place
from evalfleet.errors import EvalfleetError
from evalfleet.server.__main__ import main as server
from scheduler.cli import app
from scheduler.summary import summarize
from tests.scheduler.samples import plan as sample_plan
from tests.scheduler.samples import scenario
from worker.app import main as worker

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "cli.md").read_text(encoding="utf-8")
GROUP: Any = typer.main.get_command(app)  # Typer's own kind of click command: walked by its attributes
OWN_FLAGS = {"server": server, "worker": worker}
"""Processes of their own kind: they read their flags themselves (decision 011)."""
NONE = "–"


@dataclass(frozen=True)
class Row:
    """What the page's table says of one flag."""

    flags: frozenset[str]
    variable: str


def sections() -> dict[str, str]:
    """Command → its part of the page."""
    parts = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
    named = {re.match(r"`evalfleet ([a-z][a-z-]+)`\n", part): part for part in parts}
    return {found[1]: part for found, part in named.items() if found}


def rows(section: str) -> list[Row]:
    table = re.findall(r"^\| (`-.*?) \| (.*?) \| .* \|$", section, re.MULTILINE)
    return [
        Row(frozenset(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", first)), second.strip("`")) for first, second in table
    ]


def options(command: Any) -> Iterator[Any]:
    for parameter in command.params:
        if parameter.opts[0].startswith("-") and parameter.name != "help":
            yield parameter
    for part in getattr(command, "commands", {}).values():  # `token` is a group
        yield from options(part)


def test_every_command_has_its_section_and_no_other_has_one() -> None:
    assert set(sections()) == set(GROUP.commands)
    assert len(re.findall(r"^## `evalfleet [a-z][a-z-]+`$", PAGE, re.MULTILINE)) == len(GROUP.commands)


@pytest.mark.parametrize("name", [name for name in GROUP.commands if name not in OWN_FLAGS])
def test_a_commands_flags_and_variables_are_documented_and_none_that_is_gone(name: str) -> None:
    asked = {Row(frozenset(o.opts + o.secondary_opts), o.envvar or NONE) for o in options(GROUP.commands[name])}
    written = rows(sections()[name])
    assert len(written) == len(set(written)), "a flag stands twice"
    assert set(written) == asked


@pytest.mark.parametrize("name", OWN_FLAGS)
def test_the_flags_of_a_part_are_documented_and_none_that_is_gone(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as left:
        OWN_FLAGS[name](["--help"])
    assert left.value.code == 0
    shown = re.findall(r"^  (-[^ ].*?)(?:  |$)", capsys.readouterr().out.partition("options:")[2], re.MULTILINE)
    asked = {frozenset(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", flags)) for flags in shown}
    written = rows(sections()[name])
    assert {row.flags for row in written} == asked - {frozenset({"-h", "--help"})}
    source = Path(inspect.getfile(OWN_FLAGS[name])).read_text(encoding="utf-8")
    for row in written:
        assert row.variable == NONE or row.variable in source, row


@pytest.mark.parametrize("name", list(GROUP.commands))
def test_a_commands_arguments_stand_in_its_first_line(name: str) -> None:
    arguments = [p for p in GROUP.commands[name].params if not p.opts[0].startswith("-")]
    wanted = " ".join(
        f"[{argument.name.upper()}{'…' if argument.nargs == -1 else ''}]"
        if not argument.required
        else argument.name.upper()
        for argument in arguments
    )
    assert f"\n`{' '.join(filter(None, ['evalfleet', name, wanted]))}`: " in sections()[name]


@pytest.mark.parametrize("name", [name for name, command in GROUP.commands.items() if hasattr(command, "commands")])
def test_the_commands_of_a_group_stand_in_its_section(name: str) -> None:
    for part, command in GROUP.commands[name].commands.items():
        assert f"`evalfleet {name} {part}" in sections()[name]
        assert command.help, part


def test_every_command_says_in_help_what_it_does() -> None:
    for name, command in GROUP.commands.items():
        assert command.help, name
        for option in options(command):
            assert option.help, f"{name} {option.name}"


def test_the_json_on_the_page_has_the_programs_keys() -> None:
    found = re.search(r"```json\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    shown = json.loads(found[1])
    made = summarize(sample_plan({"tone": [scenario("brief")]}), [], artifact="x").document(3)
    assert list(shown) == list(made)
    assert list(shown["spend"]) == list(made["spend"])
    for part in ("evaluations", "scenarios"):
        assert list(shown[part][0]) == list(made[part][0])
    keys = re.findall(r"^\| (`.*?) \|", PAGE.partition("| key | meaning |")[2], re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", " ".join(keys))) == set(made)


def test_what_validate_says_to_an_editor_is_on_the_page() -> None:
    rows_ = re.findall(r"^\| (`.*?) \|", PAGE.partition("| field | meaning |")[2].partition("\n## ")[0], re.MULTILINE)
    made = CaseProblem(Place("f", 1, 1), "m").document("error")
    assert set(re.findall(r"`(\w+)`", " ".join(rows_))) == {*made, "error"}


def test_every_exit_code_of_an_error_is_on_the_page() -> None:
    rows_ = re.findall(r"^\| ([\d, ]+) \|", PAGE.partition("## Exit codes")[2].partition("\n## ")[0], re.MULTILINE)
    documented = {int(code) for row in rows_ for code in row.split(",")}
    assert documented == {0, 1, 2, 3, 4, 70, 130, 143}

    def kinds(kind: type[EvalfleetError]) -> Iterator[type[EvalfleetError]]:
        yield kind
        for further in kind.__subclasses__():
            yield from kinds(further)

    assert {kind.exit_code for kind in kinds(EvalfleetError)} <= documented
