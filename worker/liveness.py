"""Does this worker still take messages?

Celery's consumer can outlive its connection: the process lives, its heartbeat beats, and no message comes in (case
D03). So the sign of life comes from the consumer's own timer, which stands still while the consumer reconnects, and it
is given only while the worker is not deaf: messages wait that it asks for, and for `DEAF_S` none came. Whatever
restarts containers looks at the file's age; a deaf worker also ends itself, so that whatever restarts ended ones needs
no file. What the file says is another matter: what the worker does not reach (`worker.health`), which no restart would
change.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

from evalfleet.errors import EvalfleetError, UnfitHost

log = logging.getLogger(__name__)

EVERY_S = 2.0
DEAF_S = 30.0
"""A free worker takes a waiting message within a second: Redis hands it to whoever blocks on the list."""


class Liveness:
    """`look` is called by the consumer's timer, `received` for each message, both on the consumer's thread.

    `waiting()` says how many messages wait in the queues that the worker would take one from; `deaf()` is called once
    when it hears nothing. `unreachable()` is what the file says: a line for each, "" when all is well.
    """

    def __init__(
        self,
        file: Path | None,
        *,
        waiting: Callable[[], int],
        deaf: Callable[[], None],
        unreachable: Callable[[], str] = str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.file = file
        self.is_deaf = False
        self._waiting, self._deaf, self._clock = waiting, deaf, clock
        self._unreachable = unreachable
        self._says = ""
        self._heard_at = clock()

    def check_file(self) -> None:
        """UnfitHost when the file cannot be written; better now than as a worker that looks dead."""
        if self.file is None:
            return
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self.file.touch()
            self.file.unlink()
        except OSError as error:
            raise UnfitHost(f"--liveness-file {self.file}: {error.strerror or error}") from error

    def connected(self) -> None:
        """A new connection: what was not heard before it does not count."""
        self._heard_at = self._clock()

    def received(self) -> None:
        self._heard_at = self._clock()

    def look(self) -> None:
        """Touch the file, unless this worker is deaf or cannot ask its broker."""
        try:
            if self._waiting() == 0:
                self._heard_at = self._clock()
        except EvalfleetError as error:
            log.warning("not healthy: %s", error)
            return
        silence = self._clock() - self._heard_at
        if silence < DEAF_S:
            self._touch(self._unreachable())
        elif not self.is_deaf:
            self.is_deaf = True
            log.error("messages have waited for %.0f s, there is room, and none came in: this worker ends", silence)
            self._deaf()

    def _touch(self, says: str) -> None:
        if self.file is None:
            return
        try:
            if says != self._says or not self.file.exists():
                new = self.file.with_name(f"{self.file.name}.new")
                new.write_text(says, encoding="utf-8")
                new.replace(self.file)  # whoever probes reads one or the other, whole
                self._says = says
            self.file.touch()
            os.utime(self.file)
        except OSError as error:
            log.warning("--liveness-file %s: %s", self.file, error.strerror or error)
