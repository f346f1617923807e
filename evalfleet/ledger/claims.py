"""Who plays which conversation, and what has been tried or given up?  (I3, I7)"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any, cast

import orjson

from evalfleet.givenup import entry
from evalfleet.ledger.broker import Broker, guarded
from evalfleet.ledger.rows import Outcomes
from evalfleet.ledger.spending import Reading
from evalfleet.plan import Attempt, Conversation


class Claimed(enum.Enum):
    """What the claim script answered; everything but CLAIMED means: drop the message (I3)."""

    CLAIMED = "claimed"
    GRACE = "grace"
    STOPPED = "stopped"
    GIVEN_UP = "given_up"
    DONE = "done"
    DUPLICATE = "duplicate"
    PAUSED = "paused"
    FULL = "full"
    BUSY = "busy"


class Claims(Broker):
    """A conversation's way through the workers."""

    @guarded
    def claim(self, submission: str, conversation: Conversation, attempts: Sequence[Attempt], inc: str) -> Claimed:
        answer = self._scripts["claim"](
            keys=self._keys(submission, "epoch meta claims givenup done records plays published returned"),
            args=[str(conversation), inc, self.prefix, *(str(a) for a in attempts)],
        )
        return Claimed(cast(bytes, answer).decode())

    @guarded
    def release(
        self,
        submission: str,
        conversation: Conversation,
        inc: str,
        *,
        played: bool,
        gave_up: Mapping[str, Any] | None = None,
        readings: Sequence[Reading] = (),
        played_ms: int = 0,
        attempts: int = 0,
    ) -> bool:
        """Give a claim back: `played` = all its scenarios are handed over or given up, else it is fed again.

        `gave_up`, an entry of `evalfleet.givenup`: nobody tries it again before a resume. False, and nothing is
        changed, when the claim is not this worker's any more. `readings`: what its chats cost; `played_ms` and
        `attempts`: how long it took, and how many it holds.
        """
        reason = orjson.dumps(gave_up) if gave_up else b""
        said = [str(conversation), inc, "done" if played else "return", reason, self._wake, submission]
        paid = [part for r in readings for part in (r.number, "" if r.amount is None else r.amount, r.currency)]
        return bool(
            self._scripts["release"](
                keys=self._keys(submission, "claims returned givenup meta spent tries"),
                args=[*said, played_ms, attempts, *paid],
            )
        )

    @guarded
    def decline(self, submission: str, conversation: Conversation) -> None:
        """A worker that leaves sends back what it took and has not claimed: it is fed again at once."""
        with self.redis.pipeline(transaction=True) as pipe:
            pipe.hdel(self._key(submission, "published"), str(conversation))
            pipe.rpush(self._key(submission, "returned"), str(conversation))
            pipe.publish(self._wake, submission)
            pipe.execute()

    @guarded
    def so_far(
        self, submission: str, conversation: Conversation, attempts: Sequence[Attempt]
    ) -> tuple[set[Attempt], int | None]:
        """Of `attempts` those that are neither done nor recorded nor waiting for a judge; and the first try that this
        command made of the conversation, None while it has made none."""
        fields = [str(a) for a in attempts]
        rows = Outcomes.fields_of(attempts)
        with self.redis.pipeline(transaction=False) as pipe:
            pipe.hget(self._key(submission, "tries"), str(conversation))
            pipe.hmget(self._key(submission, "done"), rows)
            for name in ("records", "plays"):
                pipe.hmget(self._key(submission, name), fields)
            first, letters, *waiting = pipe.execute()
        done = Outcomes.read({row.encode(): found for row, found in zip(rows, letters, strict=True) if found})
        left = {a for i, a in enumerate(attempts) if a not in done and all(row[i] is None for row in waiting)}
        return left, None if first is None else int(first)

    @guarded
    def first_new_try(self, submission: str, conversation: Conversation, try_: int) -> int:
        """The first try that this command made of this conversation; set by the first caller (S14)."""
        key = self._key(submission, "tries")
        with self.redis.pipeline(transaction=True) as pipe:
            pipe.hsetnx(key, str(conversation), try_)
            pipe.hget(key, str(conversation))
            return int(pipe.execute()[1])

    @guarded
    def give_up(self, submission: str, what: Conversation | Attempt, reason: str, code: str = "") -> None:
        """Nobody tries this again before a resume."""
        self.redis.hset(self._key(submission, "givenup"), str(what), orjson.dumps(entry(reason, code)))
        self.redis.publish(self._wake, submission)

    @guarded
    def given_up(self, submission: str) -> dict[str, dict[str, Any]]:
        """Conversation or attempt (as text) → its entry (`evalfleet.givenup`)."""
        raw = self._hgetall(submission, "givenup")
        return {k.decode(): orjson.loads(v) for k, v in raw.items()}
