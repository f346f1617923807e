"""What does this worker not reach, and who hears of it?

A worker whose platform or results store is away lives and is worth nothing, and a restart would bring neither back. So
that is no matter of its liveness (`worker.liveness`) but of its health: one line in its log when it begins and one when
it is over, a metric, a line of the liveness file for whatever probes it, and a word in each heartbeat for people
(docs/decisions/026). The broker's own silence shows in the heartbeat's age.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from evalfleet.errors import EvalfleetError
from evalfleet.telemetry import UNREACHABLE

log = logging.getLogger(__name__)

FRESH_S = 30.0
"""So long after the last failure it is over if nobody else says that it is not: a worker may have nothing to ask."""

What = Literal["platform", "results"]


@dataclass(slots=True)
class _Away:
    why: str
    since: float
    failed_at: float
    still: Callable[[], bool]


class Health:
    """What this worker has found away, and not found back: by kind, and by name within it (a target, a submission whose
    results are not taken). Called from any thread; the log and the metric know the kinds alone."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._guard = threading.Lock()
        self._away: dict[tuple[What, str], _Away] = {}
        for what in ("platform", "results"):
            UNREACHABLE.labels(what).set(0)

    def away(self, what: What, name: str, why: str, still: Callable[[], bool]) -> None:
        """It was not reached. `still()` asks the ledger whether anybody says so."""
        now, why = self._clock(), " ".join(why.split())
        with self._guard:
            known = self._away.get((what, name))
            is_new = not self._lacks(what)
            self._away[what, name] = _Away(why, now if known is None else known.since, now, still)
            UNREACHABLE.labels(what).set(1)
        if is_new:
            log.warning("not healthy: the %s: %s", _WORDS[what], why)

    def back(self, what: What, name: str) -> None:
        """It was reached."""
        if not self._away:
            return
        with self._guard:
            known = self._away.pop((what, name), None)
            is_over = known is not None and not self._lacks(what)
            if is_over:
                UNREACHABLE.labels(what).set(0)
        if known is not None and is_over:
            log.info("healthy again: the %s, after %.0f s", _WORDS[what], self._clock() - known.since)

    def look(self) -> str:
        """What is away now, a line for each; "" when all is well. Ends what has not failed of late and nobody says."""
        for (what, name), known in list(self._away.items()):
            if self._clock() - known.failed_at < FRESH_S:
                continue
            try:
                if not known.still():
                    self.back(what, name)
            except EvalfleetError as error:
                log.debug("nobody can be asked about the %s: %s", _WORDS[what], error)
        return "\n".join(f"{what}: {why}" for what, why in self.unreachable().items())

    def unreachable(self) -> Mapping[str, str]:
        """Kind → why, for the heartbeat."""
        with self._guard:
            return {what: known.why for (what, _), known in sorted(self._away.items())}

    def _lacks(self, what: What) -> bool:
        return any(kind == what for kind, _ in self._away)


_WORDS: Mapping[What, str] = {"platform": "platform", "results": "results store"}
