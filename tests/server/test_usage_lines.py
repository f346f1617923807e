"""Every odd usage line of N20, by the agent that was reported, through the real driver and server: refused by name, or
kept exact."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import cast

import pytest

from evalfleet.server.drivers import make_driver
from evalfleet.treeconfig import CommandHarness, HarnessConfig
from tests.server.conftest import ScriptedDriver, serving

AGENT = Path(__file__).parents[1] / "cases" / "N20" / "agent.py"
KEPT = {
    "null": (0, "0", "USD"),
    "sci": (1, "0.0000001", "USD"),
    "num": (2, "0.3", "USD"),
    "cur": (1, "0.5", "USD"),
    "after": (7, "0.007", "USD"),
    "onlyusage": (9, "0.09", "USD"),
    "manyplaces": (1, "0.00000000000000000000000123456789", "USD"),
}
"""Message → total tokens, amount, currency."""
REFUSED = {
    "nan": "NaN is no JSON",
    "inf": "Infinity is no JSON",
    "neg": "needs `input_tokens` to be a whole number of tokens, not -500",
    "negamount": 'needs `amount` to be money as text ("0.0123"), not "-1000000"',
    "float": "needs `output_tokens` to be a whole number of tokens, not 3.5",
    "text": 'needs `input_tokens` to be a whole number of tokens, not "1234"',
    "comma": 'needs `amount` to be money as text ("0.0123"), not "0,01"',
    "dollar": 'needs `amount` to be money as text ("0.0123"), not "$0.01"',
    "huge": "needs `input_tokens` to be a whole number of tokens, not 99999999999999999999999",
    "twocur": "usage in EUR after USD",
    "bool": "needs `input_tokens` to be a whole number of tokens, not true",
}
"""Message → what the failure of the run says."""


@pytest.mark.timeout(60)
async def test_n20_a_usage_line_is_kept_exact_or_refused_by_name(tmp_path: Path) -> None:
    driver = make_driver(HarnessConfig("n20", CommandHarness((sys.executable, str(AGENT)))), tmp_path, tmp_path)
    kept, refused, counted = {}, {}, {}
    async with serving(tmp_path, cast(ScriptedDriver, driver)) as api:
        for message in {**KEPT, **REFUSED}:
            run = await api.play(message)
            usage = await api.get(f"/v2/runs/{run['id']}/usage")
            counted[message] = (usage["total_tokens"], usage["amount"], usage["currency"])
            if run["status"] == "succeeded":
                kept[message] = counted[message]
            else:
                refused[message] = f"{run['failure']['code']}: {run['failure']['message']}"
    assert kept == KEPT
    assert set(refused) == set(REFUSED)
    assert {name: said for name, said in refused.items() if REFUSED[name] not in said} == {}
    assert all(said.startswith("agent_protocol: ") for said in refused.values())
    assert counted["twocur"] == (1, "0.5", "USD"), "what was counted before stands"
