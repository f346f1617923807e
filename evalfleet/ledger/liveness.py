"""Which workers live, what do they hold, and what comes back from the dead?  (I6)"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import orjson

from evalfleet.contract.tasks import RUN_QUEUE, kind_of
from evalfleet.givenup import entry
from evalfleet.ledger.broker import GRACE_MS, Broker, guarded
from evalfleet.plan import Attempt, Conversation

HEARTBEAT_PX = 12_000
"""A worker that has not beaten for this long (ms) is dead (I6)."""


@dataclass(frozen=True, slots=True)
class Hold:
    """A conversation that a worker holds."""

    submission: str
    conversation: Conversation


def queues_of(worker: Mapping[str, Any]) -> set[str]:
    """The queues that a living worker takes from."""
    return set(str(worker.get("queues", "")).split(","))


def slots_of(workers: Iterable[Mapping[str, Any]], queue: str | None = None) -> int:
    """How many conversations these can play at once; with `queue`, those that take from it."""
    return sum(
        int(worker.get("slots", 0))
        for worker in workers
        if any(name == queue if queue else kind_of(name) == RUN_QUEUE for name in queues_of(worker))
    )


class Liveness(Broker):
    """Heartbeats, and the reaper."""

    @guarded
    def beat(self, incarnation: str, info: Mapping[str, Any], holds: Sequence[Hold]) -> list[str]:
        """Say that this worker lives; answers `held`, `draining` (start no further run), `lost` or `stopped` for each
        hold, in order; `left` is `stopped` where runs in flight are left to the platform (S38)."""
        pairs = [part for hold in holds for part in (hold.submission, str(hold.conversation))]
        answer = self._scripts["beat"](
            keys=[f"{self.prefix}epoch", f"{self.prefix}i:{incarnation}"],
            args=[HEARTBEAT_PX, orjson.dumps(info), GRACE_MS, f"{self.prefix}s:", *pairs],
        )
        return [word.decode() for word in cast(list[bytes], answer)]

    @guarded
    def declare_dead(self, incarnation: str) -> None:
        """Its supervisor saw it die: no need to wait for the heartbeat to run out."""
        self.redis.delete(f"{self.prefix}i:{incarnation}")
        self.redis.publish(self._wake, "*")
        self.redis.publish(self._ending, "*")

    @guarded
    def workers(self) -> list[dict[str, Any]]:
        """The living worker processes, each with the info of its last beat and its `incarnation`."""
        found = []
        for key in self.redis.scan_iter(match=f"{self.prefix}i:*", count=500):
            blob = cast(bytes | None, self.redis.get(key))
            if blob is not None:
                found.append({**orjson.loads(blob), "incarnation": key.decode().rsplit(":", 1)[1]})
        return found

    @guarded
    def slots(self) -> int:
        """How many conversations all living workers together can play at once."""
        return slots_of(self.workers())

    @guarded
    def held_by(self, incarnation: str) -> set[tuple[str, Conversation | Attempt]]:
        """(submission, what): the conversations and the gradings that are this worker's on the books. A round trip for
        all submissions together."""
        subs = sorted(m.decode() for m in cast(set[bytes], self.redis.smembers(f"{self.prefix}subs")))
        with self.redis.pipeline(transaction=False) as pipe:
            for sub in subs:
                pipe.hgetall(self._key(sub, "claims"))
                pipe.hgetall(self._key(sub, "grading"))
            answers = pipe.execute()
        kinds = (Conversation, Attempt)
        return {
            (subs[number // 2], kinds[number % 2].parse(name.decode()))
            for number, owners in enumerate(answers)
            for name, owner in owners.items()
            if owner.decode() == incarnation
        }

    @guarded
    def reap(self, submission: str, most_losses: int) -> list[str]:
        """Take back what dead workers held; answers the conversations and attempts taken."""
        reason = orjson.dumps(entry(f"{most_losses} workers died while they worked on it", "worker_lost"))
        taken = self._scripts["reap"](
            keys=self._keys(submission, "epoch claims grading losses givenup returned"),
            args=[f"{self.prefix}i:", most_losses, reason],
        )
        return [item.decode() for item in cast(list[bytes], taken)]
