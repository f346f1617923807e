"""Does the workshop hold together: locks, Makefile, packages, names?"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCKS = ["requirements.lock", "requirements-build.lock", "requirements-dev.lock", "requirements-strangers.lock"]
LOCK_LINE = re.compile(r"[a-z0-9._-]+==[^\s;\\/:]+( ; [^\\/:]+)? \\|    --hash=sha256:[0-9a-f]{64}( \\)?")
TARGETS = [
    "demo", "test", "e2e", "chaos", "lint", "types", "strangers", "fuzz", "mutation", "bench", "smoke", "lock", "clean",
]  # fmt: skip


def pinned(lock: str) -> dict[str, set[str]]:
    """name → versions (one for each environment marker)."""
    found: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([a-z0-9._-]+)==([^\s;\\]+)", (ROOT / lock).read_text(), re.MULTILINE):
        found.setdefault(name, set()).add(version)
    return found


def normal(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[\[<>=!~; ]", requirement)[0]).lower()


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_pins_by_hash_and_names_no_place(lock: str) -> None:
    text = (ROOT / lock).read_text()
    for line in text.splitlines():
        assert LOCK_LINE.fullmatch(line), line  # so: no index, no address, no path, nothing unpinned
    for block in re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]:
        assert "--hash=sha256:" in block, block.splitlines()[0]
    assert pinned(lock)


def test_the_locks_hold_everything_that_the_project_asks_for_at_one_version() -> None:
    runs, build, dev = (pinned(lock) for lock in LOCKS[:3])
    assert {normal(requirement) for requirement in PROJECT["project"]["dependencies"]} <= set(runs)
    asked = PROJECT["project"]["optional-dependencies"]["dev"]
    assert {normal(requirement) for requirement in asked} <= set(dev)
    assert {normal(requirement) for requirement in PROJECT["build-system"]["requires"]} <= set(build)
    assert "editables" in build, "hatchling needs it for `pip install -e .`"
    for other in (runs, build):
        for name in set(other) & set(dev):
            assert other[name] == dev[name], f"{name}: the environments of `make demo` and `make test` must agree"
    assert set(runs) <= set(dev)


def test_every_target_of_the_workshop_exists_and_is_explained() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in TARGETS:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
        assert re.search(rf"^#   make {target}\b", makefile, re.MULTILINE), f"make {target} is not in the header"
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony is not None
    assert set(phony[1].split()) == {"help", *TARGETS}


@pytest.mark.parametrize("target", TARGETS)
def test_make_understands_each_target(target: str, tmp_path: Path) -> None:
    command = ["make", "--dry-run", f"VENV={tmp_path / 'venv'}", f"PYTHON={sys.executable}", target]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_an_old_python_is_refused_with_the_way_out(tmp_path: Path) -> None:
    old = tmp_path / "python3"
    old.write_text('#!/bin/sh\nif [ "$1" = -V ]; then echo "Python 3.9.2"; else exit 1; fi\n')
    old.chmod(0o755)
    command = ["make", f"VENV={tmp_path / 'venv'}", f"PYTHON={old}", "demo"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert f"evalfleet needs Python 3.11 or newer, and '{old}' is Python 3.9.2." in done.stderr
    assert "make PYTHON=python3.12 demo" in done.stderr
    assert not (tmp_path / "venv").exists()


def test_the_wheel_holds_exactly_the_three_packages() -> None:
    packages = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert packages == ["evalfleet", "scheduler", "worker"]
    for package in packages:
        assert (ROOT / package / "__init__.py").is_file()
        assert (ROOT / package / "py.typed").is_file()


def test_the_generic_names_are_ours_also_when_started_from_a_folder_with_others(tmp_path: Path) -> None:
    """`python -P` keeps the folder we stand in off the path: a user's own worker.py is not ours."""
    for name in ("worker", "scheduler", "evalfleet"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('somebody else')\n")
    code = "import worker, scheduler, evalfleet; from scheduler.names import check_names; check_names(); print('ours')"
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("ours\n", "")


def test_the_ci_run_is_a_script_that_bash_accepts() -> None:
    script = ROOT / ".ci/run"
    assert os.access(script, os.X_OK)
    assert "set -euo pipefail" in script.read_text()
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
    code = [line for line in script.read_text().splitlines() if not line.startswith("#")]
    assert not any(re.search(r"\buv\b", line) for line in code), "pip only"
