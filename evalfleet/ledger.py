"""What do scheduler and workers share in Redis, and how is each change made atomic?

Everything here may be lost and is then rebuilt: what remains to be done is the evaluations' `missing_attempts` (I1),
plans are in the results store, evidence is in the artifact. The ledger makes work *fast and single*, never *true*.

Keys, all below one prefix (`ef:` unless set):

    epoch                    when claims may begin (ms); missing = Redis came back empty (design.md)
    i:<incarnation>          a living worker process, PX 12000
    subs                     submissions that somebody drives or waits for
    s:<submission>:plan      the plan, compressed
    s:<submission>:meta      state, concurrency, reason, progress_at, evaluations completed
    s:<submission>:claims    conversation → incarnation that plays it; its length is the number of open runs (I7)
    s:<submission>:published conversation → when its message was sent (ms); gone as soon as a worker looked at it
    s:<submission>:returned  conversations that went back unplayed, a list
    s:<submission>:plays     attempt → played, waits for graders
    s:<submission>:grading   attempt → incarnation that grades it
    s:<submission>:records   attempt → judged, waits for the aggregator
    s:<submission>:notes     lines for the artifact that are no attempt: what stays missing, and context (S9)
    s:<submission>:done      attempt → outcome; recorded on the evaluation, or in evidence and being sent
    s:<submission>:givenup   conversation or attempt → why nobody tries again before a resume
    s:<submission>:losses    conversation or attempt → workers it has cost
    s:<submission>:tries     conversation → the first try that this command made (S14)
    s:<submission>:outcomes, :counts   for progress only
    s:<submission>:judge     there while grading is paused for want of a judge, PX 30000 (S26)
"""

from __future__ import annotations

import enum
import itertools
import logging
import time
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import orjson
import redis
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from evalfleet.errors import CredentialError, StorageError, TargetUnreachable, UnfitHost
from evalfleet.givenup import entry
from evalfleet.plan import Attempt, Conversation, Plan

log = logging.getLogger(__name__)

HEARTBEAT_PX = 12_000
"""A worker that has not beaten for this long (ms) is dead (I6)."""
GRACE_MS = 15_000
"""After Redis came back empty nothing is claimed for this long: long enough for every living worker to beat."""
FAULT = "fault"
"""The code of a submission that a bug of ours has stopped: the command ends with 70."""
ENDED_TTL_S = 24 * 3600
"""How long an ended submission can still be watched."""
JUDGE_ROW = 10
JUDGE_PAUSE_MS = 30_000
"""After this many gradings in a row without a judge nothing is graded for so long; then the judge is asked again."""

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Claimed(enum.Enum):
    """What the claim script answered; everything but CLAIMED means: drop the message (I3)."""

    CLAIMED = "claimed"
    GRACE = "grace"
    STOPPED = "stopped"
    GIVEN_UP = "given_up"
    DONE = "done"
    DUPLICATE = "duplicate"
    FULL = "full"


class JudgeRow(enum.Enum):
    """How many gradings in a row had no judge (S26): fewer than ten, the tenth, more."""

    SHORT = 0
    TENTH = 1
    PAUSED = 2


@dataclass(frozen=True, slots=True)
class Hold:
    """A conversation that a worker holds."""

    submission: str
    conversation: Conversation


@dataclass(frozen=True, slots=True)
class Meta:
    """A submission as the ledger knows it.

    `state`: running | stopped | completed | incomplete. `reason` says why it is not running; `code` is the word for
    it that programs read ("" if none). `progress_at`: ms since the epoch, Redis' clock. `note`: what its dispatcher
    says it waits for, for people. `judge_trouble`: why grading is paused (S26), "" when it is not.
    """

    state: str
    concurrency: int
    reason: str = ""
    code: str = ""
    paused: bool = False
    draining: bool = False
    progress_at: int = 0
    completed: frozenset[int] = frozenset()
    note: str = ""
    judge_trouble: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that reconciling needs, read in one round trip."""

    done: Mapping[str, str]
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


@dataclass(frozen=True, slots=True)
class Progress:
    """Counts for people; nothing is decided by them."""

    counts: Mapping[str, int] = field(default_factory=dict)
    recorded: int = 0
    running: int = 0
    waiting: int = 0
    given_up: int = 0


def _guarded(method: Callable[Concatenate[Ledger, _P], _R]) -> Callable[Concatenate[Ledger, _P], _R]:
    def wrapper(self: Ledger, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return method(self, *args, **kwargs)
        except redis.AuthenticationError as error:
            raise CredentialError(f"the broker {self.where} refuses the login in its URL: {error}") from error
        except (redis.ConnectionError, redis.TimeoutError) as error:
            raise TargetUnreachable(f"the broker {self.where} does not answer: {error}") from error
        except (redis.OutOfMemoryError, redis.ReadOnlyError) as error:
            raise StorageError(f"the broker {self.where} refuses writes: {error}") from error
        except redis.ResponseError as error:
            if str(error).startswith(("MISCONF", "NOREPLICAS")):
                raise StorageError(f"the broker {self.where} refuses writes: {error}") from error
            raise

    wrapper.__name__ = method.__name__
    wrapper.__doc__ = method.__doc__
    return wrapper


def connect(url: str, *, within: float = 10.0) -> redis.Redis:
    """A client that answers within seconds or raises; `url` is redis://, rediss:// or unix://.

    A connection that broke is tried again for two seconds; a broker that is silent for `within` seconds is not.
    """
    options: dict[str, Any] = {"socket_timeout": within, "health_check_interval": 10, "max_connections": 512}
    if not url.startswith("unix:"):
        options |= {"socket_connect_timeout": min(within, 3.0), "socket_keepalive": True}
    backoff = ExponentialBackoff(cap=0.5, base=0.05)
    return redis.Redis.from_url(url, retry=Retry(backoff, 6, supported_errors=(redis.ConnectionError,)), **options)


class Ledger:
    """The shared books. Thread-safe; every method is one round trip unless it says otherwise.

    Raises `TargetUnreachable` when Redis does not answer within some seconds, `CredentialError` when it refuses our
    login, `StorageError` when it refuses writes.
    """

    def __init__(self, url: str, *, prefix: str = "ef:", within: float = 10.0) -> None:
        self.redis = connect(url, within=within)
        self.prefix = prefix
        pool = self.redis.connection_pool.connection_kwargs
        self.where = str(pool.get("path") or f"{pool.get('host')}:{pool.get('port')}")
        self._scripts = {name: self.redis.register_script(source) for name, source in _sources()}

    def close(self) -> None:
        self.redis.close()

    def _key(self, submission: str, name: str) -> str:
        return f"{self.prefix}s:{submission}:{name}"

    def _keys(self, submission: str, names: str) -> list[str]:
        return [f"{self.prefix}epoch" if n == "epoch" else self._key(submission, n) for n in names.split()]

    @property
    def _wake(self) -> str:
        return f"{self.prefix}wake"

    # -- the broker itself ------------------------------------------------------------------------------------------

    @_guarded
    def check_broker(self) -> None:
        """Refuse a broker that would throw our keys away. Raises UnfitHost."""
        try:
            policy = cast(Mapping[Any, Any], self.redis.config_get("maxmemory-policy"))
        except redis.ResponseError as error:  # hosted ones do not let us ask
            log.warning(
                "the broker %s does not say its maxmemory-policy (%s); it must be noeviction", self.where, error
            )
            return
        value = next(iter(policy.values()), b"noeviction")
        text = value.decode() if isinstance(value, bytes) else str(value)
        if text != "noeviction":
            raise UnfitHost(
                f"the broker {self.where} runs with maxmemory-policy {text}: it would drop queued work when full; "
                "set `maxmemory-policy noeviction`"
            )

    @_guarded
    def open_epoch(self, *, mine: bool = False) -> None:
        """Start an epoch, with its grace, where none is. `mine`: this command has just started this broker, so nobody
        can hold a claim that it must wait for; it begins now, whatever a first heartbeat said."""
        now = self.now_ms()
        self.redis.set(f"{self.prefix}epoch", now if mine else now + GRACE_MS, nx=not mine)

    @_guarded
    def grace_ms(self) -> int:
        """How long nothing is claimed yet (ms); 0 in ordinary times."""
        epoch = cast(bytes | None, self.redis.get(f"{self.prefix}epoch"))
        return 0 if epoch is None else max(0, int(epoch) - self.now_ms())

    @_guarded
    def now_ms(self) -> int:
        seconds, micros = self.redis.time()
        return seconds * 1000 + micros // 1000

    # -- submissions ------------------------------------------------------------------------------------------------

    @_guarded
    def add(self, plan: Plan, done: Mapping[Attempt, str], *, replay: bool = False) -> bool:
        """Put a plan on the books, with what is recorded (or in evidence) already; empties *given-up*.

        `replay` asks the aggregator to send evidence that the evaluation does not hold yet. False for a submission that
        is on the books and running: its workers know better what is done, so only its concurrency is changed.
        """
        sub, meta = plan.id, self._key(plan.id, "meta")

        def put(pipe: Any) -> bool:
            running = pipe.hget(meta, "state") == b"running" and bool(pipe.sismember(f"{self.prefix}subs", sub))
            pipe.multi()
            pipe.hset(meta, mapping={"state": "running", "concurrency": plan.concurrency})
            if running:
                return False
            pipe.set(self._key(sub, "plan"), zlib.compress(plan.dumps()))
            pipe.delete(
                *self._keys(sub, "givenup losses tries notes done outcomes counts published returned hint judge")
            )
            pipe.hdel(
                meta, "reason", "code", "completed", "paused", "draining", "note", "judge_failed", "judge_trouble"
            )
            pipe.hset(meta, "progress_at", now)
            if replay:
                pipe.hset(meta, "replay", uuid.uuid4().hex)
            if done:
                pipe.hset(self._key(sub, "done"), mapping={str(a): outcome for a, outcome in done.items()})
            for name in _NAMES:
                pipe.persist(self._key(sub, name))
            pipe.sadd(f"{self.prefix}subs", sub)
            return True

        now = self.now_ms()
        return bool(self.redis.transaction(cast(Any, put), meta, f"{self.prefix}subs", value_from_callable=True))

    @_guarded
    def plan(self, submission: str) -> Plan | None:
        blob = cast(bytes | None, self.redis.get(self._key(submission, "plan")))
        return None if blob is None else Plan.loads(zlib.decompress(blob))

    @_guarded
    def submissions(self) -> list[str]:
        return sorted(m.decode() for m in cast(set[bytes], self.redis.smembers(f"{self.prefix}subs")))

    @_guarded
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
            completed=frozenset(int(i) for i in raw.get("completed", "").split(",") if i),
            note=raw.get("note", ""),
            judge_trouble=raw.get("judge_trouble", ""),
        )

    @_guarded
    def end(self, submission: str, state: str, reason: str = "", code: str = "") -> bool:
        """Stop or finish a submission; the first reason stands. True if this call ended it."""
        ended = self.redis.eval(
            "if redis.call('HGET', KEYS[1], 'state') ~= 'running' then return 0 end "
            "redis.call('HDEL', KEYS[1], 'note') "  # a script whose first write frees memory works in a full broker
            "redis.call('HSET', KEYS[1], 'state', ARGV[1], 'reason', ARGV[2], 'code', ARGV[3]) "
            "redis.call('PUBLISH', ARGV[4], ARGV[5]) return 1",
            1, self._key(submission, "meta"), state, reason, code, self._wake, submission,
        )  # fmt: skip
        return bool(ended)

    @_guarded
    def drain(self, submission: str) -> None:
        """Feed nothing more and start no further run, not even a conversation's next turn; runs in flight go on."""
        self.redis.hset(self._key(submission, "meta"), mapping={"paused": 1, "draining": 1})
        self.redis.publish(self._wake, submission)

    @_guarded
    def say(self, submission: str, note: str) -> None:
        """What a submission waits for, for whoever watches it."""
        self.redis.hset(self._key(submission, "meta"), "note", note)

    @_guarded
    def mark_completed(self, submission: str, evaluations: Iterable[int]) -> None:
        """Remember which evaluations of the plan are completed, by index."""
        self.redis.hset(self._key(submission, "meta"), "completed", ",".join(str(i) for i in sorted(evaluations)))
        self.redis.publish(self._wake, submission)

    @_guarded
    def asked_replay(self, submission: str) -> str | None:
        """The request of an `add(replay=True)` or `ask_replay` that nobody has fulfilled."""
        asked = cast(bytes | None, self.redis.hget(self._key(submission, "meta"), "replay"))
        return None if asked is None else asked.decode()

    @_guarded
    def fulfil_replay(self, submission: str, asked: str) -> None:
        """It is done; a later request stays."""
        self.redis.eval(
            "if redis.call('HGET', KEYS[1], 'replay') == ARGV[1] then redis.call('HDEL', KEYS[1], 'replay') end",
            1, self._key(submission, "meta"), asked,
        )  # fmt: skip

    @_guarded
    def ask_replay(self, submission: str) -> None:
        """Let the next aggregate compare evidence and evaluation again."""
        self.redis.hset(self._key(submission, "meta"), "replay", uuid.uuid4().hex)

    @_guarded
    def forget(self, submission: str) -> None:
        """Take an ended submission off the books at once: memory is back to the base line."""
        self.redis.delete(*self._keys(submission, " ".join(_NAMES)))
        self.redis.srem(f"{self.prefix}subs", submission)

    @_guarded
    def retire(self, submission: str, ttl_s: int = ENDED_TTL_S) -> None:
        """Nobody drives it any more. How it ended can be watched for a while, and records that nobody has written to
        the artifact yet wait for a resume; the rest is in the artifact, and leaves."""
        with self.redis.pipeline() as pipe:
            pipe.delete(*self._keys(submission, " ".join(name for name in _NAMES if name not in _KEPT)))
            for name in _KEPT:
                pipe.expire(self._key(submission, name), ttl_s)
            pipe.srem(f"{self.prefix}subs", submission)
            pipe.execute()

    @_guarded
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

    # -- workers ----------------------------------------------------------------------------------------------------

    @_guarded
    def beat(self, incarnation: str, info: Mapping[str, Any], holds: Sequence[Hold]) -> list[str]:
        """Say that this worker lives; answers `held`, `draining` (start no further run), `lost` or `stopped` for each
        hold, in order; `left` is `stopped` where runs in flight are left to the platform (S38)."""
        pairs = [part for hold in holds for part in (hold.submission, str(hold.conversation))]
        answer = self._scripts["beat"](
            keys=[f"{self.prefix}epoch", f"{self.prefix}i:{incarnation}"],
            args=[HEARTBEAT_PX, orjson.dumps(info), GRACE_MS, f"{self.prefix}s:", *pairs],
        )
        return [word.decode() for word in cast(list[bytes], answer)]

    @_guarded
    def declare_dead(self, incarnation: str) -> None:
        """Its supervisor saw it die: no need to wait for the heartbeat to run out."""
        self.redis.delete(f"{self.prefix}i:{incarnation}")
        self.redis.publish(self._wake, "*")

    @_guarded
    def workers(self) -> list[dict[str, Any]]:
        """The living worker processes, each with the info of its last beat and its `incarnation`."""
        found = []
        for key in self.redis.scan_iter(match=f"{self.prefix}i:*", count=500):
            blob = cast(bytes | None, self.redis.get(key))
            if blob is not None:
                found.append({**orjson.loads(blob), "incarnation": key.decode().rsplit(":", 1)[1]})
        return found

    # -- conversations ----------------------------------------------------------------------------------------------

    @_guarded
    def claim(self, submission: str, conversation: Conversation, attempts: Sequence[Attempt], inc: str) -> Claimed:
        answer = self._scripts["claim"](
            keys=self._keys(submission, "epoch meta claims givenup done records plays published returned"),
            args=[str(conversation), inc, f"{self.prefix}i:", *(str(a) for a in attempts)],
        )
        return Claimed(cast(bytes, answer).decode())

    @_guarded
    def release(
        self,
        submission: str,
        conversation: Conversation,
        inc: str,
        *,
        played: bool,
        gave_up: Mapping[str, Any] | None = None,
    ) -> bool:
        """Give a claim back: `played` = all its scenarios are handed over or given up, else it is fed again.

        `gave_up`, an entry of `evalfleet.givenup`: nobody tries it again before a resume. False, and nothing is
        changed, when the claim is not this worker's any more.
        """
        reason = orjson.dumps(gave_up) if gave_up else b""
        return bool(
            self._scripts["release"](
                keys=self._keys(submission, "claims returned givenup meta"),
                args=[str(conversation), inc, "done" if played else "return", reason, self._wake, submission],
            )
        )

    @_guarded
    def decline(self, submission: str, conversation: Conversation) -> None:
        """A worker that has no place for a conversation sends it back unclaimed."""
        with self.redis.pipeline(transaction=True) as pipe:
            pipe.hdel(self._key(submission, "published"), str(conversation))
            pipe.rpush(self._key(submission, "returned"), str(conversation))
            pipe.publish(self._wake, submission)
            pipe.execute()

    @_guarded
    def open_attempts(self, submission: str, attempts: Sequence[Attempt]) -> set[Attempt]:
        """Those that are neither done nor recorded nor waiting for a judge."""
        if not attempts:
            return set()
        fields = [str(a) for a in attempts]
        with self.redis.pipeline(transaction=False) as pipe:
            for name in ("done", "records", "plays"):
                pipe.hmget(self._key(submission, name), fields)
            rows = pipe.execute()
        return {a for i, a in enumerate(attempts) if all(row[i] is None for row in rows)}

    @_guarded
    def first_new_try(self, submission: str, conversation: Conversation, try_: int) -> int:
        """The first try that this command made of this conversation; set by the first caller (S14)."""
        key = self._key(submission, "tries")
        with self.redis.pipeline(transaction=True) as pipe:
            pipe.hsetnx(key, str(conversation), try_)
            pipe.hget(key, str(conversation))
            return int(pipe.execute()[1])

    @_guarded
    def new_tries_from(self, submission: str, conversation: Conversation) -> int | None:
        """The same for who plays it again; None while this command has made none."""
        first = cast(bytes | None, self.redis.hget(self._key(submission, "tries"), str(conversation)))
        return None if first is None else int(first)

    @_guarded
    def give_up(self, submission: str, what: Conversation | Attempt, reason: str, code: str = "") -> None:
        """Nobody tries this again before a resume."""
        self.redis.hset(self._key(submission, "givenup"), str(what), orjson.dumps(entry(reason, code)))
        self.redis.publish(self._wake, submission)

    @_guarded
    def put_note(self, submission: str, name: str, line: bytes) -> None:
        """A line for the artifact that is nobody's attempt; never goes to the evaluation. `name` keeps it single."""
        self.redis.hset(self._key(submission, "notes"), name, zlib.compress(line))

    @_guarded
    def put_play(self, submission: str, attempt: Attempt, play: bytes) -> bool:
        """Hand a played scenario to the graders. False if it is there, recorded or done already."""
        return bool(
            self._scripts["put_play"](
                keys=self._keys(submission, "plays done records meta"), args=[str(attempt), zlib.compress(play)]
            )
        )

    @_guarded
    def claim_grade(self, submission: str, attempt: Attempt, inc: str) -> bytes | None:
        """The play to grade, if it is this worker's to grade now."""
        blob = self._scripts["claim_grade"](
            keys=self._keys(submission, "epoch meta plays grading givenup judge"),
            args=[str(attempt), inc, f"{self.prefix}i:"],
        )
        return None if blob is None else zlib.decompress(cast(bytes, blob))

    @_guarded
    def release_grade(self, submission: str, attempt: Attempt, inc: str) -> None:
        """This worker grades it no more."""
        self.redis.eval(
            "if redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] then redis.call('HDEL', KEYS[1], ARGV[1]) "
            "redis.call('PUBLISH', ARGV[3], ARGV[4]) end",
            1, self._key(submission, "grading"), str(attempt), inc, self._wake, submission,
        )  # fmt: skip

    @_guarded
    def judge_failed(self, submission: str, reason: str) -> JudgeRow:
        """Count a grading that had no judge; from the tenth in a row on, grading pauses (S26)."""
        answer = self._scripts["judge_failed"](
            keys=self._keys(submission, "meta judge"), args=[JUDGE_ROW, JUDGE_PAUSE_MS, reason]
        )
        return JudgeRow(answer)

    @_guarded
    def judge_answered(self, submission: str) -> None:
        """The row is broken."""
        self.redis.hdel(self._key(submission, "meta"), "judge_failed", "judge_trouble")

    @_guarded
    def drop_play(self, submission: str, attempt: Attempt) -> None:
        """Its grading was given up: the play leaves (it is in the artifact as a missing line)."""
        self.redis.hdel(self._key(submission, "plays"), str(attempt))
        self.redis.hdel(self._key(submission, "grading"), str(attempt))
        self.redis.publish(self._wake, submission)

    @_guarded
    def count_grade(self, submission: str, attempt: Attempt) -> int:
        """How many times this command has graded it without a judgement, this one included."""
        return self.redis.hincrby(self._key(submission, "tries"), f"g{attempt}", 1)

    @_guarded
    def put_record(self, submission: str, attempt: Attempt, line: bytes, outcome: str) -> bool:
        """Hand a judged attempt to the aggregator. True if the caller should send the aggregate message."""
        return bool(
            self._scripts["put_record"](
                keys=self._keys(submission, "records done plays grading outcomes counts hint meta"),
                args=[str(attempt), zlib.compress(line), outcome, self._wake, submission],
            )
        )

    # -- the aggregator ---------------------------------------------------------------------------------------------

    @_guarded
    def lock(self, name: str, owner: str, ms: int) -> bool:
        """Take or renew a short lock. It keeps two from doing the same work; correctness never hangs on it.

        An owner `worker:<incarnation>:…` holds it only while that worker lives: its death must not cost the lock's
        time, too.
        """
        return bool(
            self.redis.eval(
                "local o = redis.call('GET', KEYS[1]) "
                "local inc = o and string.match(o, '^worker:(%x+):') "
                "if inc and redis.call('EXISTS', ARGV[3] .. inc) == 0 then o = false end "
                "if o and o ~= ARGV[1] then return 0 end "
                "redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) return 1",
                1, f"{self.prefix}lock:{name}", owner, ms, f"{self.prefix}i:",
            )
        )  # fmt: skip

    @_guarded
    def unlock(self, name: str, owner: str) -> None:
        self.redis.eval(
            "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end return 1",
            1, f"{self.prefix}lock:{name}", owner,
        )  # fmt: skip

    @_guarded
    def lock_owner(self, name: str) -> str | None:
        """Who holds a short lock."""
        owner = cast(bytes | None, self.redis.get(f"{self.prefix}lock:{name}"))
        return None if owner is None else owner.decode()

    @_guarded
    def clear_hint(self, submission: str) -> None:
        """From now on a new record asks for a new aggregate message."""
        self.redis.delete(self._key(submission, "hint"))

    @_guarded
    def records(self, submission: str, most: int = 500) -> dict[Attempt, bytes]:
        """Up to about `most` records that wait for the aggregator."""
        return {Attempt.parse(name): line for name, line in self._lines(submission, "records", most)}

    @_guarded
    def notes(self, submission: str, most: int = 500) -> dict[str, bytes]:
        """Up to about `most` lines that wait for the artifact."""
        return dict(self._lines(submission, "notes", most))

    def _lines(self, submission: str, name: str, most: int) -> Iterator[tuple[str, bytes]]:
        stored = self.redis.hscan_iter(self._key(submission, name), count=200)
        for field_, blob in itertools.islice(stored, most):
            yield field_.decode(), zlib.decompress(blob)

    @_guarded
    def confirm(self, submission: str, recorded: Mapping[Attempt, str]) -> None:
        """The server holds these: delete exactly these fields."""
        if recorded:
            pairs = [part for a, outcome in recorded.items() for part in (str(a), outcome)]
            self._scripts["confirm"](
                keys=self._keys(submission, "records done plays grading meta"), args=[self._wake, submission, *pairs]
            )

    @_guarded
    def drop_notes(self, submission: str, names: Iterable[str]) -> None:
        fields = list(names)
        if fields:
            self.redis.hdel(self._key(submission, "notes"), *fields)

    # -- the dispatcher ---------------------------------------------------------------------------------------------

    @_guarded
    def load(self, submission: str) -> Load:
        with self.redis.pipeline(transaction=False) as pipe:
            for name in ("claims", "published", "plays", "records"):
                pipe.hlen(self._key(submission, name))
            pipe.get(f"{self.prefix}epoch")
            pipe.time()
            claimed, published, plays, records, epoch, clock = pipe.execute()
        grace = epoch is None or clock[0] * 1000 + clock[1] // 1000 < int(epoch)
        return Load(claimed=claimed, published=published, waiting=plays + records, grace=grace)

    @_guarded
    def publish(self, submission: str, conversations: Sequence[Conversation]) -> None:
        """Note that messages for these are about to be sent."""
        now = self.now_ms()
        self.redis.hset(self._key(submission, "published"), mapping={str(c): now for c in conversations})

    @_guarded
    def take_returned(self, submission: str) -> list[Conversation]:
        """What came back unplayed since the last call."""
        with self.redis.pipeline(transaction=True) as pipe:
            pipe.lrange(self._key(submission, "returned"), 0, -1)
            pipe.delete(self._key(submission, "returned"))
            raw, _ = pipe.execute()
        return [Conversation.parse(item.decode()) for item in raw]

    @_guarded
    def reap(self, submission: str, most_losses: int) -> list[str]:
        """Take back what dead workers held; answers the conversations and attempts taken."""
        reason = orjson.dumps(entry(f"{most_losses} workers died while they worked on it", "worker_lost"))
        taken = self._scripts["reap"](
            keys=self._keys(submission, "epoch claims grading losses givenup returned"),
            args=[f"{self.prefix}i:", most_losses, reason],
        )
        return [item.decode() for item in cast(list[bytes], taken)]

    @_guarded
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
            done=_text(done),
            records=frozenset(k.decode() for k in records),
            plays=frozenset(k.decode() for k in plays),
            claims=_text(claims),
            published={k: int(v) for k, v in _text(published).items()},
            grading=_text(grading),
            given_up=_text(given_up),
            now_ms=clock[0] * 1000 + clock[1] // 1000,
        )

    @_guarded
    def given_up(self, submission: str) -> dict[str, dict[str, Any]]:
        """Conversation or attempt (as text) → its entry (`evalfleet.givenup`)."""
        raw = self._hgetall(submission, "givenup")
        return {k.decode(): orjson.loads(v) for k, v in raw.items()}

    @_guarded
    def queue_length(self, queue: str) -> int:
        """Messages that wait in a Celery queue (kombu keeps each as a list below our prefix)."""
        return self.redis.llen(f"{self.prefix}{queue}")

    @_guarded
    def unpublish(self, submission: str, conversations: Iterable[str]) -> None:
        fields = list(conversations)
        if fields:
            self.redis.hdel(self._key(submission, "published"), *fields)

    @_guarded
    def progress(self, submission: str) -> Progress:
        with self.redis.pipeline(transaction=False) as pipe:
            pipe.hgetall(self._key(submission, "counts"))
            for name in ("done", "claims", "plays", "records", "givenup"):
                pipe.hlen(self._key(submission, name))
            counts, done, claims, plays, records, given_up = pipe.execute()
        return Progress(
            counts={k: int(v) for k, v in _text(counts).items()},
            recorded=done,
            running=claims,
            waiting=plays + records,
            given_up=given_up,
        )

    def wake_ups(self, timeout: float) -> Iterator[str | None]:
        """Yields the submission named by each wake-up ("*" = all), and None whenever `timeout` seconds pass without.

        Never raises for a broker that is away: it yields None in the same rhythm until the broker is back.
        """
        pubsub = self._pubsub()
        try:
            while True:
                began = time.monotonic()
                try:
                    if not pubsub.subscribed:
                        pubsub.subscribe(self._wake)
                    message = pubsub.get_message(timeout=timeout)
                    while message is not None and (further := pubsub.get_message(timeout=0)) is not None:
                        message = further if further["data"] == message["data"] else {"data": b"*"}
                except (redis.ConnectionError, redis.TimeoutError):
                    pubsub.close()
                    pubsub = self._pubsub()
                    rest = timeout - (time.monotonic() - began)
                    if rest > 0:
                        time.sleep(rest)
                    message = None
                yield message["data"].decode() if message else None
        finally:
            pubsub.close()

    def _pubsub(self) -> redis.client.PubSub:
        made: redis.client.PubSub = self.redis.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
        return made

    def _hgetall(self, submission: str, name: str) -> dict[bytes, bytes]:
        return cast(dict[bytes, bytes], self.redis.hgetall(self._key(submission, name)))


_NAMES = (
    "plan", "meta", "claims", "published", "returned", "plays", "grading", "records", "notes", "done", "givenup",
    "losses", "tries", "outcomes", "counts", "hint", "judge",
)  # fmt: skip


_KEPT = ("meta", "givenup", "counts", "records", "notes")


def _sources() -> Iterator[tuple[str, str]]:
    for file in resources.files("evalfleet").joinpath("lua").iterdir():
        if file.name.endswith(".lua"):
            yield file.name.removesuffix(".lua"), file.read_text(encoding="utf-8")


def _text(raw: Mapping[bytes, bytes]) -> dict[str, str]:
    return {k.decode(): v.decode() for k, v in raw.items()}
