"""Which submissions are on the books, in what state, and when does their memory leave?"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from evalfleet.errors import PlanRefused
from evalfleet.ledger.broker import Broker, guarded
from evalfleet.ledger.rows import COUNT, pack
from evalfleet.ledger.spending import SPENT, Spent
from evalfleet.money import billionths
from evalfleet.plan import Attempt, Plan

FAULT = "fault"
"""The code of a submission that a bug of ours has stopped: the command ends with 70."""
ENDED_TTL_S = 24 * 3600
"""How long an ended submission can still be watched."""

_OF_A_COMMAND = (
    "reason", "code", "completed", "paused", "draining", "note", "judge_failed", "judge_trouble", "ended",
    "played", "played_ms", "recorded", "store_trouble", "store_since",
)  # fmt: skip
"""Fields of `meta` that a resume begins without."""

_NAMES = (
    "plan", "meta", "claims", "published", "returned", "plays", "grading", "records", "notes", "done", "givenup",
    "losses", "tries", "spent", "outcomes", "counts", "hint", "judge", "log", "graders",
)  # fmt: skip


_KEPT = ("meta", "givenup", "counts", "records", "notes", "log")


@dataclass(frozen=True, slots=True)
class Meta:
    """A submission as the ledger knows it.

    `state`: running | stopped | completed | incomplete. `reason` says why it is not running; `code` is the word for
    it that programs read ("" if none). `progress_at`: ms since the epoch, Redis' clock. `note`: what its dispatcher
    says it waits for, for people. `judge_trouble`: why the last `judge_row` gradings that asked the judge had none
    (S26), "" once it has answered. `store_trouble`: why
    the results store takes nothing of it, since `store_since` (ms).
    """

    state: str
    concurrency: int
    reason: str = ""
    code: str = ""
    paused: bool = False
    draining: bool = False
    progress_at: int = 0
    budget: int | None = None
    """In billionths."""
    deadline: int | None = None
    """When its time is up (ms, Redis' clock)."""
    completed: frozenset[int] = frozenset()
    note: str = ""
    judge_trouble: str = ""
    judge_row: int = 0
    store_trouble: str = ""
    store_since: int = 0
    planned_at: str = ""
    """RFC 3339 UTC."""
    total: int = 0
    """Attempts of the plan."""
    recorded: int | None = None
    """How many of them were, when it was retired; None before that."""


class Submissions(Broker):
    """From `add` to `forget`."""

    @guarded
    def add(
        self,
        plan: Plan,
        done: Mapping[Attempt, str],
        *,
        spent: Spent | None = None,
        deadline: int | None = None,
        paused: bool = False,
        replay: bool = False,
    ) -> bool:
        """Put a plan on the books, with what is recorded (or in evidence) already; empties *given-up*.

        `spent`: what the evidence says that its chats cost. `deadline` (ms, Redis' clock): when its time is up, where
        it began before; else the plan's own limit counts from now. `paused`: nothing of it is fed. `replay` asks the
        aggregator to send evidence that the evaluation does not hold yet. False for a submission that is on the books
        and running: its workers know better what is done, so only its concurrency and limits are changed.
        """
        sub, meta = plan.id, self._key(plan.id, "meta")

        def put(pipe: Any) -> bool:
            running = pipe.hget(meta, "state") == b"running" and bool(pipe.sismember(f"{self.prefix}subs", sub))
            known = int(pipe.hget(meta, "spent") or 0)
            pipe.multi()
            pipe.hset(meta, mapping=standing)
            pipe.hdel(meta, "budget", "deadline")
            if limits:
                pipe.hset(meta, mapping=limits)
            if spent is not None and spent.amount > known:  # else the books know of more than the evidence
                pipe.hset(meta, mapping=dict(zip(SPENT, spent.fields(), strict=True)))
            if running:
                return False
            pipe.set(self._key(sub, "plan"), zlib.compress(plan.dumps()))
            pipe.delete(
                *self._keys(sub, "givenup losses tries notes done outcomes counts published returned hint judge spent")
            )
            pipe.hdel(meta, *_OF_A_COMMAND)
            if spent is not None and spent.readings:
                readings = {f"{c}/{n}": "" if amount is None else amount for (c, n), amount in spent.readings.items()}
                pipe.hset(self._key(sub, "spent"), mapping=readings)
            pipe.hset(meta, mapping={"progress_at": now, "edition": uuid.uuid4().hex})
            if paused:
                pipe.hset(meta, "paused", 1)
            if replay:
                pipe.hset(meta, "replay", uuid.uuid4().hex)
            if done:
                pipe.hset(self._key(sub, "done"), mapping=pack(done))
            for name in _NAMES:
                pipe.persist(self._key(sub, name))
            pipe.sadd(f"{self.prefix}subs", sub)
            return True

        now = self.now_ms()
        standing: dict[str, str | int] = {
            "state": "running",
            "concurrency": plan.concurrency,
            "weight": plan.limits.weight,
            "target": plan.target.name,
            "planned_at": plan.created_at,
            "total": sum(1 for _ in plan.all_attempts()),
        }
        limits: dict[str, int] = {}
        if plan.limits.budget is not None:
            limits["budget"] = billionths(plan.limits.budget) or 0
        if plan.limits.max_time is not None:
            limits["deadline"] = now + 1000 * plan.limits.max_time if deadline is None else deadline
        return bool(self.redis.transaction(cast(Any, put), meta, f"{self.prefix}subs", value_from_callable=True))

    @guarded
    def plan(self, submission: str) -> Plan | None:
        """What stands there, which anybody who reaches the broker may have put there: `Seal.check` says whether it is
        ours. PlanRefused when it cannot be read."""
        blob = cast(bytes | None, self.redis.get(self._key(submission, "plan")))
        try:
            return None if blob is None else Plan.loads(zlib.decompress(blob))
        except (zlib.error, ValueError) as error:
            raise PlanRefused(f"the plan of {submission} is refused: it cannot be read: {error}") from error

    @guarded
    def edition(self, submission: str) -> str | None:
        """Another one whenever the plan was put on the books anew: a resume may bring other limits."""
        edition = cast(bytes | None, self.redis.hget(self._key(submission, "meta"), "edition"))
        return None if edition is None else edition.decode()

    @guarded
    def submissions(self) -> list[str]:
        return sorted(m.decode() for m in cast(set[bytes], self.redis.smembers(f"{self.prefix}subs")))

    @guarded
    def known(self) -> list[str]:
        """Submissions that run, and those that ended less than a day ago."""
        return sorted(
            key.decode().removeprefix(f"{self.prefix}s:").removesuffix(":meta")
            for key in self.redis.scan_iter(match=f"{self.prefix}s:*:meta", count=500)
        )

    @guarded
    def meta(self, submission: str) -> Meta | None:
        raw = {k.decode(): v.decode() for k, v in self._hgetall(submission, "meta").items()}
        if "state" not in raw:
            return None
        return Meta(
            state=raw["state"],
            concurrency=int(raw.get("concurrency", "1")),
            reason=raw.get("reason", ""),
            code=raw.get("code", ""),
            paused=raw.get("paused") == "1",
            draining=raw.get("draining") == "1",
            progress_at=int(raw.get("progress_at", "0")),
            budget=int(raw["budget"]) if "budget" in raw else None,
            deadline=int(raw["deadline"]) if "deadline" in raw else None,
            completed=frozenset(int(i) for i in raw.get("completed", "").split(",") if i),
            note=raw.get("note", ""),
            judge_trouble=raw.get("judge_trouble", ""),
            judge_row=int(raw.get("judge_failed", "0")),
            store_trouble=raw.get("store_trouble", ""),
            store_since=int(raw.get("store_since", "0")),
            planned_at=raw.get("planned_at", ""),
            total=int(raw.get("total", "0")),
            recorded=int(raw["recorded"]) if "recorded" in raw else None,
        )

    @guarded
    def end(self, submission: str, state: str, reason: str = "", code: str = "") -> bool:
        """Stop or finish a submission; the first reason stands. True if this call ended it."""
        ended = self.redis.eval(
            "if redis.call('HGET', KEYS[1], 'state') ~= 'running' then return 0 end "
            "redis.call('HDEL', KEYS[1], 'note') "  # a script whose first write frees memory works in a full broker
            "redis.call('HSET', KEYS[1], 'state', ARGV[1], 'reason', ARGV[2], 'code', ARGV[3]) "
            "redis.call('PUBLISH', ARGV[4], ARGV[6]) redis.call('PUBLISH', ARGV[5], ARGV[6]) return 1",
            1, self._key(submission, "meta"), state, reason, code, self._wake, self._ending, submission,
        )  # fmt: skip
        return bool(ended)

    @guarded
    def drain(self, submission: str) -> None:
        """Feed nothing more and start no further run, not even a conversation's next turn; runs in flight go on."""
        self.redis.hset(self._key(submission, "meta"), mapping={"paused": 1, "draining": 1})
        for channel in (self._wake, self._ending):
            self.redis.publish(channel, submission)

    @guarded
    def pause(self, submission: str) -> bool:
        """Begin no further conversation until `unpause`; what is under way goes on. False for one that does not run."""
        return self._set_paused(submission, "1")

    @guarded
    def unpause(self, submission: str) -> bool:
        """Go on. False for one that does not run, or is to end."""
        return self._set_paused(submission, "")

    def _set_paused(self, submission: str, value: str) -> bool:
        changed = self.redis.eval(
            "local m = redis.call('HMGET', KEYS[1], 'state', 'draining') "
            "if m[1] ~= 'running' or m[2] == '1' then return 0 end "
            "redis.call('HDEL', KEYS[1], 'paused') "
            "if ARGV[1] ~= '' then redis.call('HSET', KEYS[1], 'paused', ARGV[1]) end "
            "redis.call('PUBLISH', ARGV[2], ARGV[3]) return 1",
            1, self._key(submission, "meta"), value, self._wake, submission,
        )  # fmt: skip
        return bool(changed)

    @guarded
    def say(self, submission: str, note: str) -> None:
        """What a submission waits for, for whoever watches it."""
        self.redis.hset(self._key(submission, "meta"), "note", note)

    @guarded
    def mark_completed(self, submission: str, evaluations: Iterable[int]) -> None:
        """Remember which evaluations of the plan are completed, by index."""
        self.redis.hset(self._key(submission, "meta"), "completed", ",".join(str(i) for i in sorted(evaluations)))
        self.redis.publish(self._wake, submission)

    @guarded
    def asked_replay(self, submission: str) -> str | None:
        """The request of an `add(replay=True)` or `ask_replay` that nobody has fulfilled."""
        asked = cast(bytes | None, self.redis.hget(self._key(submission, "meta"), "replay"))
        return None if asked is None else asked.decode()

    @guarded
    def fulfil_replay(self, submission: str, asked: str) -> None:
        """It is done; a later request stays."""
        self.redis.eval(
            "if redis.call('HGET', KEYS[1], 'replay') == ARGV[1] then redis.call('HDEL', KEYS[1], 'replay') end",
            1, self._key(submission, "meta"), asked,
        )  # fmt: skip

    @guarded
    def ask_replay(self, submission: str) -> None:
        """Let the next aggregate compare evidence and evaluation again."""
        self.redis.hset(self._key(submission, "meta"), "replay", uuid.uuid4().hex)

    @guarded
    def forget(self, submission: str) -> None:
        """Take an ended submission off the books at once: memory is back to the base line."""
        self.redis.delete(*self._keys(submission, " ".join(_NAMES)))
        self.redis.srem(f"{self.prefix}subs", submission)

    @guarded
    def retire(self, submission: str, ttl_s: int = ENDED_TTL_S) -> None:
        """Nobody drives it any more. How it ended can be watched for a while, and records that nobody has written to
        the artifact yet wait for a resume; the rest is in the artifact, and leaves. Nothing happens to one that runs:
        whoever says so has slept through its resume."""
        meta = self._key(submission, "meta")

        def put(pipe: Any) -> None:
            running = pipe.hget(meta, "state") == b"running"
            recorded = int(pipe.hget(self._key(submission, "done"), COUNT) or 0)
            pipe.multi()
            if running:
                return
            pipe.hset(meta, "recorded", recorded)
            pipe.delete(*self._keys(submission, " ".join(name for name in _NAMES if name not in _KEPT)))
            for name in _KEPT:
                pipe.expire(self._key(submission, name), ttl_s)
            pipe.srem(f"{self.prefix}subs", submission)

        self.redis.transaction(cast(Any, put), meta)

    @guarded
    def sweep(self, ttl_s: int = ENDED_TTL_S) -> int:
        """Give a TTL to what late workers wrote about submissions that nobody drives any more; how many keys."""
        swept = 0
        for key in self.redis.scan_iter(match=f"{self.prefix}s:*", count=500):
            submission = key.decode().removeprefix(f"{self.prefix}s:").rpartition(":")[0]
            # One script: between two calls the submission might come back.
            swept += self.redis.eval(
                "if redis.call('SISMEMBER', KEYS[1], ARGV[1]) == 0 and redis.call('TTL', KEYS[2]) == -1 then "
                "return redis.call('EXPIRE', KEYS[2], ARGV[2]) end return 0",
                2, f"{self.prefix}subs", key, submission, ttl_s,
            )  # fmt: skip
        return swept
