"""`make test` tries the same examples each time, `tests.fuzz` others with each seed, and reports its seed."""

from __future__ import annotations

from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st

from evalfleet.checks import LoadedCases
from tests.fuzz import cases
from tests.fuzz.__main__ import main


def drawn(profile: str, seed: int | None = None) -> list[int]:
    seen = []

    @hypothesis.settings(hypothesis.settings.get_profile(profile))
    @hypothesis.given(st.integers())
    def draw(number: int) -> None:
        seen.append(number)

    (draw if seed is None else hypothesis.seed(seed)(draw))()
    return seen


def test_a_property_test_has_the_same_examples_each_time_and_others_with_another_seed() -> None:
    """Issue 9, 24."""
    assert drawn("same") == drawn("same")
    assert drawn("fresh", 1) == drawn("fresh", 1) != drawn("fresh", 2)
    assert hypothesis.settings.get_profile("same").database is None


PROPERTY = """
from hypothesis import given
from hypothesis import strategies as st

@given(st.integers(0, 10**6))
def test_small(number):
    assert number < 1000
"""


def test_a_find_is_reported_with_the_seed_that_repeats_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def raises(data: bytes, **more: str) -> LoadedCases:
        raise KeyError("here")

    (tmp_path / "test_found.py").write_text(PROPERTY)
    monkeypatch.setattr(cases, "parse_case", raises)
    only = ["-p", "tests.conftest", str(tmp_path)]
    assert main(["--seconds", "0.01", "--examples", "50", "--seed", "4711", "--", *only]) == 1
    said = capfd.readouterr().out
    assert said.startswith("fuzz: seed 4711\n")
    assert "test_small(\n" in said
    assert "fuzz: the tests that draw ended with 1: python -m tests.fuzz --seed 4711 --examples 50\n" in said
    assert "KeyError: 'here'" in said
    assert "fuzz: a file was read wrongly: python -m tests.fuzz.cases --one 47" in said
