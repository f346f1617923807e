"""docs/configuration.md documents every key and every variable, and what it shows can be read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from evalfleet.harnessfiles import NEVER_FOLDERS, SOURCE_ENDINGS
from evalfleet.settings import VARIABLES, Settings
from evalfleet.tree import KEYS, parse_tree_config

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
OURS = [path for room in ("evalfleet", "scheduler", "worker") for path in (ROOT / room).rglob("*.py")]


def rows(text: str) -> list[str]:
    """What stands in the first column of a section's tables."""
    return re.findall(r"^\| `([^`]+)` \|", text, flags=re.MULTILINE)


@pytest.mark.parametrize("table", KEYS)
def test_every_key_of_a_table_is_documented_and_no_other(table: str) -> None:
    section = PAGE.split(f"### `[{table}]`\n")[1].split("\n#")[0]
    assert rows(section) == list(KEYS[table])


def test_every_variable_that_is_read_is_documented() -> None:
    environment = PAGE.split("## The environment")[1]
    documented = rows(environment)
    assert documented[: len(VARIABLES)] == list(VARIABLES)
    assert len(documented) == len(set(documented))
    read = set()
    for path in OURS:
        text = path.read_text(encoding="utf-8")
        read |= set(re.findall(r'(?:envvar=|environ(?:\.get|\.pop)?[\[(]|environment\[)"(EVALFLEET_[A-Z_]+)"', text))
    assert read - set(documented) == set()


def test_the_defaults_that_the_page_states_are_the_settings_own() -> None:
    defaults = Settings()
    for name, value in {"TRIES": 3, "LOSSES": 5, "STALL": 600, "QUEUED": 600}.items():
        assert getattr(defaults, name.lower()) == value
        assert re.search(rf"`EVALFLEET_{name}` \| [^|]*`{value}` \|", PAGE)


def test_what_the_page_shows_can_be_read() -> None:
    blocks = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)
    assert blocks
    for block in blocks:
        parse_tree_config(block.encode(), root=ROOT)


def test_the_source_endings_are_listed() -> None:
    listed = PAGE.split("Source endings: `")[1].split("`")[0]
    assert set(listed.split()) == SOURCE_ENDINGS
    for folder in (".evalfleet", ".git", ".venv", "node_modules", "__pycache__"):
        assert folder in NEVER_FOLDERS
        assert f"`{folder}`" in PAGE
