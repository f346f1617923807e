"""A road to a server that a test can close: a TCP relay on a port of its own; closed, it refuses and cuts."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self


class Relay:
    """Between `url` and the loopback port `to`. Down, it refuses connections, and those that were open are cut.
    `asked` is what clients have sent, by connection."""

    def __init__(self, to: int = 0) -> None:
        self.to = to
        self._guard = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener: socket.socket | None = None
        self.port = 0
        self.asked: list[bytearray] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def up(self) -> None:
        listener = socket.create_server(("127.0.0.1", self.port))
        self.port = listener.getsockname()[1]
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def down(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        with self._guard:
            ends, self._open = self._open, set()
        for end in ends:
            _shut(end)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self.to))
            except OSError:
                near.close()
                continue
            with self._guard:
                self._open |= {near, far}
            if self._listener is not listener:  # it went down meanwhile
                _shut(near)
                _shut(far)
            self.asked.append(bytearray())
            for one, other, kept in ((near, far, self.asked[-1]), (far, near, None)):
                threading.Thread(target=self._pass_on, args=(one, other, kept), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket, kept: bytearray | None) -> None:
        try:
            while data := one.recv(65_536):
                if kept is not None:
                    kept += data
                other.sendall(data)
        except OSError:
            pass  # one end is gone, and so will the other be
        _shut(one)
        _shut(other)
        with self._guard:
            self._open -= {one, other}


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
