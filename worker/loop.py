"""Where do coroutines run in a worker of threads?

One asyncio loop per process, on a thread of its own, owns the HTTP client and the grader pool (design.md, "Pool:
threads"). A task thread hands it a coroutine and waits; stopping cancels every coroutine that is under way.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """An event loop on its own daemon thread. `run` blocks the calling thread until the coroutine is done."""

    def __init__(self) -> None:
        self.loop = _new_loop()
        self._thread = threading.Thread(target=self._main, name="evalfleet-loop", daemon=True)
        self._thread.start()

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result or exception; concurrent.futures.CancelledError if the loop is being stopped."""
        return self.submit(work).result()

    def stop(self, timeout: float = 5.0) -> None:
        """Cancel what is under way, let it clean up for at most `timeout` seconds, end the loop."""
        if not self._thread.is_alive():
            return

        async def drain() -> None:
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks, timeout=timeout)

        self.submit(drain()).result(timeout + 1)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # it is a dependency, but PyPy and musl hosts may lack a wheel
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
