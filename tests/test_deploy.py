"""Do the files in deploy/ say what the program understands?

Read here without Docker; `tests/integration/test_compose.py` runs each command line as a process.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from evalfleet.settings import VARIABLES, Settings

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"] == "evalfleet"}
WORKER_FLAGS = ("QUEUES", "CONCURRENCY", "LIVENESS_FILE")
FILLED_IN = {"EVALFLEET_TOKEN": "token-of-24-letters-or-so", "EVALFLEET_TREE": "/tree"}


def filled_in(text: str) -> str:
    """Compose's own replacement of ${NAME:-default} and ${NAME:?message}."""
    return re.sub(r"\$\{(\w+)(?::[-?][^}]*)?\}", lambda found: FILLED_IN[found[1]], text)


def test_the_fleet_has_every_part() -> None:
    assert set(SERVICES) == {"valkey", "server", "scheduler", "worker", "submit", "prometheus"}
    assert SERVICES["worker"]["deploy"]["replicas"] == 2


@pytest.mark.parametrize("name", OURS)
def test_each_part_is_a_command_of_ours(name: str) -> None:
    """The service's name is the command's: `evalfleet server`, `evalfleet worker`, …"""
    command = OURS[name]["command"]
    assert command[0] == name
    assert all(isinstance(word, str) for word in command)


@pytest.mark.parametrize("name", OURS)
def test_each_flag_of_a_part_is_one_that_the_program_has(name: str) -> None:
    flags = {word for word in OURS[name]["command"] if word.startswith("--")}
    ask = [sys.executable, "-P", "-c", "import sys; from scheduler.cli import main; sys.exit(main())", name, "--help"]
    wide = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1"}
    done = subprocess.run(ask, capture_output=True, text=True, timeout=60, env=wide)
    assert done.returncode == 0, done.stderr
    assert flags <= set(re.findall(r"--[a-z-]+", done.stdout))


@pytest.mark.parametrize("name", OURS)
def test_each_parts_environment_is_read_by_settings(name: str) -> None:
    environment = {key: filled_in(value) for key, value in OURS[name]["environment"].items()}
    assert set(environment) <= set(VARIABLES), "a variable that nobody reads"
    settings = Settings.from_env(environment)
    assert settings.token == FILLED_IN["EVALFLEET_TOKEN"]


@pytest.mark.parametrize("name", sorted(set(SERVICES) - {"submit", "prometheus"}))
def test_each_part_that_stays_says_whether_it_is_healthy(name: str) -> None:
    check = SERVICES[name]["healthcheck"]
    assert check["test"][0] == "CMD", "without a shell"
    if name in OURS and check["test"][1:3] == ["python", "-c"]:
        compile(check["test"][3], name, "exec")


def test_the_broker_never_evicts() -> None:
    command = SERVICES["valkey"]["command"]
    assert command[command.index("--maxmemory-policy") + 1] == "noeviction"


def test_no_secret_stands_in_a_file() -> None:
    for path in DEPLOY.iterdir():
        for line in path.read_text().splitlines():
            if re.search(r"(TOKEN|PASSWORD)\s*[:=]", line) and "printf" not in line:
                assert ":?" in line, f"{path.name}: {line}"


def test_only_loopback_is_published() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_every_volume_and_dependency_is_declared() -> None:
    for name, service in SERVICES.items():
        for volume in service.get("volumes", []):
            source = filled_in(volume).split(":")[0]
            assert source in COMPOSE["volumes"] or source.startswith((".", "/")), (name, volume)
        assert set(service.get("depends_on", {})) <= set(SERVICES)
    for name, service in OURS.items():
        for volume in service.get("volumes", []):
            target = filled_in(volume).split(":")[1]
            assert target in {"/tree", "/results", "/state"}, (name, volume)


def test_prometheus_asks_every_part_that_serves_metrics() -> None:
    jobs = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"]
    asked = set()
    for job in jobs:
        for group in job.get("static_configs", []):
            asked |= {tuple(target.split(":")) for target in group["targets"]}
        for lookup in job.get("dns_sd_configs", []):
            asked |= {(name, str(lookup["port"])) for name in lookup["names"]}
    assert asked == {(name, "9100") for name in set(OURS) - {"submit"}}
    for name in set(OURS) - {"submit"}:
        command, environment = OURS[name]["command"], OURS[name]["environment"]
        flag = command[command.index("--metrics-port") + 1] if "--metrics-port" in command else None
        assert "9100" in {flag, environment.get("EVALFLEET_METRICS_PORT")}, name


def instructions() -> Iterator[tuple[str, str]]:
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            word, _, rest = line.strip().partition(" ")
            yield word, rest


def test_the_image_copies_files_that_exist_and_runs_as_nobody_special() -> None:
    steps = list(instructions())
    for word, rest in steps:
        if word == "COPY" and "--from" not in rest:
            *sources, _ = shlex.split(rest)
            for source in set(sources) - {"README.md"}:  # the wheel's own metadata asks for it; written last
                assert (ROOT / source).exists(), source
    assert [rest for word, rest in steps if word == "USER"] == ["evalfleet"]
    assert ("ENTRYPOINT", '["evalfleet"]') in steps
    installs = [rest for word, rest in steps if word == "RUN" and "pip install" in rest]
    assert all("--require-hashes" in rest or "/wheel/" in rest for rest in installs)


def test_the_images_python_is_one_that_we_support() -> None:
    minors = {
        int(rest.split()[0].removeprefix("python:3.").split("-")[0]) for word, rest in instructions() if word == "FROM"
    }
    assert minors <= {11, 12, 13, 14}
    assert len(minors) == 1, "the wheel is built with the Python that runs it"


def test_the_page_on_fleets_names_every_setting_that_a_person_gives() -> None:
    page = (ROOT / "docs" / "fleet.md").read_text(encoding="utf-8")
    settings = page.split("## Settings")[1].split("\n## ")[0]
    for name in set(VARIABLES) - {"EVALFLEET_LIFELINE_FD"}:
        assert f"`{name}`" in settings, name
    for variable in re.findall(r"`(EVALFLEET_\w+)`", settings):
        assert variable in VARIABLES or variable in {f"EVALFLEET_{flag}" for flag in WORKER_FLAGS}, variable
