"""The environment's settings: normal forms of addresses, ranges, and that no secret is ever shown."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import pytest
import redis
from kombu.connection import Connection

from evalfleet.errors import CredentialError, SettingError
from evalfleet.settings import VARIABLES, Broker, Settings

BROKERS = [
    ("redis://h", "redis://h:6379/0", "redis://h:6379/0"),
    ("redis://h:1/3", "redis://h:1/3", "redis://h:1/3"),
    ("redis://h?db=4", "redis://h:6379/4", "redis://h:6379/4"),
    ("valkey://[::1]:7/1", "redis://[::1]:7/1", "redis://[::1]:7/1"),
    ("redis://u:p%40@h:1", "redis://u:p%40@h:1/0", "redis://u:p%40@h:1/0"),
    ("rediss://h", "rediss://h:6379/0?ssl_cert_reqs=required", "rediss://h:6379/0?ssl_cert_reqs=required"),
    ("unix:///run/v.sock", "unix:///run/v.sock?db=0", "redis+socket:///run/v.sock?virtual_host=0"),
    (
        "redis+socket:///run/v.sock?virtual_host=2",
        "unix:///run/v.sock?db=2",
        "redis+socket:///run/v.sock?virtual_host=2",
    ),
    ("unix://:pw@/a%20b/v?db=1", "unix://:pw@/a%20b/v?db=1", "redis+socket://:pw@/a%20b/v?virtual_host=1"),
]


@pytest.mark.parametrize(("text", "redis_url", "celery_url"), BROKERS, ids=[text for text, _, _ in BROKERS])
def test_a_broker_is_written_as_each_library_wants_it(text: str, redis_url: str, celery_url: str) -> None:
    broker = Broker.parse(text)
    assert (broker.redis_url, broker.celery_url) == (redis_url, celery_url)
    assert Broker.parse(broker.redis_url) == broker
    assert Broker.parse(broker.celery_url) == broker


@pytest.mark.parametrize("text", [text for text, _, _ in BROKERS])
def test_both_libraries_read_the_same_place_from_it(text: str) -> None:
    """What redis-py and kombu would connect to is compared in their own words; nothing is connected to."""
    broker = Broker.parse(text)
    kwargs = redis.Redis.from_url(broker.redis_url).connection_pool.connection_kwargs
    connection: Any = cast("Any", Connection)(broker.celery_url)
    channel = connection.transport.Channel
    seen = channel._connparams(_Channel(connection, channel))
    for name in ("host", "port", "path", "password", "username"):
        assert (seen.get(name) or None) == (kwargs.get(name) or None), name
    assert int(seen["db"]) == int(kwargs["db"])


class _Channel:
    """As much of kombu's channel as its reading of the address needs: opening a real one would connect."""

    def __init__(self, connection: Any, kind: type) -> None:
        self.connection = type("C", (), {"client": connection, "default_port": 6379})()
        self.kind = kind

    def __getattr__(self, name: str) -> object:
        value = getattr(self.kind, name)
        return value.__get__(self) if callable(value) and not isinstance(value, type) else value


WRONG_BROKERS = [
    ("localhost:6379", "must begin with redis://"),
    ("amqp://h", "must begin with redis://"),
    ("redis://", "names no host"),
    ("redis://h/abc", "the database must be a number"),
    ("redis://h:x/0", "no valid address"),
    ("unix://v.sock", "with its whole path"),
    ("unix:///" + "x" * 100, "over 100 bytes"),
]


@pytest.mark.parametrize(("text", "wanted"), WRONG_BROKERS, ids=[text[:20] for text, _ in WRONG_BROKERS])
def test_a_broker_address_that_cannot_be_is_refused_by_name(text: str, wanted: str) -> None:
    with pytest.raises(SettingError, match=f"^EVALFLEET_BROKER_URL: .*{wanted}"):
        Settings.from_env({"EVALFLEET_BROKER_URL": text})


def test_every_setting_is_read() -> None:
    settings = Settings.from_env(
        {
            "EVALFLEET_BROKER_URL": "redis://h",
            "EVALFLEET_DATABASE_URL": "sqlite:///x",
            "EVALFLEET_RESULTS_URL": "/srv/results",
            "EVALFLEET_TOKEN": "t0k",
            "EVALFLEET_BASE_URL": "http://127.0.0.1:8080/",
            "EVALFLEET_STATE": "/srv/state",
            "EVALFLEET_METRICS_PORT": "0",
            "EVALFLEET_LOG_LEVEL": "DEBUG",
            "EVALFLEET_GRADERS_AT_ONCE": "3",
            "EVALFLEET_TRIES": "2",
            "EVALFLEET_LOSSES": "7",
            "EVALFLEET_STALL": "60",
            "EVALFLEET_QUEUED": "90",
            "EVALFLEET_LIFELINE_FD": "5",
            "EVALFLEET_PLAN_KEY": "sixteen-letters-",
            "SPLOX_BASE_URL": "https://p.example/api",
            "SPLOX_API_KEY": "key",
            "SPLOX_BASE_URL_STAGING": "https://s.example/api/",
            "SPLOX_API_KEY_STAGING": "other",
        }
    )
    assert settings == Settings(
        broker_url="redis://h",
        database_url="sqlite:///x",
        results_url="/srv/results",
        token="t0k",
        base_url="http://127.0.0.1:8080",
        state=Path("/srv/state"),
        metrics_port=0,
        log_level="debug",
        graders_at_once=3,
        tries=2,
        losses=7,
        stall=60,
        queued=90,
        lifeline_fd=5,
        plan_key="sixteen-letters-",
        addresses={"default": "https://p.example/api", "staging": "https://s.example/api"},
        keys={"default": "key", "staging": "other"},
    )
    assert settings.redis_url == settings.celery_url == "redis://h:6379/0"


def test_an_empty_environment_gives_the_defaults() -> None:
    assert Settings.from_env({}) == Settings() == Settings.from_env(dict.fromkeys(VARIABLES, " "))


WRONG = [
    ("EVALFLEET_METRICS_PORT", "70000", "from 0 to 65535, not '70000'"),
    ("EVALFLEET_METRICS_PORT", "http", "not 'http'"),
    ("EVALFLEET_LOSSES", "0", "from 1 to 1000, not '0'"),
    ("EVALFLEET_TRIES", "-1", "not '-1'"),
    ("EVALFLEET_STALL", "1e3", "not '1e3'"),
    ("EVALFLEET_LOG_LEVEL", "loud", "must be one of debug, info"),
    ("EVALFLEET_BASE_URL", "127.0.0.1:80", "http:// or https://"),
    ("SPLOX_BASE_URL", "https://h/api?x=1", "without \\? or #"),
]


@pytest.mark.parametrize(("name", "value", "wanted"), WRONG, ids=[f"{name}={value}" for name, value, _ in WRONG])
def test_a_wrong_value_is_refused_with_its_variable(name: str, value: str, wanted: str) -> None:
    with pytest.raises(SettingError, match=f"^{name}: .*{wanted}") as caught:
        Settings.from_env({name: value})
    assert caught.value.setting == name


def test_no_secret_is_in_a_repr_or_a_message() -> None:
    secret = "s3cr3t-value"
    settings = Settings(
        token=secret,
        keys={"default": secret, "staging": secret},
        plan_key=secret,
        broker_url=f"redis://:{secret}@h",
        database_url=f"postgresql://u:{secret}@h/d",
        results_url=f"s3://{secret}@b",
    )
    assert secret not in repr(settings)
    assert secret not in f"{settings.broker!r} {settings.broker}"
    for env in (
        {"EVALFLEET_BROKER_URL": f"redis://:{secret}@h:port"},
        {"EVALFLEET_BROKER_URL": f"redis://:{secret}@h/db"},
        {"EVALFLEET_BROKER_URL": f"unix://:{secret}@relative"},
        {"EVALFLEET_TOKEN": f"two words {secret}"},
        {"SPLOX_BASE_URL": f"https://u:{secret}@h"},
        {"SPLOX_API_KEY_STAGING": f"two words {secret}"},
        {"EVALFLEET_PLAN_KEY": secret},  # too short
    ):
        with pytest.raises(SettingError) as caught:
            Settings.from_env(env)
        assert secret not in str(caught.value)


def test_what_a_part_cannot_do_without_is_asked_for_by_name() -> None:
    settings = Settings()
    with pytest.raises(SettingError, match="EVALFLEET_BROKER_URL"):
        settings.require_broker()
    with pytest.raises(SettingError, match="EVALFLEET_RESULTS_URL"):
        settings.require_results_url()
    with pytest.raises(SettingError, match="EVALFLEET_BASE_URL"):
        settings.require_base_url()
    with pytest.raises(CredentialError, match="EVALFLEET_TOKEN"):
        settings.require_token()
    with pytest.raises(CredentialError, match="SPLOX_API_KEY"):
        settings.require_key("default")


def test_the_process_environment_is_only_read_through_from_env() -> None:
    assert Settings.from_env(os.environ) == Settings.from_env(dict(os.environ))
