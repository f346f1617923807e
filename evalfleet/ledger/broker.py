"""How is the broker reached, and what do its answers and troubles mean to us?

Keys and scripts by name, the epoch, short locks, wake-ups. Whose keys are whose is in the package's docstring.
"""

from __future__ import annotations

import itertools
import logging
import re
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from importlib import resources
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import redis
from redis.backoff import ExponentialBackoff
from redis.exceptions import NoPermissionError
from redis.retry import Retry

from evalfleet.errors import BrokerFull, CredentialError, TargetUnreachable, UnfitHost
from evalfleet.ledger.rights import missing_rights

log = logging.getLogger(__name__)

GRACE_MS = 15_000
"""After Redis came back empty nothing is claimed for this long: long enough for every living worker to beat."""

_NO_WRITES = re.compile(
    r"(?:Command # \d+ \(.*\) of pipeline caused error: )?(?P<why>(?:MISCONF|NOREPLICAS)\b.*?)(?: script: .*)?\Z",
    re.DOTALL,
)
"""A broker that cannot keep what is written (its disk is full, its replicas are gone): alone, in a pipeline, in a
script."""

_B = TypeVar("_B", bound="Broker")
_P = ParamSpec("_P")
_R = TypeVar("_R")


def guarded(method: Callable[Concatenate[_B, _P], _R]) -> Callable[Concatenate[_B, _P], _R]:
    """The broker's troubles in our words: see `Ledger`."""

    def wrapper(self: _B, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return method(self, *args, **kwargs)
        except redis.AuthenticationError as error:
            raise CredentialError(self._refused(error)) from error
        except NoPermissionError as error:
            raise CredentialError(self._not_allowed(error)) from error
        except (redis.ConnectionError, redis.TimeoutError) as error:
            raise TargetUnreachable(f"the broker {self.where} does not answer: {error}") from error
        except (redis.OutOfMemoryError, redis.ReadOnlyError) as error:
            raise BrokerFull(f"the broker {self.where} refuses writes: {error}") from error
        except redis.ResponseError as error:
            if refused := _NO_WRITES.match(str(error)):
                raise BrokerFull(f"the broker {self.where} refuses writes: {refused['why']}") from error
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
    return redis.Redis.from_url(url, retry=_Retry(backoff, 6, supported_errors=(redis.ConnectionError,)), **options)


class _Retry(Retry):
    """A refused login is a ConnectionError, too, and stays refused: it is not tried again."""

    def call_with_retry(
        self,
        do: Callable[[], _R],
        fail: Callable[..., Any],
        is_retryable: Callable[[Exception], bool] | None = None,
        with_failure_count: bool = False,
    ) -> _R:
        def worth_it(error: Exception) -> bool:
            return not isinstance(error, redis.AuthenticationError) and (is_retryable is None or is_retryable(error))

        return super().call_with_retry(do, fail, worth_it, with_failure_count)


class Broker:
    """A connection with our scripts and names; what is in it is for the classes beside this one."""

    def __init__(self, url: str, *, prefix: str = "ef:", within: float = 10.0) -> None:
        self.redis = connect(url, within=within)
        self.prefix = prefix
        pool = self.redis.connection_pool.connection_kwargs
        self.where = str(pool.get("path") or f"{pool.get('host')}:{pool.get('port')}")
        self._scripts = {name: self.redis.register_script(source) for name, source in _sources()}

    def close(self) -> None:
        self.redis.close()

    def _not_allowed(self, error: NoPermissionError) -> str:
        return f"the broker {self.where} does not let this login do that: {error}"

    def _refused(self, error: redis.AuthenticationError) -> str:
        if self.redis.connection_pool.connection_kwargs.get("password"):
            return f"the broker {self.where} refuses the login in its URL: {error}"
        return f"the broker {self.where} wants a password, and its URL has none: redis://:PASSWORD@host:6379/0"

    def _key(self, submission: str, name: str) -> str:
        return f"{self.prefix}s:{submission}:{name}"

    def _keys(self, submission: str, names: str) -> list[str]:
        return [f"{self.prefix}epoch" if n == "epoch" else self._key(submission, n) for n in names.split()]

    @property
    def _wake(self) -> str:
        return f"{self.prefix}wake"

    @property
    def _ending(self) -> str:
        return f"{self.prefix}ending"

    @guarded
    def check_broker(self) -> None:
        """Refuse a broker that would throw our keys away (UnfitHost), or does not let its login do what we do there
        (CredentialError, which names each right)."""
        lacking = missing_rights(self.redis, self.prefix)
        if lacking:
            login = self.redis.connection_pool.connection_kwargs.get("username") or "default"
            raise CredentialError(
                f"the login {login!r} of the broker {self.where} lacks rights: {' '.join(lacking)}; grant them with "
                f'ACL SETUSER {login} (docs/fleet.md, "The broker\'s rights")'
            )
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

    @guarded
    def open_epoch(self, *, mine: bool = False) -> int:
        """Start an epoch, with its grace, where none is; when claims may begin in it (ms), which tells it from others.
        `mine`: this command has just started this broker, so nobody can hold a claim that it must wait for; it begins
        now, whatever a first heartbeat said."""
        now = self.now_ms()
        self.redis.set(f"{self.prefix}epoch", now if mine else now + GRACE_MS, nx=not mine)
        return int(cast(bytes | None, self.redis.get(f"{self.prefix}epoch")) or 0)

    @guarded
    def grace_ms(self) -> int:
        """How long nothing is claimed yet (ms); 0 in ordinary times."""
        epoch = cast(bytes | None, self.redis.get(f"{self.prefix}epoch"))
        return 0 if epoch is None else max(0, int(epoch) - self.now_ms())

    @guarded
    def now_ms(self) -> int:
        seconds, micros = self.redis.time()
        return seconds * 1000 + micros // 1000

    @guarded
    def queue_length(self, queue: str) -> int:
        """Messages that wait in a Celery queue (kombu keeps each as a list below our prefix)."""
        return self.redis.llen(f"{self.prefix}{queue}")

    @guarded
    def oldest_message(self, queue: str) -> bytes | None:
        """The message of a Celery queue that a worker takes next."""
        return cast(bytes | None, self.redis.lindex(f"{self.prefix}{queue}", -1))

    @guarded
    def memory(self) -> tuple[int, int]:
        """Bytes that the broker uses, and may use (0: no limit); (0, 0) where the login may not ask."""
        try:
            info = cast(Mapping[str, Any], self.redis.info("memory"))
        except NoPermissionError:
            return 0, 0
        return int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))

    @guarded
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

    @guarded
    def unlock(self, name: str, owner: str) -> None:
        self.redis.eval(
            "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end return 1",
            1, f"{self.prefix}lock:{name}", owner,
        )  # fmt: skip

    @guarded
    def lock_owner(self, name: str) -> str | None:
        """Who holds a short lock."""
        owner = cast(bytes | None, self.redis.get(f"{self.prefix}lock:{name}"))
        return None if owner is None else owner.decode()

    def wake_ups(self, timeout: float) -> Iterator[str | None]:
        """Yields the submission named by each wake-up ("*" = all), and None whenever `timeout` seconds pass without.

        Never raises for a broker that is away, takes no writes, or no longer lets this login listen: it yields None in
        the same rhythm until it does.
        """
        return self._told(self._wake, timeout)

    def endings(self, timeout: float) -> Iterator[str | None]:
        """The same of submissions that end or start no further run, and "*" when a worker leaves. Wake-ups are several
        for each attempt: a worker that listened to all would be woken by what all others do."""
        return self._told(self._ending, timeout)

    def _told(self, channel: str, timeout: float) -> Iterator[str | None]:
        pubsub = self._pubsub()
        refused = False
        try:
            while True:
                began = time.monotonic()
                try:
                    if not pubsub.subscribed:
                        pubsub.subscribe(channel)
                    message = pubsub.get_message(timeout=timeout)
                    while message is not None and (further := pubsub.get_message(timeout=0)) is not None:
                        message = further if further["data"] == message["data"] else {"data": b"*"}
                except redis.RedisError as error:
                    if not _may_pass(error):
                        raise
                    if isinstance(error, NoPermissionError) and not refused:
                        log.error("%s: listening goes on when it may", self._not_allowed(error))  # noqa: TRY400
                    refused = isinstance(error, NoPermissionError)
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

    def _lines(self, submission: str, name: str, most: int) -> Iterator[tuple[str, bytes]]:
        stored = self.redis.hscan_iter(self._key(submission, name), count=200)
        for field_, blob in itertools.islice(stored, most):
            yield field_.decode(), zlib.decompress(blob)


def _may_pass(error: redis.RedisError) -> bool:
    """Whether listening may work again later: the broker is away, its disk is full (it refuses even our PING), or a
    right was taken away."""
    if isinstance(error, redis.ConnectionError | redis.TimeoutError | NoPermissionError):
        return True
    return _NO_WRITES.match(str(error)) is not None


def _sources() -> Iterator[tuple[str, str]]:
    """Each script by name. One that begins with `-- with _name` has the functions of `_name.lua` before it."""
    folder = resources.files("evalfleet.ledger").joinpath("lua")
    files = {file.name: file.read_text(encoding="utf-8") for file in folder.iterdir() if file.name.endswith(".lua")}
    for name, source in files.items():
        if not name.startswith("_"):
            shared = re.findall(r"^-- with (_\w+)$", source, re.MULTILINE)
            yield name.removesuffix(".lua"), "\n".join([*(files[f"{other}.lua"] for other in shared), source])


def text(raw: Mapping[bytes, bytes]) -> dict[str, str]:
    return {k.decode(): v.decode() for k, v in raw.items()}
