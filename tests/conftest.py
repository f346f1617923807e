"""Which services may a test ask for, and what happens when one is missing?

A service that does not answer skips its tests on a laptop and *fails* them in CI (`CI=true`): a green run there must
mean that they ran. The embedded Valkey needs nothing but our own dependencies, so it never skips.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import psycopg
import pytest
import redis

from scheduler.valkey import program

REDIS_URL = "EVALFLEET_TEST_REDIS_URL"
POSTGRES_URL = "EVALFLEET_TEST_POSTGRES_URL"
IN_ONE_PROCESS = (
    "tests/integration/test_fleet.py::",  # the machine's Redis, which they empty
    # A server, or a schema, for all tests of the file.
    *(f"tests/integration/test_official_sdk{name}.py::" for name in ("", "_errors", "_events", "_run_cases")),
    *(f"tests/integration/test_postgres_{name}.py::" for name in ("retention", "server", "servers", "store")),
    "tests/conformance/",
    # A fleet of nine parts, forty graders: one at a time is enough.
    "tests/chaos/test_chaos.py::",
    "tests/graders/test_beside.py::",
)
UNIT_S = 350.0
"""So long may several tests of one process take, as a `timeout` of one."""

# A property test is the same test each time, on any machine: what it finds with a fresh seed is `tests.fuzz`'s to find
# (docs/decisions/029-the-same-test-twice.md). How fast the machine is decides nothing, so there is no deadline.
_SLOW = [hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.function_scoped_fixture]
hypothesis.settings.register_profile(
    "same", derandomize=True, database=None, deadline=None, suppress_health_check=_SLOW
)
hypothesis.settings.register_profile(
    "fresh",
    derandomize=False,
    database=None,
    deadline=None,
    suppress_health_check=_SLOW,
    max_examples=int(os.environ.get("EVALFLEET_TEST_EXAMPLES", "100")),
)
hypothesis.settings.load_profile("same")

# Tests start our parts as processes; those import this checkout, also where it is not installed.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(Path(__file__).resolve().parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
)

# What a command says for GitHub Actions is tested on purpose, and must not happen by itself where the tests run there.
for name in [name for name in os.environ if name.startswith("GITHUB_")]:
    del os.environ[name]


def unit(nodeid: str) -> str:
    """What one process runs with `--dist loadscope`: a test, or all whose names begin with one of IN_ONE_PROCESS."""
    return next((together for together in IN_ONE_PROCESS if nodeid.startswith(together)), nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Not by `xdist_group`: xdist 3.8 writes the groups where pytest 9.2 does not read them any more."""
    if config.getoption("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByUnit(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
        def _split_scope(self, nodeid: str) -> str:
            return unit(nodeid)

    return ByUnit(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What may take longest begins first, by its `timeout`, where processes share the tests: so a run does not end with
    one long test beside idle processes."""

    def limit(item: pytest.Item) -> float:
        mark = item.get_closest_marker("timeout")
        alone = float(mark.args[0]) if mark else 0.0
        return max(alone, UNIT_S) if unit(item.nodeid) != item.nodeid else alone

    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=limit, reverse=True)


def missing(message: str) -> None:
    """Something that a test needs is not there: it is skipped on a laptop, and fails in CI."""
    if os.environ.get("CI", "").lower() in {"1", "true", "yes"}:
        pytest.fail(message)
    pytest.skip(message)


@pytest.fixture(scope="session")
def redis_url() -> str:
    """A real Redis or Valkey, by URL. Its database belongs to the tests: they may empty it."""
    url = os.environ.get(REDIS_URL, "redis://127.0.0.1:6379/15")
    try:
        with redis.Redis.from_url(url, socket_connect_timeout=3, socket_timeout=3) as client:
            client.ping()
    except redis.RedisError as error:
        missing(f"Redis does not answer ({error}); {REDIS_URL} names another one")
    return url


@pytest.fixture(scope="session")
def postgres_url() -> str:
    """A real Postgres, by URL (`postgresql://…`). Tests make schemas of their own in it and drop them."""
    url = os.environ.get(POSTGRES_URL, "postgresql://postgres@127.0.0.1:5432/test")
    try:
        psycopg.connect(url, connect_timeout=3).close()
    except psycopg.Error as error:
        missing(f"Postgres does not answer ({str(error).strip()}); {POSTGRES_URL} names another one")
    return url


@pytest.fixture(scope="session")
def valkey() -> Iterator[str]:
    """A private Valkey on a unix socket, as `unix://…` (redis-py's form). One for each test process."""
    # Not pytest's own tmp_path: its folders are deep, and a socket's path must stay under 100 bytes.
    folder = Path(tempfile.mkdtemp(prefix="ef-", dir="/tmp" if Path("/tmp").is_dir() else None))
    socket_path = folder / "v.sock"
    command = [str(program()), "--port", "0", "--unixsocket", str(socket_path), "--unixsocketperm", "700"]
    command += ["--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction", "--dir", str(folder)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        seen = []
        for line in process.stdout:
            seen.append(line)
            if "Ready to accept connections" in line:
                break
        else:
            pytest.fail("the embedded Valkey did not start:\n" + "".join(seen))
        yield f"unix://{socket_path}"
    finally:
        process.terminate()
        process.communicate(timeout=10)
        shutil.rmtree(folder)


@pytest.fixture
def free_port() -> int:
    """A loopback port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
