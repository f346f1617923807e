"""How everything that a grader started is found, on hosts without PID namespaces."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from evalfleet.graders.inside.keeper import LOG_BYTES, Log
from evalfleet.graders.inside.sweep import children, descendants, marked, remove_folder
from tests.graders.trees import needs_linux

PS = """
  100     1   100 /usr/bin/python zygote.py EVALFLEET_GRADER_CALL=77.1
  200    77   200 sleep 300
  201   200   201 sleep 300 TERM=x
  202   201   202 sh
  300     1   300 sleep 300 EVALFLEET_GRADER_CALL=77.12 HOME=/x
  301     1   200 in the group
  400     1   400 sleep 300 EVALFLEET_GRADER_CALL=770.1
  500     1   500 somebody else's
    """


def test_on_macos_the_group_the_descendants_and_the_mark_are_found() -> None:
    assert marked(PS, 200, "EVALFLEET_GRADER_CALL=77.12") == [200, 201, 202, 300, 301]


@needs_linux
def test_descendants_are_found_over_sessions() -> None:
    program = "import os, sys, time; os.fork() or os.setsid(); print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.readline()
        below = descendants(process.pid)
        assert len(below) == 1
        assert process.pid in children(os.getpid())
        assert {process.pid, *below} <= set(descendants(os.getpid()))
        for pid in [*below, process.pid]:
            os.kill(pid, 9)


def test_a_scratch_folder_goes_and_what_its_links_lead_to_stays(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("x")
    scratch = tmp_path / "scratch"
    (scratch / "a" / "b").mkdir(parents=True)
    (scratch / "a" / "file").write_text("x")
    (scratch / "folder").symlink_to(tmp_path / "kept")
    (scratch / "a" / "file_link").symlink_to(tmp_path / "kept" / "file")
    (scratch / "nowhere").symlink_to(tmp_path / "nothing")
    remove_folder(str(scratch))
    assert not scratch.exists()
    assert (tmp_path / "kept" / "file").read_text() == "x"


def test_f07_a_log_keeps_its_head_and_its_tail_and_says_what_is_lost() -> None:
    log = Log()
    log.add(b"first\n")
    for _ in range(100):
        log.add(b"x" * 65536)
    log.add(b"\nlast \xff")
    text = log.text()
    assert text.startswith("first\nxxx")
    assert text.endswith("xxx\nlast \\xff")
    assert f"… [cut: {6 + 100 * 65536 + 7 - LOG_BYTES} bytes of {6 + 100 * 65536 + 7}] …" in text
    assert len(text) < LOG_BYTES + 100


def test_a_log_that_fits_is_kept_as_it_is() -> None:
    log = Log()
    for start in range(0, LOG_BYTES, 1000):
        log.add(b"y" * min(1000, LOG_BYTES - start))
    assert log.text() == "y" * LOG_BYTES
