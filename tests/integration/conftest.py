"""The two brokers of these tests: the one that the machine offers, and private ones that may be killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.integration.fleet import Broker, Fleet


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A private Valkey that keeps what it is told."""
    folder = tmp_path / "broker"
    folder.mkdir()
    started = Broker(folder)
    yield started
    started.part.kill()


@pytest.fixture
def fleet(tmp_path: Path, redis_url: str) -> Iterator[Fleet]:
    """A fleet on the machine's real Redis, whose database is emptied before and after."""
    with redis.Redis.from_url(redis_url) as client:
        client.flushdb()
        started = Fleet(tmp_path, redis_url)
        yield started
        started.close()
        client.flushdb()


@pytest.fixture
def private_fleet(tmp_path: Path, broker: Broker) -> Iterator[Fleet]:
    """A fleet on a broker that the test may kill."""
    started = Fleet(tmp_path, broker.url)
    yield started
    started.close()
