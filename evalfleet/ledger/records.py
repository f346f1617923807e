"""What is judged and waits for the aggregator, and when does it leave?  (I4)"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping

import orjson

from evalfleet.givenup import RECORD_REFUSED, entry
from evalfleet.ledger.broker import Broker, guarded
from evalfleet.plan import Attempt


class Records(Broker):
    """A judged attempt's way to the artifact and the evaluation."""

    @guarded
    def put_record(self, submission: str, attempt: Attempt, line: bytes, outcome: str) -> bool:
        """Hand a judged attempt to the aggregator. True if the caller should send the aggregate message."""
        return bool(
            self._scripts["put_record"](
                keys=self._keys(submission, "records done plays grading outcomes counts hint meta"),
                args=[str(attempt), zlib.compress(line), outcome, self._wake, submission],
            )
        )

    @guarded
    def put_note(self, submission: str, name: str, line: bytes) -> None:
        """A line for the artifact that is nobody's attempt; never goes to the evaluation. `name` keeps it single."""
        self.redis.hset(self._key(submission, "notes"), name, zlib.compress(line))

    @guarded
    def clear_hint(self, submission: str) -> None:
        """From now on a new record asks for a new aggregate message."""
        self.redis.delete(self._key(submission, "hint"))

    @guarded
    def records(self, submission: str, most: int = 500) -> dict[Attempt, bytes]:
        """Up to about `most` records that wait for the aggregator."""
        return {Attempt.parse(name): line for name, line in self._lines(submission, "records", most)}

    @guarded
    def notes(self, submission: str, most: int = 500) -> dict[str, bytes]:
        """Up to about `most` lines that wait for the artifact."""
        return dict(self._lines(submission, "notes", most))

    @guarded
    def confirm(self, submission: str, recorded: Mapping[Attempt, str]) -> None:
        """The server holds these: delete exactly these fields."""
        if recorded:
            pairs = [part for a, outcome in recorded.items() for part in (str(a), outcome)]
            self._scripts["confirm"](
                keys=self._keys(submission, "records done plays grading meta"), args=[self._wake, submission, *pairs]
            )

    @guarded
    def set_aside(self, submission: str, refused: Mapping[Attempt, str]) -> None:
        """The server takes these for no evidence, for the reasons given: they are missing until a resume (S18)."""
        if refused:
            entries = [(str(attempt), orjson.dumps(entry(why, RECORD_REFUSED))) for attempt, why in refused.items()]
            self._scripts["set_aside"](
                keys=self._keys(submission, "records done plays grading givenup meta"),
                args=[self._wake, submission, *(part for pair in entries for part in pair)],
            )

    @guarded
    def store_away(self, submission: str, why: str) -> None:
        """The results store takes nothing of it now, and what waits, waits on. Nothing happens to one that ended."""
        self.redis.eval(
            "if redis.call('HGET', KEYS[1], 'state') ~= 'running' then return end "
            "local t = redis.call('TIME') "
            "redis.call('HSETNX', KEYS[1], 'store_since', t[1] * 1000 + math.floor(t[2] / 1000)) "
            "redis.call('HSET', KEYS[1], 'store_trouble', ARGV[1]) "
            "redis.call('PUBLISH', ARGV[2], ARGV[3])",
            1, self._key(submission, "meta"), why, self._wake, submission,
        )  # fmt: skip

    @guarded
    def store_back(self, submission: str) -> None:
        """It took something."""
        if self.redis.hdel(self._key(submission, "meta"), "store_trouble", "store_since"):
            self.redis.publish(self._wake, submission)

    @guarded
    def is_store_away(self, submission: str) -> bool:
        """Whether it runs, and the store has taken nothing of it since somebody said so."""
        state, trouble = self.redis.hmget(self._key(submission, "meta"), "state", "store_trouble")
        return state == b"running" and trouble is not None

    @guarded
    def drop_notes(self, submission: str, names: Iterable[str]) -> None:
        fields = list(names)
        if fields:
            self.redis.hdel(self._key(submission, "notes"), *fields)
