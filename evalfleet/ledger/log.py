"""What have the parts said of a submission lately?  (`evalfleet logs`)

A short list for people, and no log store: a few lines, and gone a day after the last of them. Whole logs are what each
part writes to stderr.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any, cast

import orjson

from evalfleet.ledger.broker import Broker, guarded

MOST_LINES = 200
"""Of one submission; the oldest leave first."""
KEPT_S = 24 * 3600
"""After the last of them."""


class Log(Broker):
    """`s:<submission>:log`."""

    @guarded
    def put_log(self, lines: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        """Submission → its new lines, oldest first; one round trip."""
        with self.redis.pipeline(transaction=False) as pipe:
            for submission, new in lines.items():
                key = self._key(submission, "log")
                pipe.rpush(key, *(zlib.compress(orjson.dumps(line)) for line in new[-MOST_LINES:]))
                pipe.ltrim(key, -MOST_LINES, -1)
                pipe.expire(key, KEPT_S)
            pipe.execute()

    @guarded
    def log(self, submission: str) -> list[dict[str, Any]]:
        """Oldest first."""
        raw = cast(list[bytes], self.redis.lrange(self._key(submission, "log"), 0, -1))
        return [orjson.loads(zlib.decompress(line)) for line in raw]
