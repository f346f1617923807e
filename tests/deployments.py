"""What deploy/ starts: the parts of compose.yaml and of kubernetes/, read alike."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
SECRETS = {
    "EVALFLEET_TOKEN": "token-of-24-letters-or-so",
    "EVALFLEET_PLAN_KEY": "key-of-24-letters-or-more",
    "POSTGRES_PASSWORD": "password-of-postgres",
    "EVALFLEET_TREE": "/tree",
}
KEYS = {
    "token": SECRETS["EVALFLEET_TOKEN"],
    "plan-key": SECRETS["EVALFLEET_PLAN_KEY"],
    "database-url": f"postgresql://evalfleet:{SECRETS['POSTGRES_PASSWORD']}@postgres:5432/evalfleet",
}
"""What the Secret `evalfleet` holds, as docs/operations.md has it made."""


@dataclass(frozen=True)
class Part:
    """One process of ours: the words after `evalfleet`, its variables, and what is asked whether it is well: a program
    (its words) or an address (`http://127.0.0.1:PORT/PATH`); `readiness` is the program that asks whether it is of use.
    """

    name: str
    words: tuple[str, ...]
    environment: Mapping[str, str]
    health: tuple[str, ...]
    address: str = ""
    readiness: tuple[str, ...] = ()


def filled_in(text: str) -> str:
    """Compose's own replacement of ${NAME:-default} and ${NAME:?message}."""
    return re.sub(r"\$\{(\w+)(?::[-?][^}]*)?\}", lambda found: SECRETS[found[1]], text)


COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def compose() -> dict[str, Part]:
    return {
        name: Part(
            name,
            tuple(service["command"]),
            {key: filled_in(value) for key, value in service["environment"].items()},
            tuple(service.get("healthcheck", {"test": ["CMD"]})["test"][1:]),
        )
        for name, service in SERVICES.items()
        if service["image"] == "evalfleet"
    }


def kustomized() -> list[dict[str, Any]] | None:
    """What `kubectl kustomize` builds; None where there is no kubectl."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        return None
    words = [kubectl, "kustomize", str(DEPLOY / "kubernetes")]
    built = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert built.returncode == 0, built.stderr
    return list(yaml.safe_load_all(built.stdout))


def kubernetes(resources: list[dict[str, Any]]) -> dict[str, Part]:
    config = {r["metadata"]["name"]: r["data"] for r in resources if r["kind"] == "ConfigMap"}
    parts = {}
    for resource in resources:
        if resource["kind"] != "Deployment":
            continue
        name, (container,) = resource["metadata"]["name"], resource["spec"]["template"]["spec"]["containers"]
        environment: dict[str, str] = {}
        for source in container.get("envFrom", ()):
            environment |= config[source["configMapRef"]["name"]]
        for variable in container["env"]:
            value = variable.get("value")
            environment[variable["name"]] = value or KEYS[variable["valueFrom"]["secretKeyRef"]["key"]]
        probe = container["livenessProbe"]
        address, health = "", ()
        if "httpGet" in probe:
            ports = {port["name"]: port["containerPort"] for port in container["ports"]}
            address = f"http://127.0.0.1:{ports[probe['httpGet']['port']]}{probe['httpGet']['path']}"
        else:
            health = tuple(probe["exec"]["command"])
        ready = tuple(container.get("readinessProbe", {}).get("exec", {}).get("command", ()))
        parts[name] = Part(name, tuple(container["args"]), environment, health, address, ready)
    return parts
