"""Does the server keep to `/openapi.json`, as schemathesis reads it? On both stores, with a fresh database.

Short, the same requests each time; `make fuzz` takes 15 minutes for each store, with a seed that the output names
(`EVALFLEET_TEST_FUZZ_SECONDS`). One check is left out: `positive_data_acceptance` wants every body that fits its schema
to be taken, but what a run may be evidence for, or whether a key is unique in a list, no schema says.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from evalfleet.server.openapi import document
from tests.conformance.conftest import attempt, calling
from tests.conformance.deployments import Target, deployed

SECONDS = int(os.environ.get("EVALFLEET_TEST_FUZZ_SECONDS", "0"))
EXAMPLES = 12

pytestmark = [pytest.mark.integration, pytest.mark.timeout(max(300, SECONDS + 120))]


def known_to(target: Target) -> dict[str, list[str]]:
    """Values that lead somewhere: runs and evaluations in every state, the harness and its versions."""
    with calling(target, target.token) as api:
        runs = [api.play("many 120"), api.play("fail"), api.create("wait"), api.play("hello")]
        going_on = runs[2]["id"]
        going, completed, cancelled = api.evaluation("ab", k=100), api.evaluation(), api.evaluation()
        for evaluation in (going, completed):
            assert api.record(evaluation, attempt("a", 0, runs[0])).status_code == 200
        assert api.end(completed).status_code == api.end(cancelled, "cancel").status_code == 200
    return {
        "going_on": [going_on],
        "run_id": [run["id"] for run in runs],
        "chat_id": [run["chat_id"] for run in runs],
        "harness_id": [target.harness_id],
        "evaluation_id": [going["id"], completed["id"], cancelled["id"]],
        "commit": list(target.commits),
        "case_key": ["a", "b"],
        "case_id": [case["id"] for case in going["cases"]],
    }


def answers(log: Path) -> Counter[tuple[str, str, int]]:
    """How often each operation was answered with which status, by the server's log."""
    paths = [(re.compile(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(path))), path) for path in document()["paths"]]
    seen: Counter[tuple[str, str, int]] = Counter()
    for line in log.read_text(encoding="utf-8").splitlines():
        if line.startswith("{"):
            entry = json.loads(line)
            path = next((path for pattern, path in paths if pattern.fullmatch(entry["path"])), "")
            seen[entry["method"], path, entry["status"]] += 1
    return seen


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_the_server_keeps_to_its_openapi_document(
    store: str, strangers: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    postgres = request.getfixturevalue("postgres_url") if store == "postgres" else None
    with deployed(store, tmp_path, postgres) as target:
        known = tmp_path / "known.json"
        known.write_text(json.dumps(known_to(target)), encoding="utf-8")
        report = tmp_path / "report.json"
        length = ["--max-time", str(SECONDS)] if SECONDS else ["--max-examples", str(EXAMPLES), "--seed", "1"]
        ended = subprocess.run(
            [
                strangers, "-m", "schemathesis.cli", "run", f"{target.urls[0]}/openapi.json", *length,
                "--header", f"Authorization: Bearer {target.token}", "--exclude-checks", "positive_data_acceptance",
                "--generation-database", "none", "--warnings", "off", "--no-color",
                "--report", "json", "--report-json-path", str(report),
            ],
            cwd=tmp_path,
            env={
                **os.environ,
                "SCHEMATHESIS_HOOKS": str(Path(__file__).with_name("schemathesis_hooks.py")),
                "FUZZ_KNOWN": str(known),
            },
            capture_output=True,
            text=True,
        )  # fmt: skip
    said = ended.stdout[-20_000:] + ended.stderr[-5_000:]
    print(said)
    assert ended.returncode == 0, said
    told: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    operations = [(m.upper(), path, one) for path, ones in document()["paths"].items() for m, one in ones.items()]
    assert told["operations"]["tested"] == told["operations"]["total"] == len(operations)
    assert told["test_cases"]["generated"] > 1000
    log = tmp_path / "server0" / "stderr"
    seen = answers(log)
    print({key: seen[key] for key in sorted(seen)})
    assert max(status for _method, _path, status in seen) < 500
    assert " ERROR " not in log.read_text(encoding="utf-8")
    for method, path, operation in operations:  # it got past the door everywhere, not only to a 404
        for status in operation["responses"]:
            if status.startswith("2"):
                assert seen[method, path, int(status)], f"{method} {path} was never answered {status}"
