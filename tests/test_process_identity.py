"""A pid is told apart from a later process of the same number."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from evalfleet.process_identity import boot, started


def test_a_process_that_lives_has_one_start() -> None:
    assert started(os.getpid()) == started(os.getpid()) is not None


def test_a_process_that_ended_has_none_also_while_nobody_has_asked_for_its_status() -> None:
    with subprocess.Popen(["sh", "-c", "exit 0"], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie now
            assert started(child.pid) is None
    assert started(child.pid) is None


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a start time is a date")
def test_the_boot_is_known_where_start_times_count_from_it() -> None:
    assert boot()
