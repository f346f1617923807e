"""Which tree do the commands read that read an artifact? None, where the artifact is named by its place."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from evalfleet.errors import UsageError
from scheduler.reread import compare_artifacts, score_artifact, show_artifact, tree_around

ARTIFACT = str(Path(__file__).parent.parent / "artifacts" / "format-1")


def test_an_artifact_that_is_named_by_its_place_is_read_where_there_is_no_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    stream = io.StringIO()
    shown, _ = show_artifact(ARTIFACT, None, None, tree=None, results=None, stream=stream)
    assert shown.name == "format-1"
    assert "scenarios: " in stream.getvalue()
    scored = score_artifact(ARTIFACT, None, None, as_recorded=True, allow_flaky=False)
    assert scored.summary.scenarios
    compared = compare_artifacts(ARTIFACT, ARTIFACT, tree=None, results=None, fail_on=None)
    assert compared.document()["regressed"] == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("named", [(), ("20261201T022602Z-08sjdhpq",), (ARTIFACT, "another")], ids=str)
def test_a_name_alone_needs_the_tree_that_it_is_looked_for_in(
    named: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"no evals/ and no evalfleet\.toml in"):
        tree_around(None, *named)


def test_a_tree_that_was_named_must_be_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no evals/"):
        tree_around(tmp_path, ARTIFACT)


@pytest.mark.parametrize("regrade", [True, False], ids=["--regrade", "--record"])
def test_what_runs_something_needs_its_tree(regrade: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="no evals/"):
        score_artifact(ARTIFACT, None, None, as_recorded=False, allow_flaky=False, regrade=regrade, record=not regrade)
