"""Which faults happen, to whom, and when? A seed decides; the log says what really happened.

Every seed has each kind of fault at least once, in an order and to parts of its own. A fault that takes time (stopped,
away, silent) does not hold up the next one: faults overlap, as they do in life.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

WORKERS: Final = ("run-1", "run-2", "run-3", "grade-1", "grade-2")
SCHEDULERS: Final = ("scheduler-1", "scheduler-2")
SERVERS: Final = ("server-1", "server-2")
PARTS: Final = WORKERS + SCHEDULERS + SERVERS
ON_THE_BROKER: Final = WORKERS + SCHEDULERS
LONGEST_STOP: Final = 20.0


@dataclass(frozen=True, slots=True)
class Fault:
    """`at` seconds after the first agent call; `seconds`: how long it lasts, or until the part is started again."""

    at: float
    kind: str
    on: str
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.kind} {self.on}" + (f" for {self.seconds:.1f} s" if self.seconds else "")


def schedule(seed: int, span: float) -> list[Fault]:
    """The faults of a seed within `span` seconds, by time."""
    chance = random.Random(seed)

    def pick(names: Sequence[str]) -> str:
        return chance.choice(names)

    drawn: list[tuple[str, str, float]] = [
        ("kill", pick(WORKERS), chance.uniform(0.2, 2)),
        ("kill", pick(WORKERS[:3]), chance.uniform(0.2, 2)),
        ("kill", pick(SCHEDULERS), chance.uniform(0.2, 8)),
        ("kill", pick(SERVERS), chance.uniform(0.2, 2)),
        ("term", pick(WORKERS), 0.0),
        ("term", pick(SCHEDULERS), 0.0),
        ("term", pick(SERVERS), 0.0),
        ("stop", pick(WORKERS), chance.uniform(2, LONGEST_STOP)),
        ("stop", pick(PARTS), chance.uniform(11, LONGEST_STOP)),
        ("restart", "broker", chance.uniform(0.1, 4)),
        ("flush", "broker", 0.0),
        ("cut", pick(ON_THE_BROKER) + ">broker", 0.0),
        ("refuse", pick(WORKERS) + ">servers", chance.uniform(1, 10)),
        ("refuse", pick(ON_THE_BROKER) + ">broker", chance.uniform(1, 10)),
        ("silence", pick(ON_THE_BROKER) + ">broker", chance.uniform(2, 15)),
        ("silence", pick(WORKERS) + ">servers", chance.uniform(2, 15)),
        ("refuse", pick(SERVERS) + ">database", chance.uniform(0.5, 5)),
        ("kill", "agent", 0.0),
        ("kill", "agent", 0.0),
        ("fill", "broker", chance.uniform(0.5, 6)),
        ("drop", "database", 0.0),
    ]
    faults = [Fault(chance.uniform(0.5, span), *what) for what in drawn]
    return sorted(faults, key=lambda fault: fault.at)
