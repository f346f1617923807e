"""Which played scenarios await their graders, where are these, and is there a judge?  (S26)"""

from __future__ import annotations

import enum
import zlib
from collections.abc import Callable
from typing import cast

from evalfleet.errors import PlanRefused
from evalfleet.ledger.broker import Broker, guarded
from evalfleet.plan import Attempt

_PIECE = 1 << 20
"""Bytes of a bundle in one field: no single value of the broker gets large."""
_DIGEST = "digest"
JUDGE_ROW = 10
JUDGE_PAUSE_MS = 30_000
"""After this many gradings in a row without a judge nothing is graded for so long; then the judge is asked again."""


class JudgeRow(enum.Enum):
    """How many gradings in a row had no judge (S26): fewer than ten, the tenth, more."""

    SHORT = 0
    TENTH = 1
    PAUSED = 2


class Grading(Broker):
    """A played scenario's way through the graders."""

    @guarded
    def put_play(self, submission: str, attempt: Attempt, play: bytes) -> bool:
        """Hand a played scenario to the graders. False if it is there, recorded or done already."""
        return bool(
            self._scripts["put_play"](
                keys=self._keys(submission, "plays done records meta"), args=[str(attempt), zlib.compress(play)]
            )
        )

    @guarded
    def put_graders(self, submission: str, digest: str, read: Callable[[], bytes]) -> None:
        """The bundle that the plan names by `digest`, for workers that cannot read the results; `read` gives it, and is
        only called where it is not here yet."""
        key = self._key(submission, "graders")
        if self.redis.hget(key, _DIGEST) == digest.encode():
            return
        data = read()
        pieces = {str(at): zlib.compress(data[at : at + _PIECE]) for at in range(0, len(data), _PIECE)}
        pipe = self.redis.pipeline(transaction=True)
        pipe.delete(key)
        for name, piece in pieces.items():
            pipe.hset(key, name, piece)
        pipe.hset(key, _DIGEST, digest)
        pipe.execute()

    @guarded
    def graders(self, submission: str) -> bytes | None:
        """The bundle as it stands here: whoever unpacks it holds it against the plan's digest. PlanRefused when it
        cannot be read."""
        pieces = self._hgetall(submission, "graders")
        if pieces.pop(_DIGEST.encode(), None) is None:
            return None
        try:
            return b"".join(zlib.decompress(pieces[name]) for name in sorted(pieces, key=int))
        except (zlib.error, ValueError) as error:
            raise PlanRefused(f"the graders of {submission} are refused: they cannot be read: {error}") from error

    @guarded
    def claim_grade(self, submission: str, attempt: Attempt, inc: str, *, asks: bool = True) -> bytes | None:
        """The play to grade, if it is this worker's to grade now. `asks`: its graders may ask the judge, so that it
        waits while grading is paused for want of one."""
        blob = self._scripts["claim_grade"](
            keys=self._keys(submission, "epoch meta plays grading givenup judge"), args=[str(attempt), inc, int(asks)]
        )
        return None if blob is None else zlib.decompress(cast(bytes, blob))

    @guarded
    def release_grade(self, submission: str, attempt: Attempt, inc: str) -> None:
        """This worker grades it no more."""
        self.redis.eval(
            "if redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] then redis.call('HDEL', KEYS[1], ARGV[1]) "
            "redis.call('PUBLISH', ARGV[3], ARGV[4]) end",
            1, self._key(submission, "grading"), str(attempt), inc, self._wake, submission,
        )  # fmt: skip

    @guarded
    def judge_failed(self, submission: str, reason: str) -> JudgeRow:
        """Count a grading that had no judge; from the tenth in a row on, what may ask it waits (S26)."""
        answer = self._scripts["judge_failed"](
            keys=self._keys(submission, "meta judge"), args=[JUDGE_ROW, JUDGE_PAUSE_MS, reason]
        )
        return JudgeRow(answer)

    @guarded
    def judge_answered(self, submission: str) -> None:
        """The row is broken."""
        self.redis.hdel(self._key(submission, "meta"), "judge_failed", "judge_trouble")

    @guarded
    def drop_play(self, submission: str, attempt: Attempt) -> None:
        """Its grading was given up: the play leaves (it is in the artifact as a missing line)."""
        self.redis.hdel(self._key(submission, "plays"), str(attempt))
        self.redis.hdel(self._key(submission, "grading"), str(attempt))
        self.redis.publish(self._wake, submission)

    @guarded
    def count_grade(self, submission: str, attempt: Attempt) -> int:
        """How many times this command has graded it without a judgement, this one included."""
        return self.redis.hincrby(self._key(submission, "tries"), f"g{attempt}", 1)
