"""The issue's bad input: disk full while writing the artifact. It stops, says so, and records nothing without its
evidence; with room again the same command finishes (I4)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.command import await_true
from tests.e2e.conftest import Tree

pytestmark = pytest.mark.e2e

TALKATIVE = """
import json, os, sys
turn = json.load(sys.stdin)
with open(os.environ["COUNT_FILE"], "a") as file:
    file.write(json.dumps([0, "start", turn["chat_id"], turn["message"]]) + "\\n")
print("hello " + os.urandom(60_000).hex())
"""


@pytest.fixture
def small_disk(tree: Tree) -> Iterator[Path]:
    """The results folder on a file system of 1 MB."""
    if sys.platform != "linux":
        pytest.skip("mounts a tmpfs")
    folder = tree.root / "evals/results"
    folder.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if mount.returncode != 0:
        pytest.skip(f"may not mount a tmpfs: {mount.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_stops_and_with_room_again_the_same_command_finishes(tree: Tree, small_disk: Path) -> None:
    (tree.root / "agent.py").write_text(TALKATIVE)
    cases = "scenarios:\n  - {id: ok, trials: 3, user: say it, expect: [{final_answer_contains: hello}]}\n"
    for name in "abcde":
        tree.case(name, cases)
    done = tree.run("eval", "-j", "1").check(3, "No space left on device; the disk is full: free some space")
    assert "evalfleet resume sub_" in done.err
    (artifact,) = (path for path in small_disk.iterdir() if path.is_dir())
    lines = [json.loads(line) for file in artifact.glob("trials/*.jsonl") for line in file.read_text().splitlines()]
    evidence = sum(1 for line in lines if line["outcome"] == "passed")
    assert 0 < evidence < 15
    assert not list(artifact.glob("trials/.*")), "a half-written segment was left"
    paid = tree.started()

    subprocess.run(["mount", "-o", "remount,size=16m", str(small_disk)], check=True)
    again = tree.run("eval", "-j", "1").check(0, "5 scenarios: 5 pass")
    assert f"{evidence} of 15 recorded" in again.err, "what is recorded has evidence, and the other way round"
    assert tree.started() <= 15 + 1, f"{paid} runs were paid for and found again; one may have been in flight"
    assert len(tree.lines()) == 15


def test_a_results_folder_that_goes_away_is_not_waited_for_by_who_sits_before_it(tree: Tree) -> None:
    """A fleet waits for its results (decision 026). Here it is told at once, by one sentence: the folder is a file, in
    which nobody can write, root no more than others."""
    tree.case("a", "scenarios:\n  - {id: one, trials: 3, user: until go hi, expect: [{no_error: true}]}\n")
    with tree.start("eval", "-j", "1") as evaluation:
        await_true(lambda: tree.started() == 1, "a run is in flight")
        trials = tree.artifact() / "trials"
        kept = trials.rename(trials.with_name("kept"))
        trials.touch()
        (tree.root / "go").touch()
        done = evaluation.wait(60).check(3, "Not a directory; a part of that path is a file: move it away")
    assert "Traceback" not in done.err
    paid = tree.started()
    trials.unlink()
    kept.rename(trials)
    tree.run("eval", "-j", "1").check(0, "1 scenario: 1 pass")
    assert tree.started() <= 3 + 1, f"{paid} runs were paid for and found again; one may have been in flight"
