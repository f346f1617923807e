"""How much is under way, and what is still to be fed?  The dispatcher's view."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from evalfleet.ledger.broker import Broker, guarded, text
from evalfleet.ledger.rows import COUNT, Outcomes
from evalfleet.ledger.spending import SPENT, Spent
from evalfleet.ledger.targets import Target
from evalfleet.plan import Conversation

WANT_COUNTS_MS = 10_000
"""A submission whose dispatcher has said nothing for so long competes for nothing."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that reconciling needs, read in one round trip."""

    done: Outcomes
    records: frozenset[str]
    plays: frozenset[str]
    claims: Mapping[str, str]
    published: Mapping[str, int]
    grading: Mapping[str, str]
    given_up: Mapping[str, str]
    now_ms: int


@dataclass(frozen=True, slots=True)
class Load:
    """How much is under way."""

    claimed: int
    published: int
    waiting: int
    """Attempts that await grading or recording."""
    grace: bool = False
    """Nothing may be claimed yet: Redis came back empty."""
    most: int = 1
    """How many may be claimed at once: the concurrency, less where a budget is nearly used up."""
    closed: str = ""
    """The code of what keeps any further conversation from being begun: `max_time`, `budget`…; "" if nothing does."""
    target: Target = field(default_factory=Target)


@dataclass(frozen=True, slots=True)
class Competitor:
    """A submission that wants `want` places of the fleet. `target_most`: runs that may be open on its target, over all
    submissions; None: any number."""

    submission: str
    target: str
    weight: int
    want: int
    target_most: int | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """Counts for people; nothing is decided by them."""

    counts: Mapping[str, int] = field(default_factory=dict)
    recorded: int = 0
    running: int = 0
    waiting: int = 0
    given_up: int = 0
    ended: int = 0
    played: int = 0
    played_ms: int = 0
    """Conversations that this command has played to their end, the attempts in them, and how long they took in all."""
    spent: Spent = field(default_factory=Spent)


class Feeding(Broker):
    """What was fed, and what came of it."""

    @guarded
    def load(self, submission: str) -> Load:
        answer = self._scripts["load"](
            keys=self._keys(submission, "epoch meta claims published plays records"), args=[self.prefix]
        )
        claimed, published, waiting, grace, most, closed, target_most, *target = cast(list[Any], answer)
        target_open, wait, down, why, since, cut, cut_ms = target
        return Load(
            claimed,
            published,
            waiting,
            bool(grace),
            most,
            closed.decode(),
            Target(
                None if target_most < 0 else target_most,
                target_open,
                wait,
                down.decode(),
                why.decode(),
                since,
                cut,
                cut_ms,
            ),
        )

    @guarded
    def compete(self, submission: str, want: int) -> list[Competitor]:
        """Say how many places this submission wants; all that want some, itself included."""
        answer = self._scripts["compete"](keys=self._keys(submission, "meta"), args=[want, self.prefix, WANT_COUNTS_MS])
        rows = zip(*(iter(cast(list[Any], answer)),) * 5, strict=True)
        return [
            Competitor(name.decode(), target.decode(), int(weight), int(wants), None if most < 0 else most)
            for name, target, weight, wants, most in rows
        ]

    @guarded
    def publish(self, submission: str, conversations: Sequence[Conversation]) -> None:
        """Note that messages for these are about to be sent."""
        now = self.now_ms()
        self.redis.hset(self._key(submission, "published"), mapping={str(c): now for c in conversations})

    @guarded
    def unpublish(self, submission: str, conversations: Iterable[str]) -> None:
        fields = list(conversations)
        if fields:
            self.redis.hdel(self._key(submission, "published"), *fields)

    @guarded
    def take_returned(self, submission: str) -> list[Conversation]:
        """What came back unplayed since the last call."""
        with self.redis.pipeline(transaction=True) as pipe:
            pipe.lrange(self._key(submission, "returned"), 0, -1)
            pipe.delete(self._key(submission, "returned"))
            raw, _ = pipe.execute()
        return [Conversation.parse(item.decode()) for item in raw]

    @guarded
    def snapshot(self, submission: str) -> Snapshot:
        with self.redis.pipeline(transaction=True) as pipe:
            pipe.hgetall(self._key(submission, "done"))
            pipe.hkeys(self._key(submission, "records"))
            pipe.hkeys(self._key(submission, "plays"))
            for name in ("claims", "published", "grading", "givenup"):
                pipe.hgetall(self._key(submission, name))
            pipe.time()
            done, records, plays, claims, published, grading, given_up, clock = pipe.execute()
        return Snapshot(
            done=Outcomes.read(done),
            records=frozenset(k.decode() for k in records),
            plays=frozenset(k.decode() for k in plays),
            claims=text(claims),
            published={k: int(v) for k, v in text(published).items()},
            grading=text(grading),
            given_up=text(given_up),
            now_ms=clock[0] * 1000 + clock[1] // 1000,
        )

    @guarded
    def is_settled(self, submission: str) -> bool:
        """Whether nothing of it is played or graded any more, or waits to be written and recorded."""
        with self.redis.pipeline(transaction=True) as pipe:
            for name in ("claims", "grading", "records", "notes"):
                pipe.hlen(self._key(submission, name))
            return not any(pipe.execute())

    @guarded
    def failures(self, submission: str) -> int:
        """How many attempts this command has judged that did not pass."""
        counts = cast(list[bytes | None], self.redis.hmget(self._key(submission, "counts"), ["failed", "error"]))
        return sum(int(count) for count in counts if count is not None)

    @guarded
    def outcomes(self, submission: str) -> dict[str, str]:
        """Attempt (as text) → outcome, of what this command has judged."""
        return Outcomes.read(self._hgetall(submission, "outcomes")).by_name()

    @guarded
    def done(self, submission: str) -> dict[str, str]:
        """Attempt (as text) → outcome, of what is recorded or being sent; `recorded` where the evaluation alone knows
        how it went."""
        return Outcomes.read(self._hgetall(submission, "done")).by_name()

    @guarded
    def progress(self, submission: str) -> Progress:
        with self.redis.pipeline(transaction=False) as pipe:
            pipe.hgetall(self._key(submission, "counts"))
            pipe.hget(self._key(submission, "done"), COUNT)
            for name in ("claims", "plays", "records", "givenup"):
                pipe.hlen(self._key(submission, name))
            pipe.hmget(self._key(submission, "meta"), "ended", "played", "played_ms", *SPENT)
            counts, done, claims, plays, records, given_up, (ended, played, played_ms, *spent) = pipe.execute()
        return Progress(
            counts={k: int(v) for k, v in text(counts).items()},
            recorded=int(done or 0),
            running=claims,
            waiting=plays + records,
            given_up=given_up,
            ended=int(ended or 0),
            played=int(played or 0),
            played_ms=int(played_ms or 0),
            spent=Spent.read(spent),
        )
