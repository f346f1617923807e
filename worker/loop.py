"""Where do coroutines run in a worker of threads?

One asyncio loop per process, on a thread of its own, owns the HTTP client and the grader pool (design.md, "Pool:
threads"). A task thread hands it a coroutine and waits; stopping cancels every coroutine that is under way.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")

BLOCKING = 32
"""Threads for what blocks: the ledger's round trips of many conversations, and names that the HTTP client looks up.
Python's default is six on a small host: there a silent broker would stop the HTTP, too."""


class LoopThread:
    """An event loop on its own daemon thread. `run` blocks the calling thread until the coroutine is done."""

    def __init__(self) -> None:
        self.loop = _new_loop()
        self.loop.set_default_executor(ThreadPoolExecutor(BLOCKING, thread_name_prefix="evalfleet-blocking"))
        self._guard = threading.Lock()
        self._stopped = False
        self._thread = threading.Thread(target=self._main, name="evalfleet-loop", daemon=True)
        self._thread.start()

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Its future is done when the coroutine is, its clean-up included; already cancelled after `stop`."""
        with self._guard:
            if not self._stopped:
                return asyncio.run_coroutine_threadsafe(work, self.loop)
        work.close()
        refused: concurrent.futures.Future[T] = concurrent.futures.Future()
        refused.cancel()
        return refused

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

        with self._guard:  # what was handed in before is drained, what comes later is refused
            self._stopped = True
            draining = asyncio.run_coroutine_threadsafe(drain(), self.loop)
        draining.result(timeout + 1)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # it is a dependency, but PyPy and musl hosts may lack a wheel
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class Leave:
    """Why a conversation is left, told from the heartbeat's thread: its coroutine is cancelled, and cleans up first."""

    def __init__(self, loop: LoopThread) -> None:
        self.loop = loop.loop
        self.why = ""
        self.draining = False
        self._task: asyncio.Task[Any] | None = None

    def begin(self) -> None:
        """Called by the coroutine."""
        self._task = asyncio.current_task()
        if self.why:
            raise asyncio.CancelledError

    def told(self, state: str) -> None:
        if state == "draining":
            self.draining = True
            return
        self.why = state
        self.loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
