"""Another program's variables reach none of our libraries, and reach agents and graders whole (N01, N06)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

from evalfleet.surroundings import FOREIGN_NAMES, FOREIGN_PREFIXES, is_foreign, settle, user_environment

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8").split("## The environment")[1]

HOSTILE = {
    "CELERY_BROKER_URL": "redis://127.0.0.1:1/0",
    "CELERY_BROKER_READ_URL": "redis://127.0.0.1:1/0",
    "CELERY_BROKER_WRITE_URL": "redis://127.0.0.1:1/0",
    "CELERY_CONFIG_MODULE": "no_such_module",
    "CELERY_LOADER": "no_such_loader",
    "CELERY_RESULT_BACKEND": "no-such-backend://",
    "C_IMPDEBUG": "1",
    "DJANGO_SETTINGS_MODULE": "no_such.settings",
    "EVALFLEET_METRICS_PORT": "tcp://10.0.0.1:9090",
    "EVALFLEET_PORT": "tcp://10.0.0.1:8080",
    "FASTAPI_ENV": "development",
    "FORKED_BY_MULTIPROCESSING": "1",
    "KOMBU_LOG_DEBUG": "1",
    "MP_LOG": "1",
    "OTEL_EXPORTER_OTLP_ENDPOINT": "ftp://127.0.0.1",
    "OTEL_PROPAGATORS": "no-such-propagator",
    "OTEL_PYTHON_CONTEXT": "no-such-context",
    "OTEL_TRACES_EXPORTER": "zipkin",
    "PICKLE_PROTOCOL": "newest",
    "PROMETHEUS_MULTIPROC_DIR": "/nonexistent/folder",
    "PSYCOPG_IMPL": "no-such-implementation",
    "PYDANTIC_DISABLE_PLUGINS": "no_such_plugin",
    "REMAP_SIGTERM": "SIGQUIT",
    "SSLKEYLOGFILE": "/nonexistent/folder/keys",
    "WEB_CONCURRENCY": "many",
    "prometheus_multiproc_dir": "/nonexistent/folder",
}
"""Each breaks a start, or sends something elsewhere, where a library reads it."""


def test_what_is_another_programs_goes_and_stays_in_the_users_environment() -> None:
    environ = {**HOSTILE, "PATH": "/bin", "EVALFLEET_TRIES": "4", "HTTP_PROXY": "http://proxy:1"}
    settle(environ)
    assert environ == {"PATH": "/bin", "EVALFLEET_TRIES": "4", "HTTP_PROXY": "http://proxy:1"}
    whole = user_environment(environ)
    assert {name: whole.get(name) for name in HOSTILE if not name.startswith("EVALFLEET_")} == {
        name: value for name, value in HOSTILE.items() if not name.startswith("EVALFLEET_")
    }


def test_a_service_link_of_kubernetes_is_no_port_of_ours_and_a_port_is() -> None:
    environ = {"EVALFLEET_PORT": "8080", "EVALFLEET_METRICS_PORT": "tcp://10.0.0.1:9090"}
    settle(environ)
    assert environ == {"EVALFLEET_PORT": "8080"}


EVERYTHING = """
from evalfleet.surroundings import settle
settle()
import celery, worker.app, evalfleet.server.app, evalfleet.telemetry, scheduler.fleet, redis, httpx, aiohttp, psycopg
from evalfleet.settings import Settings
app = worker.app.make_app(Settings(broker_url="redis://127.0.0.1:2222/0"))
print(app.connection_for_read().port, app.connection_for_write().port, worker.__file__, redis.__file__)
"""


def test_every_library_of_ours_is_imported_beside_hostile_variables_and_a_users_packages(tmp_path: Path) -> None:
    """`PYTHONPATH` with the user's own `worker`, `scheduler`, `redis`: ours are found, in their place."""
    for name in ("worker", "scheduler", "redis"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a package of the user was imported')\n")
    done = subprocess.run(
        [sys.executable, "-P", "-c", EVERYTHING],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path), **HOSTILE},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    reads, writes, ours, library = done.stdout.split()
    assert reads == writes == "2222"
    assert Path(ours) == ROOT / "worker" / "__init__.py"
    assert "site-packages" in library


LIBRARIES = (
    "aiohttp",
    "alembic",
    "amqp",
    "billiard",
    "celery",
    "click",
    "fastapi",
    "frozenlist",
    "httpx",
    "httpx-aiohttp",
    "httpx2",
    "kombu",
    "mcp",
    "multidict",
    "orjson",
    "prometheus-client",
    "propcache",
    "psycopg",
    "pydantic",
    "pyjwt",
    "python-dateutil",
    "redis",
    "rich",
    "sqlalchemy",
    "sse-starlette",
    "starlette",
    "typer",
    "uvicorn",
    "vine",
    "yarl",
)
NOT_REACHED = {
    "ALEMBIC_CONFIG": "alembic's own command line",
    "AIOHTTP_NOSENDFILE": "aiohttp's server",
    "CONTENT_LENGTH": "a WSGI request",
    "DATABRICKS_RUNTIME_VERSION": "inside a notebook only",
    "FOO": "an example in the text of aiohttp",
    "HTTP_ACCEPT": "a WSGI request",
    "HTTP_ACCEPT_ENCODING": "a WSGI request",
    "ITERM_PROFILE": "Celery's banner, which is off",
    "JUPYTER_COLUMNS": "inside a notebook only",
    "JUPYTER_LINES": "inside a notebook only",
    "LESS": "a pager, which is not used",
    "NETRC": "a look-up of logins, which is off",
    "NO_WORKER": "Celery's plugin for pytest",
    "NUMBER_OF_PROCESSORS": "Windows",
    "PAGER": "a pager, which is not used",
    "PATH": "where programs are",
    "PATH_INFO": "a WSGI request",
    "PUBSUB_EMULATOR_HOST": "another transport of kombu",
    "PYTHONASYNCIODEBUG": "the interpreter's own",
    "PY_COLORS": "Typer's own error pages, which are off",
    "QUERY_STRING": "a WSGI request",
    "REMOTE_ADDR": "a WSGI request",
    "REQUEST_METHOD": "a WSGI request",
    "SERVER_NAME": "a WSGI request",
    "SERVER_PORT": "a WSGI request",
    "SLMQ_ACCOUNT": "another transport of kombu",
    "SLMQ_HOST": "another transport of kombu",
    "SLMQ_PORT": "another transport of kombu",
    "SLMQ_SECURE": "another transport of kombu",
    "SL_API_KEY": "another transport of kombu",
    "SL_USERNAME": "another transport of kombu",
    "SPHINX_BUILD": "set while PyJWT's own pages are made",
    "TERMINAL_WIDTH": "Typer's own help pages, which are off",
    "TYPER_STANDARD_TRACEBACK": "Typer's own error pages, which are off",
    "TYPER_USE_RICH": "Typer's own help pages, which are off",
    "celery_dummy_proxy": "set by Celery, not read",
    "XDG_CONFIG_HOME": "a folder of settings, which is not asked for",
}
"""Read by a library in code that evalfleet does not run."""
_READ = re.compile(
    r"""(?:environ(?:\.get|\.setdefault|\.pop)?\s*[\(\[]|getenv\()\s*['"]([A-Za-z_][A-Za-z0-9_]{2,})['"]"""
    r"""|['"]([A-Z][A-Z0-9_]{2,})['"] (?:not )?in (?:os\.)?environ"""
)


def variables_read_by(name: str) -> set[str]:
    found: set[str] = set()
    for file in distribution(name).files or []:
        if file.suffix == ".py" and not {"tests", "testing", "test"} & set(file.parts):
            text = Path(str(file.locate())).read_text(encoding="utf-8", errors="replace")
            found |= {first or second for first, second in _READ.findall(text)}
    return {variable for variable in found if not variable.startswith(("_TYPER_", "COMP_", "wsgi"))}


@pytest.mark.parametrize("library", LIBRARIES)
def test_every_variable_that_a_library_reads_has_been_decided_on(library: str) -> None:
    """A new version that reads a new one fails here: remove it, honour it on the page, or say why it is not reached."""
    honoured = set(re.findall(r"`([A-Za-z_]+)`", PAGE))
    undecided = {
        name for name in variables_read_by(library) if not is_foreign(name) and name not in honoured | set(NOT_REACHED)
    }
    assert undecided == set()


def test_what_is_removed_is_on_the_page() -> None:
    listed = set(re.findall(r"`([A-Za-z_]+)\*?`", PAGE))
    assert set(FOREIGN_NAMES) | set(FOREIGN_PREFIXES) <= listed
