"""What does Ctrl-C mean, once and twice?  (S38)

Once (SIGINT or SIGTERM): no new runs, in-flight runs get 10 s, then they are cancelled and stay missing. Twice: cancel
requests are sent, leave after 1 s. The handler only notes; whoever drives looks at the note twice a second.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Counts the signals while it is entered; `first` is the one that ends the command.

    Without `signals` it takes none, which only the main thread may: what ends the work then is `interrupt`, from any
    thread.
    """

    def __init__(self, signals: Sequence[signal.Signals] = SIGNALS) -> None:
        self._signals = signals
        self.count = 0
        self.first: int | None = None
        self._former: dict[int, Any] = {}
        self._ending = threading.Lock()  # never in a handler: its own thread may hold it
        self._ended = False
        self._reads, self._writes = os.pipe()
        os.set_blocking(self._writes, False)

    def __enter__(self) -> Interrupts:
        for number in self._signals:
            self._former[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)
        with self._ending:
            self._ended = True
            os.close(self._reads)
            os.close(self._writes)

    def wait(self, seconds: float) -> bool:
        """Whether a signal has come, or comes within `seconds`.

        Through a pipe: an Event has a lock, and a handler that runs while its own thread holds that waits for itself.
        """
        return bool(select.select([self._reads], [], [], seconds)[0])

    def check(self) -> None:
        """For who has begun nothing yet: a signal that has come ends the command here, as it would by itself."""
        if self.first == signal.SIGINT:
            raise KeyboardInterrupt
        if self.first is not None:
            raise SystemExit(128 + self.first)

    def interrupt(self, number: int = signal.SIGINT) -> None:
        """As if the signal came now; from any thread, also before it is entered and after its end."""
        with self._ending:
            if not self._ended:
                self._handle(number, None)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self.count += 1
        if self.first is None:
            self.first = number
        with contextlib.suppress(BlockingIOError):  # it is full of signals that nobody has taken out
            os.write(self._writes, b"!")
