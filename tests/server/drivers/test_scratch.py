"""A fresh copy of the tree for each conversation (`cwd = "scratch"`)."""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path

import pytest

from evalfleet.server.drivers.command import CommandDriver
from evalfleet.server.drivers.scratch import IDLE, Scratch
from evalfleet.server.driving import Ended
from evalfleet.treeconfig import CommandHarness
from tests.server.drivers.recording import Recording, a_turn

AGENT = """
import sys, json, os, pathlib
turn = json.load(sys.stdin)
notes = pathlib.Path("notes.txt")
before = notes.read_text() if notes.exists() else ""
notes.write_text(before + turn["message"])
print(before)
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    for folder in (
        "evals/results/old",
        "evals/cases",
        ".git",
        ".evalfleet",
        ".venv/bin",
        "app/node_modules/x",
        "empty",
    ):
        (root / folder).mkdir(parents=True)
        (root / folder / "file").write_text(folder)
    (root / "agent.py").write_text(AGENT)
    (root / "app" / "results").mkdir()
    (root / "app" / "loop").symlink_to("..", target_is_directory=True)
    (root / "dangling").symlink_to("nowhere")
    return root


async def test_each_conversation_has_its_own_copy_and_keeps_it_for_its_turns(tree: Path, tmp_path: Path) -> None:
    harness = CommandHarness((sys.executable, "-S", "agent.py"), {}, "scratch")
    driver = CommandDriver(harness, root=tree, state=tmp_path / "state")
    answers = []
    for chat, message in [("chat_a", "one "), ("chat_b", "two "), ("chat_a", "three ")]:
        sink = Recording()
        assert await driver.run(a_turn(message, chat=chat), sink) == Ended()
        answers.append(sink.answers)
    assert answers == [[], [], ["one "]]
    assert not (tree / "notes.txt").exists()
    await driver.aclose()
    assert not (tmp_path / "state" / "scratch").exists()


async def test_what_is_no_part_of_the_agent_is_not_copied(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = tree / "mystate"
    state.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        monkeypatch.chdir(tree)
        listener.bind("a.sock")
        copy = await Scratch(tree, state / "scratch").enter("chat_1")
    names = {str(path.relative_to(copy)) for path in copy.rglob("*") if not path.is_symlink()}
    assert {"agent.py", "evals", "evals/cases", "evals/cases/file", "empty/file", "app", "app/results"} <= names
    for absent in ("evals/results", ".git", ".evalfleet", "mystate", "a.sock"):
        assert not (copy / absent).exists()
    assert (copy / ".venv").readlink() == tree / ".venv"
    assert (copy / "app" / "node_modules").readlink() == tree / "app" / "node_modules"
    assert (copy / "app" / "loop").readlink() == Path("..")
    assert (copy / "dangling").is_symlink()


async def test_an_idle_copy_goes_and_one_in_use_stays(tree: Path, tmp_path: Path) -> None:
    now = [0.0]
    scratch = Scratch(tree, tmp_path / "scratch", clock=lambda: now[0])
    idle, used = await scratch.enter("chat_idle"), await scratch.enter("chat_used")
    scratch.leave("chat_idle")
    now[0] = IDLE - 1
    await scratch.sweep()
    assert idle.exists()
    now[0] = IDLE + 1
    await scratch.sweep()
    assert not idle.exists()
    assert used.exists()
    scratch.leave("chat_used")
    again = await scratch.enter("chat_idle")
    assert (again, (again / "agent.py").exists()) == (idle, True)


async def test_of_a_chat_whose_copy_has_gone_nothing_is_remembered(tree: Path, tmp_path: Path) -> None:
    now = [0.0]
    scratch = Scratch(tree, tmp_path / "scratch", clock=lambda: now[0])
    for chat in ("chat_1", "chat_2"):
        await scratch.enter(chat)
        scratch.leave(chat)
    now[0] = IDLE + 1
    await asyncio.gather(scratch.sweep(), scratch.sweep())
    assert (scratch._used, scratch._busy, scratch._locks) == ({}, {}, {})


async def test_what_a_killed_server_left_goes_and_another_trees_copies_stay(tree: Path, tmp_path: Path) -> None:
    left = await Scratch(tree, tmp_path / "scratch").enter("chat_left")
    (tmp_path / "other").mkdir()
    others = await Scratch(tmp_path / "other", tmp_path / "scratch").enter("chat_other")
    scratch = Scratch(tree, tmp_path / "scratch")
    copies = await asyncio.gather(scratch.enter("chat_1"), scratch.enter("chat_2"))
    assert [copy.is_dir() for copy in copies] == [True, True]
    assert not left.exists()
    scratch.clear()
    assert others.is_dir()


async def test_two_turns_of_one_chat_at_once_share_one_copy(tree: Path, tmp_path: Path) -> None:
    scratch = Scratch(tree, tmp_path / "scratch")
    folders = await asyncio.gather(*(scratch.enter("chat_1") for _ in range(5)))
    assert len(set(folders)) == 1


async def test_a_chat_id_that_is_no_folder_name_stays_inside(tree: Path, tmp_path: Path) -> None:
    folder = await Scratch(tree, tmp_path / "scratch").enter("../../etc/x")
    assert folder.resolve().is_relative_to(tmp_path / "scratch")


async def test_a_copy_that_the_agent_made_read_only_goes_as_well(tree: Path, tmp_path: Path) -> None:
    scratch = Scratch(tree, tmp_path / "scratch")
    folder = await scratch.enter("chat_1")
    (folder / "empty").chmod(0o500)
    folder.chmod(0o500)
    scratch.clear()
    assert not folder.exists()


async def test_a_copy_that_cannot_be_made_is_our_trouble_and_not_the_agents(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "scratch").write_text("in the way")
    harness = CommandHarness((sys.executable, "-S", "agent.py"), {}, "scratch")
    driver = CommandDriver(harness, root=tree, state=tmp_path / "state")
    ended = await driver.run(a_turn(), Recording())
    assert ended.failure is not None
    assert (ended.failure.code, ended.failure.retryable) == ("internal_error", True)
    (tmp_path / "state" / "scratch").unlink()
    await driver.aclose()
