"""The official client, as it is on the package index, against our server: `splox.evals.run_cases` with a scorer.

It needs an environment of its own that holds `splox`; `EVALFLEET_TEST_SPLOX_PYTHON` names its interpreter.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server.test_process import DEADLINE, TOKEN, started

PYTHON = os.environ.get("EVALFLEET_TEST_SPLOX_PYTHON", "")

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not PYTHON, reason="EVALFLEET_TEST_SPLOX_PYTHON names no interpreter that has splox"),
]

AGENT = """\
import json, sys
turn = json.load(sys.stdin)
open("calls", "a").write(turn["message"] + "\\n")
print(json.dumps({"type": "tool_call", "id": "1", "name": "compute_exec", "args": {}}))
print(json.dumps({"type": "tool_result", "id": "1", "output": "Linux x86_64"}))
print(json.dumps({"type": "usage", "input_tokens": 10, "output_tokens": 3, "amount": "0.001"}))
print(json.dumps({"type": "answer", "text": "Linux x86_64"}))
"""

PROGRAM = """\
import json, sys
from splox import SploxClient, evals

client = SploxClient(api_key=sys.argv[2], base_url=sys.argv[1])
harness = client.harnesses.list().data[0]

def grade(result, case):
    passed = result.status == "succeeded" and case.expected["required_tool"] in result.tools_used
    return evals.Score(verdict="passed" if passed else "failed", score="1.00" if passed else "0.00")

grids = [
    evals.run_cases(
        client,
        ["Run uname -sm", "Print only the current working directory"],
        expected=[{"required_tool": "compute_exec"}, {"required_tool": "compute_exec"}],
        k=3,
        concurrency=3,
        budget_cap=0.25,
        suite_id="compute-contract-v1",
        harness_id=harness.id,
        scorer=evals.Scorer(id="compute-contract", version="v1", score_fn=grade),
    )
    for _ in range(2)
]
last = client.runs.list(limit=1).data[0]
events = list(client.runs.stream_events(last.id))
print(json.dumps({
    "statuses": [[[attempt.status for attempt in row] for row in grid] for grid in grids],
    "metrics": [vars(grid.evaluation.metrics) for grid in grids],
    "evaluations": [[grid.evaluation.id, grid.evaluation.status] for grid in grids],
    "last_event": [events[-1].type, events[-1].data],
}))
"""


def test_run_cases_completes_an_evaluation_and_a_second_call_runs_nothing(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    config = f'[harness]\nname = "concierge"\n[harness.command]\nargv = ["{sys.executable}", "agent.py"]\n'
    (tree / "evalfleet.toml").write_text(config, encoding="utf-8")
    (tree / "agent.py").write_text(AGENT, encoding="utf-8")
    with started(tree) as (_process, client):
        ended = subprocess.run(
            [PYTHON, "-c", PROGRAM, str(client.base_url).rstrip("/"), TOKEN],
            capture_output=True,
            text=True,
            timeout=DEADLINE,
        )
    assert ended.returncode == 0, ended.stderr
    seen = json.loads(ended.stdout)
    assert seen["statuses"] == [[["succeeded"] * 3] * 2, [["recorded"] * 3] * 2]
    assert seen["evaluations"][0] == seen["evaluations"][1]
    assert seen["evaluations"][0][1] == "completed"
    for metrics in seen["metrics"]:
        assert (metrics["pass_at_1"], metrics["pass_hat_k"], metrics["judge_score"]) == (1, 1, 1)
        assert (metrics["k"], metrics["tokens"], metrics["amount"]) == (3, 78, "0.006")
    assert seen["last_event"] == ["run.status_changed", {"to": "succeeded"}]
    assert len((tree / "calls").read_text(encoding="utf-8").splitlines()) == 6
