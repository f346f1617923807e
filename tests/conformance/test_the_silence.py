"""wire.md, "Events": `:hb` after every 15 s of silence. The last file: the wait began with the suite."""

from __future__ import annotations

import time

from tests.conformance.conftest import Silence
from tests.conformance.deployments import Target


def test_wire_events_a_heartbeat_comes_after_15_seconds_of_silence(ours: Target, silence: Silence) -> None:
    deadline = silence.began + 40
    while not (beats := [at for at, line in silence.lines if line.startswith(":hb")]):
        assert time.monotonic() < deadline, silence.lines
        time.sleep(0.1)
    said = [at for at, line in silence.lines if line and at < beats[0]]
    assert 14 < beats[0] - said[-1] < 20
