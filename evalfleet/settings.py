"""Which settings does the environment give, and what does each mean?

Every `EVALFLEET_*` variable that is not a flag of a command is read here and nowhere else (`docs/configuration.md`
lists them; a test holds the list against `VARIABLES`). SettingError names the variable and never shows a secret.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from evalfleet.credentials import DEFAULT, KEY, URL, key_variable, profile_of, same_address, url_variable
from evalfleet.errors import CredentialError, SettingError
from evalfleet.logs import FORMATS
from evalfleet.tomlfields import url_fault

if TYPE_CHECKING:
    from evalfleet.plan import PlannedTarget

VARIABLES: Final[Mapping[str, str]] = {
    "EVALFLEET_BROKER_URL": "Redis or Valkey: redis://, rediss:// or unix:///path",
    "EVALFLEET_DATABASE_URL": "the server's database, an SQLAlchemy URL",
    "EVALFLEET_RESULTS_URL": "where artifacts go: a folder, a file:// URL or s3://bucket/prefix",
    "EVALFLEET_TOKEN": "the bearer token of the self-hosted server",
    "EVALFLEET_BASE_URL": "the address of the self-hosted server",
    "EVALFLEET_STATE": "the state folder",
    "EVALFLEET_METRICS_PORT": "port for Prometheus metrics; 0 takes a free one",
    "EVALFLEET_LOG_LEVEL": "debug, info, warning or error",
    "EVALFLEET_LOG_FORMAT": "text or json",
    "EVALFLEET_GRADERS_AT_ONCE": "grader processes at once on one worker",
    "EVALFLEET_TRIES": "new tries of a conversation for each command",
    "EVALFLEET_LOSSES": "lost workers after which a conversation is given up",
    "EVALFLEET_STALL": "seconds without progress after which a submission ends, resumable",
    "EVALFLEET_QUEUED": "seconds after which a run that is still queued is cancelled",
    "EVALFLEET_PLAN_KEY": "the secret with which a fleet signs its plans",
    "EVALFLEET_TARGET_LIMIT": "runs open at once on one target, over all submissions of a fleet",
    "EVALFLEET_LIFELINE_FD": "descriptor whose end means that the command which started this part is gone",
    URL: "the platform's address: where its key may be sent",
    KEY: "the platform's key",
    f"{URL}_<PROFILE>": "the same for a profile",
    f"{KEY}_<PROFILE>": "the same for a profile",
}
PLAN_KEY_LEAST = 16
LOG_LEVELS = ("debug", "info", "warning", "error")
_BROKER_SCHEMES = {
    "redis": "redis",
    "valkey": "redis",
    "rediss": "rediss",
    "valkeys": "rediss",
    "unix": "unix",
    "redis+socket": "unix",
}


@dataclass(frozen=True, slots=True)
class Broker:
    """One Redis or Valkey, as each library wants it addressed. A password is in the two URLs only."""

    redis_url: str = field(repr=False)
    celery_url: str = field(repr=False)
    shown: str

    def __str__(self) -> str:
        return self.shown

    @classmethod
    def parse(cls, text: str, *, setting: str = "EVALFLEET_BROKER_URL") -> Broker:
        """`redis://`, `rediss://` (also as `valkey(s)://`), `unix:///path` or kombu's `redis+socket:///path`, each with
        an optional database number. SettingError otherwise."""
        try:
            parts = urlsplit(text.strip())
            port = parts.port
        except ValueError as error:
            raise SettingError(setting, "is no valid address") from error
        kind = _BROKER_SCHEMES.get(parts.scheme)
        if kind is None:
            raise SettingError(
                setting, f"must begin with redis://, rediss:// or unix://, not {parts.scheme or 'a plain word'!r}"
            )
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        login, _, _ = parts.netloc.rpartition("@")
        prefix = f"{login}@" if login else ""
        if kind == "unix":
            return cls._socket(unquote(parts.path), prefix, query, setting, host=parts.hostname)
        if not parts.hostname:
            raise SettingError(setting, "names no host, as in redis://127.0.0.1:6379/0")
        database = _database(parts.path.strip("/") or query.pop("db", "0"), setting)
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        if kind == "rediss":
            query.setdefault("ssl_cert_reqs", "required")
        tail = f"?{urlencode(query)}" if query else ""
        where = f"{host}:{port or 6379}/{database}"
        url = f"{kind}://{prefix}{where}{tail}"
        return cls(redis_url=url, celery_url=url, shown=f"{kind}://{where}")

    @classmethod
    def _socket(cls, path: str, prefix: str, query: dict[str, str], setting: str, *, host: str | None) -> Broker:
        if host or not path.startswith("/") or path == "/":
            raise SettingError(setting, "a socket is written with its whole path: unix:///path/to/socket")
        if len(os.fsencode(path)) > 100:
            raise SettingError(setting, f"the socket's path has over 100 bytes, more than the system takes: {path}")
        database = _database(query.pop("virtual_host", query.pop("db", "0")), setting)
        written = quote(path)
        return cls(
            redis_url=f"unix://{prefix}{written}?{urlencode({**query, 'db': database})}",
            celery_url=f"redis+socket://{prefix}{written}?{urlencode({**query, 'virtual_host': database})}",
            shown=f"unix://{path}?db={database}",
        )


def _database(text: str, setting: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text):
        raise SettingError(setting, f"the database must be a number such as 0, not {text!r}")
    return int(text)


@dataclass(frozen=True, slots=True)
class Settings:
    """The environment, read once at a process's start. Seconds for times; None where nothing is set. `addresses` and
    `keys`: of platforms, by profile."""

    broker_url: str | None = field(default=None, repr=False)
    database_url: str | None = field(default=None, repr=False)
    results_url: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    base_url: str | None = None
    state: Path | None = None
    metrics_port: int | None = None
    log_level: str = "info"
    log_format: str = "text"
    graders_at_once: int | None = None
    tries: int = 3
    losses: int = 5
    stall: int = 600
    queued: int = 600
    target_limit: int | None = None
    lifeline_fd: int | None = None
    plan_key: str | None = field(default=None, repr=False)
    addresses: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Settings:
        """Read and check every variable; an empty one counts as not set. SettingError names the first wrong one."""
        read = _Environment(env)
        broker = read.text("EVALFLEET_BROKER_URL")
        if broker is not None:
            Broker.parse(broker)
        state = read.text("EVALFLEET_STATE")
        return cls(
            broker_url=broker,
            database_url=read.text("EVALFLEET_DATABASE_URL"),
            results_url=read.text("EVALFLEET_RESULTS_URL"),
            token=read.secret("EVALFLEET_TOKEN"),
            base_url=read.url("EVALFLEET_BASE_URL"),
            state=None if state is None else Path(state).expanduser(),
            metrics_port=read.whole("EVALFLEET_METRICS_PORT", 0, 65_535),
            log_level=read.choice("EVALFLEET_LOG_LEVEL", LOG_LEVELS, "info"),
            log_format=read.choice("EVALFLEET_LOG_FORMAT", FORMATS, "text"),
            graders_at_once=read.whole("EVALFLEET_GRADERS_AT_ONCE", 1, 1_000),
            tries=read.whole("EVALFLEET_TRIES", 1, 100) or 3,
            losses=read.whole("EVALFLEET_LOSSES", 1, 1_000) or 5,
            stall=read.whole("EVALFLEET_STALL", 5, 604_800) or 600,
            queued=read.whole("EVALFLEET_QUEUED", 5, 604_800) or 600,
            target_limit=read.whole("EVALFLEET_TARGET_LIMIT", 1, 1_000_000),
            lifeline_fd=read.whole("EVALFLEET_LIFELINE_FD", 0, 1_000_000),
            plan_key=read.key("EVALFLEET_PLAN_KEY", PLAN_KEY_LEAST),
            addresses={profile: url for profile, name in read.profiles(URL) if (url := read.url(name))},
            keys={profile: key for profile, name in read.profiles(KEY) if (key := read.secret(name))},
        )

    @property
    def broker(self) -> Broker | None:
        return None if self.broker_url is None else Broker.parse(self.broker_url)

    @property
    def redis_url(self) -> str | None:
        """For redis-py."""
        return None if self.broker is None else self.broker.redis_url

    @property
    def celery_url(self) -> str | None:
        """For kombu: its name for a unix socket differs."""
        return None if self.broker is None else self.broker.celery_url

    @property
    def secrets(self) -> tuple[str, ...]:
        """What no line that is shown to others may hold."""
        urls = (urlsplit(url) for url in (self.broker_url, self.database_url) if url)
        passwords = (word for url in urls if url.password for word in (url.password, unquote(url.password)))
        return tuple(dict.fromkeys(s for s in (self.token, *self.keys.values(), self.plan_key, *passwords) if s))

    def require_broker(self) -> Broker:
        """SettingError when this part of a fleet has no broker."""
        if self.broker is None:
            raise SettingError(
                "EVALFLEET_BROKER_URL", "is not set; name the fleet's Redis or Valkey, as redis://host:6379/0"
            )
        return self.broker

    def require_results_url(self) -> str:
        if self.results_url is None:
            raise SettingError(
                "EVALFLEET_RESULTS_URL", "is not set; name the folder or s3://bucket/prefix that all parts share"
            )
        return self.results_url

    def require_base_url(self) -> str:
        if self.base_url is None:
            raise SettingError("EVALFLEET_BASE_URL", "is not set; name the server, as http://127.0.0.1:8080")
        return self.base_url

    def require_token(self) -> str:
        if self.token is None:
            raise CredentialError("EVALFLEET_TOKEN is not set: the server takes calls with its bearer token only")
        return self.token

    @property
    def accounts(self) -> tuple[str | None, ...]:
        """Whom calls can be made for from here: None is the self-hosted server, the others are profiles."""
        own = (None,) if self.base_url is not None and self.token is not None else ()
        return (*own, *sorted(self.keys))

    def address(self, profile: str) -> str | None:
        """Where a profile's key belongs; SPLOX_BASE_URL is that of all that have none of their own."""
        return self.addresses.get(profile, self.addresses.get(DEFAULT))

    def require_key(self, profile: str) -> str:
        """A platform's key; CredentialError names the variable that is not set. It is never in evalfleet.toml."""
        key = self.keys.get(profile)
        if key is None:
            whose = "" if profile == DEFAULT else f" of the profile {profile!r}"
            raise CredentialError(
                f"{key_variable(profile)} is not set: runs that go to a platform need its key{whose} there"
            )
        return key

    def contact(self, target: PlannedTarget, *, vouched: bool) -> tuple[str, str]:
        """The address of a plan's target, and the token to send there.

        `vouched`: the address is the operator's own word, by the plan's signature or by their tree. A key goes to the
        address beside it in the environment and no other; only where none is set, to one that is vouched for.
        CredentialError without the key, SettingError for another address.
        """
        if target.base_url is None:
            return self.require_base_url(), self.require_token()
        key = self.require_key(target.profile)
        self.check_address(target.profile, target.base_url, vouched=vouched)
        return target.base_url, key

    def check_address(self, profile: str, base_url: str, *, vouched: bool) -> None:
        """SettingError where a profile's key must not go there."""
        belongs = self.address(profile)
        if belongs is None and not vouched:
            raise SettingError(
                url_variable(profile),
                f"is not set, and nobody vouches for {base_url}: it says where {key_variable(profile)} may be sent",
            )
        if belongs is not None and not same_address(belongs, base_url):
            raise SettingError(
                url_variable(profile) if profile in self.addresses else URL,
                f"is {belongs}, and runs would go to {base_url}: {key_variable(profile)} is not sent there",
            )


class _Environment:
    """Typed reads of one environment."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.env = env

    def text(self, name: str) -> str | None:
        value = self.env.get(name, "").strip()
        return value or None

    def secret(self, name: str) -> str | None:
        value = self.text(name)
        if value is not None and not re.fullmatch(r"[\x21-\x7e]+", value):
            raise SettingError(
                name, "holds a blank or a character that no HTTP header may carry (its value is not shown)"
            )
        return value

    def profiles(self, root: str) -> list[tuple[str, str]]:
        """(profile, variable) of those that are set."""
        found = []
        for name in sorted(self.env):
            try:
                profile = profile_of(name, root) if self.text(name) is not None else None
            except ValueError as error:
                raise SettingError(name, str(error)) from error
            if profile is not None:
                found.append((profile, name))
        return found

    def key(self, name: str, least: int) -> str | None:
        """A secret of at least so many characters."""
        value = self.secret(name)
        if value is not None and len(value) < least:
            raise SettingError(name, f"has {len(value)} characters, fewer than the {least} that a secret needs")
        return value

    def url(self, name: str) -> str | None:
        value = self.text(name)
        if value is None:
            return None
        reason = url_fault(value)
        if reason:
            raise SettingError(name, reason)
        return value.rstrip("/")

    def whole(self, name: str, low: int, high: int) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        if not re.fullmatch(r"[0-9]{1,9}", value) or not low <= int(value) <= high:
            raise SettingError(name, f"must be a whole number from {low} to {high}, not {value[:40]!r}")
        return int(value)

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        value = (self.text(name) or default).lower()
        if value not in choices:
            raise SettingError(name, f"must be one of {', '.join(choices)}, not {value[:40]!r}")
        return value
