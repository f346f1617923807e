"""A server that is gone, as after kill -9, at the point of a create that its first argument names (E02).

`claimed`: the key is claimed, nothing else is done. `inserted`: everything is written, nothing is committed.
`committed`: it is on the disk, and nobody was answered.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any, NoReturn

from evalfleet.server import evaluation_routes, evaluations, run_routes, runs
from evalfleet.server.__main__ import main

POINTS = ("claimed", "inserted", "committed")


def _die(*_arguments: object, **_more: object) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("nothing comes after SIGKILL")


def _dying_after(act: Any) -> Any:
    return lambda *arguments, **more: _die(act(*arguments, **more))


def _prepare(point: str) -> None:
    for module in (evaluations, runs):
        if point == "claimed":
            module.create = _die  # type: ignore[attr-defined]
        if point == "inserted":
            module.create = _dying_after(module.create)  # type: ignore[attr-defined]
    if point == "committed":
        evaluation_routes.answered = run_routes.answered = _die  # type: ignore[attr-defined]


if __name__ == "__main__":
    _prepare(sys.argv[1])
    sys.exit(main(sys.argv[2:]))
