"""Which faults can a test put on the network between two parts? TCP links that can be cut, refused and silenced.

A `Link` listens on loopback and hands every connection on to one of its ends, in turn, passing over those that refuse.
Its state is changed from the test's thread at any moment; the copying happens on one thread for all links.

* `cut`: connections are reset, and the next ones pass;
* `refuse`: connections are reset, and nobody listens until `mend`;
* `silence`: nothing is lost and nothing arrives until `mend`, as on a network that drops packets.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import struct
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

_PIECE = 64 * 1024
_WITHIN = 10.0


class Link:
    """Made by `Links.link`. `port` is where it listens, on loopback; it leads to the ports `ends` of `host`."""

    def __init__(self, links: Links, name: str, host: str, ends: Sequence[int]) -> None:
        self.name = name
        self._host = host
        self._links = links
        self._ends = tuple(ends)
        self._turn = itertools.count()
        self._flows = asyncio.Event()
        self._flows.set()
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    def cut(self) -> None:
        self._links.call(self._cut)

    def refuse(self) -> None:
        async def refuse() -> None:
            await self._unlisten()
            await self._cut()

        self._links.call(refuse)

    def silence(self) -> None:
        async def silence() -> None:
            self._flows.clear()

        self._links.call(silence)

    def mend(self) -> None:
        """As it was at first; nothing happens to one that is whole."""

        async def mend() -> None:
            self._flows.set()
            await self._listen()

        self._links.call(mend)

    # -- on the thread of the links

    async def _listen(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._joined, "127.0.0.1", self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    async def _unlisten(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _cut(self) -> None:
        for writer in list(self._open):
            _reset(writer)

    async def _close(self) -> None:
        await self._unlisten()
        self._flows.set()
        await self._cut()

    async def _joined(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with self._kept(writer):
            try:
                await self._flows.wait()
                far = await self._connect()
                if far is None:
                    _reset(writer)
                    return
                with self._kept(far[1]):
                    await asyncio.gather(self._copy(reader, far[1]), self._copy(far[0], writer))
            except asyncio.CancelledError:
                _reset(writer)  # the test is over; a callback of asyncio's must not see a cancelled task

    @contextlib.contextmanager
    def _kept(self, writer: asyncio.StreamWriter) -> Iterator[None]:
        self._open.add(writer)
        try:
            yield
        finally:
            self._open.discard(writer)
            writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        first = next(self._turn)
        for step in range(len(self._ends)):
            with contextlib.suppress(OSError):
                return await asyncio.open_connection(self._host, self._ends[(first + step) % len(self._ends)])
        return None

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One direction; its end is handed on, and a break breaks the other one, too."""
        try:
            while piece := await reader.read(_PIECE):
                await self._flows.wait()
                writer.write(piece)
                await writer.drain()
            await self._flows.wait()
            writer.write_eof()
        except OSError:
            _reset(writer)


class Links:
    """All links of a test, and the thread that copies for them."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)
        self._all: dict[str, Link] = {}

    def link(self, name: str, *ends: int, host: str = "127.0.0.1") -> Link:
        """A new link to these ports, listening."""
        made = Link(self, name, host, ends)
        self._all[name] = made
        made.mend()
        return made

    def __getitem__(self, name: str) -> Link:
        return self._all[name]

    def mend(self) -> None:
        """All of them."""
        for link in self._all.values():
            link.mend()

    def call(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        asyncio.run_coroutine_threadsafe(work(), self._loop).result(_WITHIN)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.call(self._end)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_WITHIN)
        self._loop.close()

    async def _end(self) -> None:
        for link in self._all.values():
            await link._close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


def _reset(writer: asyncio.StreamWriter) -> None:
    connection = writer.get_extra_info("socket")
    if connection is not None:
        with contextlib.suppress(OSError):
            # Linger 0: closing drops what was not sent and answers with RST instead of FIN.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
