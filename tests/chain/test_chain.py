"""No false verdict: what the chain finds over a wire that breaks is what the script says, or the attempt is missing.

From the case file to the judgement everything is the product's: client, follower, player, reading, judging. Left out
are the socket and the waiting. `EVALFLEET_CHAIN_SCRIPTS=10000 EVALFLEET_CHAIN_SEED=1` plays that many scripts from that
seed on (S12–S17, I2); a script that fails is named by its seed, and `EVALFLEET_CHAIN_SCRIPTS=1` plays it alone.
"""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest

from tests.chain.chain import play
from tests.chain.clock import jumping
from tests.chain.platform import Wire
from tests.chain.script import drawn

SCRIPTS = int(os.environ.get("EVALFLEET_CHAIN_SCRIPTS", "300"))
SEED = int(os.environ.get("EVALFLEET_CHAIN_SEED", "1"))
WEATHERS = (0.0, 0.1, 0.2, 0.4)
"""How probable a fault is at each request."""


@pytest.mark.seeded
def test_the_verdict_from_the_wire_is_the_script_s_or_the_attempt_is_missing() -> None:
    wrong: list[str] = []
    counted: Counter[str] = Counter()
    met: Counter[str] = Counter()
    with jumping() as (clock, runner):
        for seed in range(SEED, SEED + SCRIPTS):
            draw = random.Random(seed)
            script = drawn(draw)
            wire = Wire(script.turns(), clock, draw, draw.choice(WEATHERS))
            found = runner.run(play(script, wire, draw.random)).outcomes
            pairs = list(zip(script.outcomes(), found, strict=True))
            met.update(wire.met)
            counted.update(found)
            counted["lost to faults"] += sum(seen != said for said, seen in pairs)
            borne = {"missing"} if wire.weather else set[str]()  # without a fault nothing may be lost
            if any(seen not in {said, *borne} for said, seen in pairs):
                wrong.append(f"EVALFLEET_CHAIN_SEED={seed}: (script, wire) = {pairs}: {script}")
    print(f"\n{SCRIPTS} scripts from seed {SEED}: {dict(counted)}; {sum(met.values())} faults of {len(met)} kinds")
    assert not wrong, f"{len(wrong)} of {SCRIPTS}:\n" + "\n".join(wrong[:5])
    if SCRIPTS >= 100:
        judged = [counted[outcome] for outcome in ("passed", "failed", "error")]
        assert min(judged) > 0
        assert sum(judged) > 4 * counted["lost to faults"], "a fault costs a verdict only now and then"
