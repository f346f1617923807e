"""`worker` and `scheduler` are generic names: a collision is one clear sentence (design: "The rooms")."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import evalfleet
from evalfleet.errors import UnfitHost
from scheduler.names import check_names

HOME = Path(evalfleet.__file__).resolve().parent.parent


def test_our_own_packages_are_found_to_be_ours() -> None:
    check_names()


def test_a_name_that_resolves_to_nothing_is_said() -> None:
    with pytest.raises(UnfitHost, match="`no_such_package` resolves to nothing and not to evalfleet's own"):
        check_names(["no_such_package"])


@pytest.mark.parametrize("layout", ["worker.py", "worker/__init__.py", "worker/__main__.py"], ids=str)
def test_somebody_elses_worker_is_named_with_its_file_and_the_way_out(tmp_path: Path, layout: str) -> None:
    theirs = tmp_path / layout
    theirs.parent.mkdir(exist_ok=True)
    theirs.write_text("raise SystemExit('the check must not import it')\n")
    code = f"""
import sys
sys.path.insert(0, {str(HOME)!r})      # where evalfleet and scheduler come from
import scheduler.names, evalfleet.errors
sys.path.insert(0, {str(tmp_path)!r})
try:
    scheduler.names.check_names()
except evalfleet.errors.UnfitHost as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60, env={})
    if layout == "worker/__main__.py":  # a folder without __init__.py gives way to a real package
        assert done.stdout == ""
        return
    assert f"the package `worker` resolves to {theirs} and not to evalfleet's own" in done.stdout
    assert "python -P -m" in done.stdout
