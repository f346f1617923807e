"""The two brokers of these tests (the one that the machine offers, and private ones that may be killed); strangers.

Strangers are programs that know nothing of evalfleet and use its server: the official client, and schemathesis. They
live in an environment of their own (`make strangers`), so that what they depend on decides nothing of ours.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.conformance.deployments import Target, deployed
from tests.conftest import missing
from tests.integration.fleet import Broker, Fleet
from tests.integration.sdk import Sdk, official

STRANGERS_PYTHON = "EVALFLEET_TEST_STRANGERS_PYTHON"


@pytest.fixture(scope="session")
def strangers() -> str:
    """The interpreter that has the official client and schemathesis, as requirements-strangers.lock names them."""
    python = os.environ.get(STRANGERS_PYTHON, "")
    if not python:
        missing(f"{STRANGERS_PYTHON} names no interpreter; make strangers makes one")
    subprocess.run([python, "-c", "import splox, schemathesis"], check=True, timeout=60)
    return python


@pytest.fixture(scope="session", params=["sqlite", "postgres"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A server process of ours with a fresh database, on each store."""
    postgres = request.getfixturevalue("postgres_url") if request.param == "postgres" else None
    with deployed(request.param, tmp_path_factory.mktemp(request.param), postgres) as target:
        yield target


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A private Valkey that keeps what it is told."""
    folder = tmp_path / "broker"
    folder.mkdir()
    started = Broker(folder)
    yield started
    started.part.kill()


@pytest.fixture
def fleet(request: pytest.FixtureRequest, tmp_path: Path, redis_url: str) -> Iterator[Fleet]:
    """A fleet on the machine's real Redis, whose database is emptied before and after."""
    assert request.node.nodeid.startswith("tests/integration/test_fleet.py"), "another process would empty it meanwhile"
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


@pytest.fixture(scope="session", params=["sync", "async"])
def sdk(request: pytest.FixtureRequest, strangers: str, served: Target) -> Iterator[Sdk]:
    """The official client in both of its kinds."""
    with official(strangers, served.urls[0], served.token, request.param) as client:
        yield client
