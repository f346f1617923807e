"""The CI job that `evalfleet init` writes: it installs the evalfleet that wrote it, has the keys it needs, and runs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml

from evalfleet.tree import CONFIG_FILE
from scheduler.ci_job import REQUIREMENT, requirement, requirement_of
from scheduler.init import CI_JOB, init

HOUSE = Path(__file__).resolve().parents[2]
HEAD = "f" * 40
SHA = "0" * 64

RECORDS = [
    # the record of PEP 610, what pip installs
    ({"url": "https://git.example/o/evalfleet.git", "vcs_info": {"vcs": "git", "commit_id": HEAD}},
     f"evalfleet @ git+https://git.example/o/evalfleet.git@{HEAD}"),
    ({"url": "https://git.example/o/mono", "vcs_info": {"vcs": "git", "commit_id": HEAD, "requested_revision": "main"},
      "subdirectory": "tools/evalfleet"},
     f"evalfleet @ git+https://git.example/o/mono@{HEAD}#subdirectory=tools/evalfleet"),
    ({"url": "ssh://git@git.example/o/evalfleet", "vcs_info": {"vcs": "git", "commit_id": HEAD}},
     f"evalfleet @ git+ssh://git@git.example/o/evalfleet@{HEAD}"),
    ({"url": "https://files.example/evalfleet-0.1.0-py3-none-any.whl", "archive_info": {"hashes": {"sha256": SHA}}},
     f"evalfleet @ https://files.example/evalfleet-0.1.0-py3-none-any.whl#sha256={SHA}"),
    ({"url": "https://files.example/evalfleet.tar.gz", "archive_info": {}},
     "evalfleet @ https://files.example/evalfleet.tar.gz"),
    ({"url": "file:///home/a/evalfleet", "dir_info": {"editable": True}}, None),
    ({"url": "file:///home/a/evalfleet-0.1.0-py3-none-any.whl", "archive_info": {}}, None),
    ({"url": "file:///home/a/evalfleet", "vcs_info": {"vcs": "git", "commit_id": HEAD}}, None),
    ({"url": "https://a:s3cret@git.example/o/e", "vcs_info": {"vcs": "git", "commit_id": HEAD}}, None),
    ({"url": "https://s3cret@git.example/o/e", "vcs_info": {"vcs": "git", "commit_id": HEAD}}, None),
    ({"url": "ssh://s3cret@git.example/o/e", "vcs_info": {"vcs": "git", "commit_id": HEAD}}, None),
    ({"url": "https://files.example/e.whl?signature=s3cret", "archive_info": {}}, None),
    ({"url": "https://files.example/$(reboot).whl", "archive_info": {}}, None),
    ({"url": "https://git.example/o/e", "vcs_info": {"vcs": "git", "commit_id": HEAD}, "subdirectory": 'a" b'}, None),
    ({}, None),
]  # fmt: skip


@pytest.mark.parametrize(("record", "wanted"), RECORDS)
def test_ci_installs_what_was_installed_here_pinned_or_asks(record: dict[str, Any], wanted: str | None) -> None:
    """Issue 9, 22: `pip install evalfleet` named a package that no index had."""
    assert requirement_of(record) == wanted


class Installed(metadata.Distribution):
    def __init__(self, files: dict[str, str]) -> None:
        self.files_ = {"METADATA": "Name: evalfleet\nVersion: 0.1.7\n", **files}

    def read_text(self, filename: str) -> str | None:
        return self.files_.get(filename)

    def locate_file(self, path: Any) -> Any:
        return Path(path)


def test_without_a_record_it_came_from_an_index_and_its_version_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "distribution", lambda name: Installed({}))
    assert requirement() == "evalfleet==0.1.7"
    record = json.dumps(RECORDS[0][0])
    monkeypatch.setattr(metadata, "distribution", lambda name: Installed({"direct_url.json": record}))
    assert requirement() == RECORDS[0][1]


def test_a_checkout_that_was_never_installed_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", absent)
    assert requirement() is None


def steps(root: Path) -> list[dict[str, Any]]:
    job = yaml.safe_load((root / CI_JOB).read_text())["jobs"]["evals"]
    found: list[dict[str, Any]] = job["steps"]
    return found


def keys(root: Path) -> dict[str, str]:
    (step,) = [step for step in steps(root) if step.get("name") == "Play the checks"]
    found: dict[str, str] = step.get("env", {})
    return found


_OPENAI = """
[harness.openai]
base_url = "http://a.example"
model = "m"
api_key_env = "AGENT_KEY"
[judge]
base_url = "http://b.example"
model = "j"
api_key_env = "JUDGE_KEY"
[graders]
env = ["RUBRIC_TOKEN", "AGENT_KEY"]
"""
SETTINGS = [
    (_OPENAI, ["JUDGE_KEY", "AGENT_KEY", "RUBRIC_TOKEN"], "eval"),
    ('[harness.http]\nurl = "http://a.example"\nheaders_env = {Authorization = "AUTH"}\n', ["AUTH"], "eval"),
    ('[target]\nharness_id = "h_1"\n', ["SPLOX_API_KEY", "SPLOX_BASE_URL"], "eval --target"),
    ('[target]\nharness_id = "h_1"\nprofile = "acme-eu"\nbase_url = "https://q.example/api"\n',
     ["SPLOX_API_KEY_ACME_EU"], "eval --target"),
    ('[harness.command]\nargv = ["python3", "x.py"]\n', [], "eval"),
    ("[harness\n", [], "eval"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "wanted", "command"), SETTINGS)
def test_the_keys_that_the_settings_name_come_from_the_repositorys_secrets(
    tmp_path: Path, settings: str, wanted: list[str], command: str
) -> None:
    """Issue 9, 22: secrets were not wired."""
    (tmp_path / CONFIG_FILE).write_text(settings)
    init(tmp_path)
    assert keys(tmp_path) == {name: f"${{{{ secrets.{name} }}}}" for name in wanted}
    assert any(step.get("run", "").endswith(f'/evalfleet" {command}') for step in steps(tmp_path))


def test_the_judge_that_the_example_names_has_its_key(tmp_path: Path) -> None:
    init(tmp_path)
    assert list(keys(tmp_path)) == ["OPENAI_API_KEY"]
    assert "OPENAI_API_KEY" in (tmp_path / CONFIG_FILE).read_text()


def run(step: dict[str, Any], lines: str, root: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Lines of a step as GitHub runs them. Secrets and variables are `env`'s."""
    own = {
        name: re.sub(r"\$\{\{ (?:vars|secrets)\.(\w+) \}\}", lambda found: env.get(found[1], ""), value)
        for name, value in step.get("env", {}).items()
    }
    given = {name: value for name, value in env.items() if name != REQUIREMENT}
    bash = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", lines]
    return subprocess.run(bash, cwd=root, env={**given, **own}, capture_output=True, text=True, timeout=100)


@pytest.mark.e2e
@pytest.mark.timeout(240)
def test_the_job_runs_as_it_was_written_in_fresh_environments_from_a_wheel(tmp_path: Path) -> None:
    """Issue 9, 22. Nothing is fetched: the wheel is built here, and what it depends on is seen beside it."""
    root, runner = tmp_path / "tree", tmp_path / "runner"
    assert f"in CI: set {REQUIREMENT}" in init(root).render()
    beside = runner / "evalfleet" / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    beside.mkdir(parents=True)
    (beside / "depends.pth").write_text(sysconfig.get_path("purelib") + "\n")
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "RUNNER_TEMP": str(runner), "PIP_NO_INDEX": "1"}
    env |= {"PIP_NO_DEPS": "1", "PIP_IGNORE_INSTALLED": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}

    wheel = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    subprocess.run([*wheel, str(HOUSE)], check=True, timeout=100, env={**os.environ, "PIP_NO_INDEX": "1"})
    (built,) = tmp_path.glob("evalfleet-*.whl")
    (root / "requirements.txt").write_text("# what the agent imports\n")

    install, packages, play = [step for step in steps(root) if "run" in step]
    asked = run(install, install["run"].splitlines()[-1], root, env)
    assert asked.returncode
    assert f"{REQUIREMENT}: is not set: see the comment at this step" in asked.stderr
    env[REQUIREMENT] = str(built)
    for step in (install, packages, play):
        done = run(step, step["run"], root, env)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "2 scenarios: 2 pass" in done.stdout
    assert list((root / "evals/results").iterdir())
    where = run(
        {}, '"$RUNNER_TEMP/evalfleet/bin/python" -P -c "import scheduler; print(scheduler.__file__)"', root, env
    )
    assert str(beside) in where.stdout
