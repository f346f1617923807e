"""Do the files in deploy/ say what the program understands?

Read here without Docker and without a cluster; `tests/integration/test_deployments.py` runs each command line.
"""

from __future__ import annotations

import copy
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from evalfleet.contract.tasks import QUEUES
from evalfleet.settings import VARIABLES, Settings
from tests.deployments import COMPOSE, DEPLOY, ROOT, SECRETS, SERVICES, Part, compose, filled_in, kubernetes, kustomized
from tests.test_telemetry import documented

RESOURCES = kustomized()
OURS = compose()
PODS = {} if RESOURCES is None else kubernetes(RESOURCES)
PARTS = [
    *(pytest.param(part, id=f"compose-{part.name}") for part in OURS.values()),
    *(pytest.param(part, id=f"kubernetes-{part.name}") for part in PODS.values()),
]
WORKER_FLAGS = ("QUEUES", "CONCURRENCY", "LIVENESS_FILE")
ROLES = {f"worker-{queue}" for queue in QUEUES}
needs_kubectl = pytest.mark.skipif(RESOURCES is None, reason="kubectl builds the kustomization")
needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool checks Prometheus' files")


# -- both -------------------------------------------------------------------------------------------------------------


def test_a_fleet_has_every_part() -> None:
    assert set(OURS) == {"server", "scheduler", "submit"} | ROLES
    assert set(SERVICES) - set(OURS) == {"valkey", "postgres", "prometheus", "grafana"}
    assert RESOURCES is None or set(PODS) == {"server", "scheduler"} | ROLES
    for parts in filter(None, (OURS, PODS)):
        for queue in QUEUES:
            words = parts[f"worker-{queue}"].words
            assert words[words.index("--queues") + 1] == queue


@pytest.mark.parametrize("part", PARTS)
def test_each_flag_of_a_part_is_one_that_the_program_has(part: Part) -> None:
    command, flags = part.words[0], {word for word in part.words if word.startswith("--")}
    assert part.name.split("-")[0] == command
    ask = [
        sys.executable,
        "-P",
        "-c",
        "import sys; from scheduler.cli import main; sys.exit(main())",
        command,
        "--help",
    ]
    wide = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1"}
    done = subprocess.run(ask, capture_output=True, text=True, timeout=60, env=wide)
    assert done.returncode == 0, done.stderr
    assert flags <= set(re.findall(r"--[a-z-]+", done.stdout))


@pytest.mark.parametrize("part", PARTS)
def test_each_parts_environment_is_read_by_settings(part: Part) -> None:
    assert set(part.environment) <= set(VARIABLES), "a variable that nobody reads"
    settings = Settings.from_env(part.environment)
    assert settings.token == SECRETS["EVALFLEET_TOKEN"]
    if part.name == "server":
        assert settings.broker_url is None, "the server knows nothing of the queue"
        assert settings.plan_key is None, "nor of plans"
    else:
        assert settings.database_url is None, "only the server reaches the database"
        assert settings.plan_key == SECRETS["EVALFLEET_PLAN_KEY"]


@pytest.mark.parametrize("part", [case for case in PARTS if "submit" not in str(case.id)])
def test_each_part_that_stays_says_whether_it_is_healthy(part: Part) -> None:
    if part.health[:2] == ("python", "-c"):
        compile(part.health[2], part.name, "exec")
    else:
        assert part.address.startswith("http://127.0.0.1:")


@pytest.fixture
def alive(tmp_path: Path) -> Path:
    return tmp_path / "alive"


def probed(command: Sequence[str], alive: Path) -> tuple[bool, str]:
    """Whether a probe of a worker's file is content, and what it says."""
    assert command[:2] == ("python", "-c")
    program = command[2].replace("'/tmp/alive'", repr(str(alive)))
    assert program != command[2]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    return done.returncode == 0, done.stderr


def test_a_worker_that_is_well_satisfies_every_probe_and_one_that_takes_nothing_none(alive: Path) -> None:
    probes = [(OURS[role].health, "compose") for role in sorted(ROLES)]
    for pod in (PODS[role] for role in sorted(ROLES) if PODS):
        probes += [(pod.health, "liveness"), (pod.readiness, "readiness")]
    for command, kind in {(command, kind) for command, kind in probes}:
        alive.unlink(missing_ok=True)
        assert not probed(command, alive)[0], f"{kind}: there is no life yet"
        alive.touch()
        assert probed(command, alive) == (True, ""), kind
        os.utime(alive, (1, 1))
        assert not probed(command, alive)[0], kind


def test_a_platform_that_is_away_makes_a_worker_unhealthy_and_restarts_none(alive: Path) -> None:
    """Else all workers of a cluster would be restarted for as long as it lasts."""
    alive.write_text("platform: it does not answer")
    for role in ROLES:
        well, said = probed(OURS[role].health, alive)
        assert not well
        assert said.strip() == "platform: it does not answer", "whoever asks about the container reads why"
        if PODS:
            assert probed(PODS[role].readiness, alive) == (False, said)
            assert probed(PODS[role].health, alive)[0], "liveness is about the file's age alone"


def test_only_who_writes_or_reads_the_results_has_them() -> None:
    """Whoever runs an agent's or a grader's code beside it could change them."""
    have = {"scheduler", "submit", "worker-aggregate"}
    assert {name for name in OURS if "results:/results" in SERVICES[name].get("volumes", [])} == have
    mounted = {
        resource["metadata"].get("name", "submit")
        for resource, container in (containers() if RESOURCES is not None else ())
        if any(mount["name"] == "results" for mount in container["volumeMounts"])
    }
    assert mounted == (have if RESOURCES is not None else set())


def test_no_secret_stands_in_a_file() -> None:
    for path in filter(Path.is_file, DEPLOY.rglob("*")):
        for line in path.read_text().splitlines():
            for value in re.findall(r"(?:TOKEN|PASSWORD|KEY)\s*[:=]\s*(\S+)", re.sub(r"\$\{[^}]*\}", "${}", line)):
                assert value.startswith(("${}", "%s")), f"{path.name}: {line}"


def test_the_broker_never_evicts() -> None:
    commands = [SERVICES["valkey"]["command"]]
    if RESOURCES is not None:
        commands += [c["args"] for r, c in containers() if r["metadata"].get("name") == "valkey"]
    for command in commands:
        assert command[command.index("--maxmemory-policy") + 1] == "noeviction"


# -- compose ----------------------------------------------------------------------------------------------------------


def test_only_loopback_is_published() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_every_volume_and_dependency_is_declared() -> None:
    used = set()
    for name, service in SERVICES.items():
        for volume in service.get("volumes", []):
            source = filled_in(volume).split(":")[0]
            used.add(source)
            assert source in COMPOSE["volumes"] or source.startswith("/") or (DEPLOY / source).exists(), (name, volume)
        assert set(service.get("depends_on", {})) <= set(SERVICES)
    assert set(COMPOSE["volumes"]) <= used
    for name in OURS:
        for volume in SERVICES[name].get("volumes", []):
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
    for name, part in OURS.items():
        flag = part.words[part.words.index("--metrics-port") + 1] if "--metrics-port" in part.words else None
        assert "9100" in {flag, part.environment.get("EVALFLEET_METRICS_PORT")}, name


# -- Kubernetes -------------------------------------------------------------------------------------------------------


def containers() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """(resource, container) of all that runs."""
    (job,) = yaml.safe_load_all((DEPLOY / "kubernetes" / "submit-job.yaml").read_text())
    for resource in [*(RESOURCES or ()), job]:
        pod = resource.get("spec", {}).get("template", {}).get("spec")
        if pod is not None:
            for container in [*pod.get("initContainers", ()), *pod["containers"]]:
                yield resource, container


@needs_kubectl
def test_every_resource_is_what_kubernetes_takes() -> None:
    """Against the published schemas, strictly: no field that is not in them."""
    (job,) = yaml.safe_load_all((DEPLOY / "kubernetes" / "submit-job.yaml").read_text())
    named = copy.deepcopy(job)
    named["metadata"]["name"] = named["metadata"].pop("generateName") + "1"
    for version in ("1.31", "1.34"):
        for resource in [*(RESOURCES or ()), named]:
            kubernetes_validate.validate(resource, version, strict=True)


@needs_kubectl
def test_every_container_is_held_as_the_namespace_demands() -> None:
    seen = set()
    for resource, container in containers():
        pod = resource["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        own = container["securityContext"]
        assert own["allowPrivilegeEscalation"] is False
        assert own["readOnlyRootFilesystem"] is True
        assert own["capabilities"] == {"drop": ["ALL"]}
        if resource["kind"] != "Job":
            assert container["resources"]["limits"]["memory"]
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        declared = {v["name"] for v in pod.get("volumes", ())}
        declared |= {claim["metadata"]["name"] for claim in resource["spec"].get("volumeClaimTemplates", ())}
        assert mounted <= declared
        seen.add(resource["metadata"].get("name", "submit"))
    assert seen == {"server", "scheduler", "valkey", "postgres", "submit"} | ROLES


@needs_kubectl
def test_policies_let_through_what_each_part_needs_and_nothing_else() -> None:
    """Evaluated as a cluster would: egress and ingress must both allow."""
    pods = {r["metadata"].get("name", "submit"): r["spec"]["template"]["metadata"]["labels"] for r, _ in containers()}
    policies = [r["spec"] for r in RESOURCES or () if r["kind"] == "NetworkPolicy"]

    def matches(selector: dict[str, Any], labels: dict[str, str]) -> bool:
        return all(labels.get(k) == v for k, v in selector.get("matchLabels", {}).items()) and all(
            labels.get(term["key"]) in term["values"] for term in selector.get("matchExpressions", ())
        )

    def lets(kind: str, mine: str, peer: str, port: int) -> bool:
        own = [p for p in policies if kind in p["policyTypes"] and matches(p["podSelector"], pods[mine])]
        assert own, "a pod that no policy names is open to everybody"
        for policy in own:
            for rule in policy.get(kind.lower(), ()):
                peers = [s["podSelector"] for s in rule["from" if kind == "Ingress" else "to"] if "podSelector" in s]
                if any(matches(s, pods[peer]) for s in peers) and port in {p["port"] for p in rule["ports"]}:
                    return True
        return False

    ports = {"valkey": 6379, "postgres": 5432, "server": 8080}
    clients = {"scheduler", "submit"} | ROLES
    wanted = {(c, t) for c in clients for t in ("valkey", "server")} | {("server", "postgres")}
    for source in pods:
        for target, port in ports.items():
            through = lets("Egress", source, target, port) and lets("Ingress", target, source, port)
            assert through == ((source, target) in wanted), (source, target)


@needs_kubectl
def test_what_scales_and_what_is_drained_names_what_is_there() -> None:
    assert RESOURCES is not None
    deployments = {r["metadata"]["name"]: r for r in RESOURCES if r["kind"] == "Deployment"}
    for resource in RESOURCES:
        if resource["kind"] == "PodDisruptionBudget":
            assert resource["spec"]["selector"] == deployments[resource["metadata"]["name"]]["spec"]["selector"]
        if resource["kind"] == "HorizontalPodAutoscaler":
            assert resource["spec"]["scaleTargetRef"]["name"] in deployments
            (metric,) = resource["spec"]["metrics"]
            rules = yaml.safe_load((DEPLOY / "rules.yml").read_text())
            recorded = {rule["record"] for group in rules["groups"] for rule in group["rules"] if "record" in rule}
            assert metric["external"]["metric"]["name"].replace("_", ":", 1) in recorded
    budgets = {r["metadata"]["name"]: r["spec"] for r in RESOURCES if r["kind"] == "PodDisruptionBudget"}
    assert set(budgets) == set(deployments)
    for role in ROLES:
        assert budgets[role]["unhealthyPodEvictionPolicy"] == "AlwaysAllow", "no drain waits for somebody's platform"


# -- Prometheus and Grafana -------------------------------------------------------------------------------------------

RULES = [rule for group in yaml.safe_load((DEPLOY / "rules.yml").read_text())["groups"] for rule in group["rules"]]
DASHBOARD = json.loads((DEPLOY / "grafana" / "dashboards" / "evalfleet.json").read_text())
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


@needs_promtool
def test_prometheus_takes_its_files() -> None:
    for words in (["check", "config", "prometheus.yml"], ["check", "rules", "rules.yml"]):
        done = subprocess.run(["promtool", *words], cwd=DEPLOY, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


def test_rules_and_panels_ask_for_metrics_that_there_are() -> None:
    known = {rule["record"] for rule in RULES if "record" in rule} | {"up"}
    for name, kind, _ in documented():
        known |= {f"{name}{end}" for end in ("_bucket", "_count", "_sum")} if kind == "histogram" else {name}
    for expression in [*QUERIES, *(rule["expr"] for rule in RULES)]:
        asked = set(re.findall(r"\bevalfleet[\w:]+|\bup\b", expression))
        assert asked, expression
        assert asked <= known, expression


def test_every_metric_of_the_page_is_used_by_a_rule_or_a_panel() -> None:
    everything = " ".join([*QUERIES, *(rule["expr"] for rule in RULES)])
    for name, _, _ in documented():
        assert re.search(rf"\b{name}(_bucket|_count)?\b", everything), f"{name}: nobody looks at it"


def test_every_alert_has_its_runbook() -> None:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    alerts = [rule["alert"] for rule in RULES if "alert" in rule]
    assert sorted(alerts) == sorted(re.findall(r"^### (Evalfleet\w+)$", page, flags=re.MULTILINE))
    for rule in RULES:
        assert "alert" not in rule or rule["annotations"]["summary"]


# -- the image --------------------------------------------------------------------------------------------------------


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
