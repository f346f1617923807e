"""Keeps another program's variables away from our libraries, and whole for agents and graders.

Celery, kombu, billiard, prometheus-client, uvicorn, FastAPI, pydantic and psycopg read variables that a shell may hold
for another service: `CELERY_BROKER_URL` replaces the broker that we name, `PROMETHEUS_MULTIPROC_DIR` crashes an import.
Every process of ours calls `settle` before it imports any of them; docs/configuration.md lists what is removed, what is
honoured, and why. What was removed is kept here for the processes that are the user's own.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import Final

FOREIGN_PREFIXES: Final = (
    "CELERY_",
    "FASTAPI_",
    "KOMBU_",
    "OTEL_",  # FastAPI would send our server's spans to the collector of somebody's agent
    "PROMETHEUS_",
    "PSYCOPG_",
    "PYDANTIC_",
    "_MP_FORK_",
)
FOREIGN_NAMES: Final = frozenset(
    {
        # celery
        "AUTOSCALE_KEEPALIVE",
        "C_BENCH",
        "C_BENCH_EVERY",
        "C_FAKEFORK",
        "C_FORCE_ROOT",
        "C_IMPDEBUG",
        "C_REMDEBUG",
        "C_STRICT_APP",
        "C_WARN_APP",
        "C_WNOCONF",
        "DJANGO_PROJECT_DIR",
        "DJANGO_SETTINGS_MODULE",
        "EVENTLET_NOBLOCK",
        "FORKED_BY_MULTIPROCESSING",
        "MP_LOG",
        "MP_MAIN_FILE",
        "NOSETPS",
        "TIMER_DEBUG",
        "USE_FAST_LOCALS",
        # kombu, billiard
        "DISABLE_TRACEBACKS",
        "MULTIPROCESSING_FORKING_DISABLE",
        "PICKLE_PROTOCOL",
        "REMAP_SIGTERM",
        # ssl: the keys of our connections are not for another program's debugging, and its file may not be there
        "SSLKEYLOGFILE",
        # prometheus-client
        "prometheus_multiproc_dir",
        # uvicorn
        "FORWARDED_ALLOW_IPS",
        "WEB_CONCURRENCY",
        # aiohttp and what it stands on: each would be played without its C code
        "AIOHTTP_NO_EXTENSIONS",
        "FROZENLIST_NO_EXTENSIONS",
        "MULTIDICT_NO_EXTENSIONS",
        "PROPCACHE_NO_EXTENSIONS",
        "YARL_NO_EXTENSIONS",
    }
)
_SERVICE_LINK = re.compile(r"(tcp|udp|sctp)://")

_removed: dict[str, str] = {}


def is_foreign(name: str) -> bool:
    """Whether a library of ours would read as its own a variable that is meant for another program."""
    return name in FOREIGN_NAMES or name.startswith(FOREIGN_PREFIXES)


def is_service_link(name: str, value: str) -> bool:
    """`EVALFLEET_PORT=tcp://10.0.0.1:8080`: Kubernetes sets `<NAME>_PORT` for each service of a namespace."""
    return name.startswith("EVALFLEET_") and name.endswith("_PORT") and _SERVICE_LINK.match(value) is not None


def settle(environ: MutableMapping[str, str] = os.environ) -> None:
    """Remove from this process's environment what is another program's, and look for modules of PYTHONPATH last.

    Call it before any import but the standard library's, and again after variables were added. `user_environment`
    still has what was removed.
    """
    for name, value in list(environ.items()):
        if is_service_link(name, value):
            del environ[name]  # for good: it is no setting of ours, and agents get no EVALFLEET_* at all
        elif is_foreign(name):
            _removed[name] = environ.pop(name)
    _look_last(environ.get("PYTHONPATH", ""))


def user_environment(environ: MutableMapping[str, str] = os.environ) -> dict[str, str]:
    """The environment as the user has it: for agents, for graders, and for the parts that start those."""
    return {**_removed, **environ}


def _look_last(pythonpath: str) -> None:
    """Move the entries of PYTHONPATH behind our own packages: a user's `worker` or `redis` there is not ours.

    They stay on the path, at its end; the folder that holds this package stays where it is.
    """
    home = str(Path(__file__).resolve().parent.parent)
    entries = {os.path.abspath(entry) for entry in pythonpath.split(os.pathsep) if entry} - {home}  # noqa: PTH100  - as site does
    theirs = [entry for entry in sys.path if entry in entries]
    if theirs:
        sys.path[:] = [entry for entry in sys.path if entry not in entries] + theirs
