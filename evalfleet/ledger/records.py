"""What is judged and waits for the aggregator, and when does it leave?  (I4)"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping

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
    def drop_notes(self, submission: str, names: Iterable[str]) -> None:
        fields = list(names)
        if fields:
            self.redis.hdel(self._key(submission, "notes"), *fields)
