"""`evalfleet init`: a first tree that validates and whose agent passes its checks, and no file of anybody's touched."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evalfleet.checks.case import load_cases
from evalfleet.errors import UnfitHost
from evalfleet.tree import CONFIG_FILE, CommandHarness, read_tree_config
from scheduler.init import AGENT, CASE, CI_JOB, GRADER, IGNORED, init
from scheduler.validate import validate

ALL = (CONFIG_FILE, AGENT, CASE, GRADER, IGNORED, CI_JOB)


def test_a_first_tree_is_written_and_validates(tmp_path: Path) -> None:
    done = init(tmp_path / "concierge")
    assert (done.written, done.left_alone) == (ALL, ())
    assert done.render().endswith(f"next: cd {tmp_path / 'concierge'} && evalfleet eval")
    found = validate(tmp_path / "concierge")
    assert found.render() == "1 case, 2 scenarios: ready to run"
    assert found.ok


def test_what_its_settings_show_behind_a_hash_can_be_used_as_it_stands(tmp_path: Path) -> None:
    init(tmp_path)
    settings = tmp_path / CONFIG_FILE
    settings.write_text(re.sub(r"^# (\[|\w+ = )", r"\1", settings.read_text(), flags=re.MULTILINE))
    config = read_tree_config(tmp_path)
    assert config.graders.python == ".venv/bin/python"
    assert config.judge is not None
    assert config.judge.api_key_env == "OPENAI_API_KEY"


def play(root: Path, message: str, history: list[dict[str, str]]) -> list[dict[str, Any]]:
    config = read_tree_config(root)
    assert config.harness is not None
    assert isinstance(config.harness.driver, CommandHarness)
    turn = {"chat_id": "c", "run_id": "r", "turn": 0, "message": message, "history": history, "metadata": {}}
    argv = [sys.executable, *config.harness.driver.argv[1:]]
    done = subprocess.run(
        argv, cwd=root, input=json.dumps(turn), capture_output=True, text=True, timeout=30, check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_its_agent_says_what_its_case_expects(tmp_path: Path) -> None:
    init(tmp_path)
    first, second = load_cases(tmp_path).cases[0].scenarios
    history: list[dict[str, str]] = []
    lines = play(tmp_path, first.user[0], history)
    assert lines == [{"type": "answer", "text": "Hello, Ada!"}]
    history += [{"role": "user", "text": first.user[0]}, {"role": "assistant", "text": "Hello, Ada!"}]
    assert play(tmp_path, second.user[0], history) == [{"type": "answer", "text": "You are Ada."}]
    assert [line["type"] for line in play(tmp_path, second.user[1], history)] == ["tool_call", "tool_result", "answer"]


def test_git_leaves_out_what_evalfleet_writes_and_nothing_that_init_wrote(tmp_path: Path) -> None:
    """Issue 9, 22."""
    init(tmp_path)
    for path in (
        ".evalfleet/server.db",
        "evals/results/a/trials.jsonl",
        ".venv/bin/python",
        "__pycache__/a.pyc",
        ".env",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True, timeout=30)
    listed = ["git", "ls-files", "--others", "--exclude-standard"]
    seen = subprocess.run(listed, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=True)
    assert set(seen.stdout.split()) == set(ALL)


def test_what_a_gitignore_of_ones_own_lacks_is_said(tmp_path: Path) -> None:
    (tmp_path / IGNORED).write_text("/evals/results\n")
    assert "\nadd to .gitignore: .evalfleet/\n" in init(tmp_path).render()
    (tmp_path / IGNORED).write_text("/evals/results\n.evalfleet\n")
    assert "add to" not in init(tmp_path).render()


@pytest.mark.parametrize("path", ALL)
def test_a_file_that_is_there_is_left_as_it_is(tmp_path: Path, path: str) -> None:
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text("mine\n")
    done = init(tmp_path)
    assert (tmp_path / path).read_text() == "mine\n"
    assert path in done.left_alone
    assert f"left {path} alone" in done.render()


def test_a_second_init_writes_nothing(tmp_path: Path) -> None:
    init(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    done = init(tmp_path)
    assert done.written == ()
    assert "nothing to write" in done.render()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_beside_settings_of_ones_own_no_agent_is_written(tmp_path: Path) -> None:
    (tmp_path / CONFIG_FILE).write_text('[harness.http]\nurl = "http://127.0.0.1:9"\n')
    assert AGENT not in init(tmp_path).written


def test_beside_cases_of_ones_own_no_case_is_written(tmp_path: Path) -> None:
    (tmp_path / "evals/cases").mkdir(parents=True)
    (tmp_path / "evals/cases/mine.yaml").write_text("x")
    assert set(init(tmp_path).written) == {CONFIG_FILE, AGENT, IGNORED, CI_JOB}


@pytest.mark.parametrize(
    "name", ['qu"ote', "back\\slash", "ünï 🦊", "\x7f\x01"], ids=["quote", "slash", "emoji", "control"]
)
def test_an_odd_folder_name_gives_settings_that_can_be_read(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    init(folder)
    config = read_tree_config(folder)
    assert config.harness is not None
    assert config.harness.name.isprintable()


def test_a_link_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / AGENT).symlink_to(tmp_path / "elsewhere.py")
    init(tmp_path / "tree")
    assert not (tmp_path / "elsewhere.py").exists()


def test_a_file_where_a_folder_is_needed_is_one_clear_sentence(tmp_path: Path) -> None:
    (tmp_path / "evals").write_text("")
    with pytest.raises(UnfitHost, match="evals"):
        init(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_that_takes_no_file_is_one_clear_sentence(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(UnfitHost, match="cannot be written"):
        init(tmp_path)
