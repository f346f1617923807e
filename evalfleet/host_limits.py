"""Makes room for open files before anything starts, or says how many runs at once fit.

A run holds the agent's pipes and connections: on the server up to 3 files (98 at 20 runs, 314 at 100), in a worker
fewer (165 at 100). Without room a run fails in the middle, as if the agent could not be started.
"""

from __future__ import annotations

import contextlib
import resource
from typing import Final

from evalfleet.errors import UnfitHost

EACH: Final = 4
"""Files for each run that is open, in the part that needs most."""
BESIDE: Final = 128
"""Files of a part besides: logs, sockets, the database, libraries."""


def make_room(runs: int, setting: str) -> None:
    """Raise this process's soft limit of open files, which its children inherit, to what `runs` at once need.

    UnfitHost names `setting` and the number that fits where the hard limit does not allow it.
    """
    wanted = BESIDE + EACH * runs
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    with contextlib.suppress(ValueError, OSError):  # macOS has a limit below the hard one, which it does not show
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    if soft < wanted:
        raise UnfitHost(
            f"{setting}: {runs} runs at once need {wanted} open files, and this host allows {soft} (`ulimit -Hn`): "
            f"raise that limit, or take {max(1, (soft - BESIDE) // EACH)} at once"
        )
