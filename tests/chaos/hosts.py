"""Several hosts on one machine: network namespaces on a bridge, each with an address of its own, which can be cut off.

Nothing leaves them: the bridge stands in a namespace, too, and there is no way out of it. Making them takes the rights
of root; whoever has not is told why (`unavailable`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from types import TracebackType
from typing import Self
from uuid import uuid4

_NET = "10.201.7"


def unavailable() -> str:
    """Why there can be no hosts here; "" where there can."""
    if shutil.which("ip") is None:
        return "`ip` is not there (iproute2)"
    probe = f"ef-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"network namespaces are not permitted here: {made.stderr.strip()}"
    _ip("netns", "del", probe)
    return ""


class Hosts:
    """Hosts by name, as a context. `address` of one, `command` to run something there, `cut` and `mend` it."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self._mark = uuid4().hex[:6]
        self._hub = f"ef{self._mark}-hub"

    def address(self, name: str) -> str:
        return f"{_NET}.{self.names.index(name) + 1}"

    def command(self, name: str, argv: Sequence[str]) -> list[str]:
        """The words that run `argv` on a host. `ip` becomes that program: a signal to it reaches it."""
        return ["ip", "netns", "exec", self._space(name), *argv]

    def cut(self, name: str) -> None:
        """Packets to and from it are lost, and nobody is told."""
        _ip("-n", self._hub, "link", "set", self._port(name), "nomaster")

    def mend(self, name: str) -> None:
        _ip("-n", self._hub, "link", "set", self._port(name), "master", "bridge")

    def _space(self, name: str) -> str:
        return f"ef{self._mark}-{name}"

    def _port(self, name: str) -> str:
        return f"to-{name}"

    def __enter__(self) -> Self:
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def _make(self) -> None:
        _ip("netns", "add", self._hub)
        _ip("-n", self._hub, "link", "add", "bridge", "type", "bridge")
        _ip("-n", self._hub, "link", "set", "bridge", "up")
        for name in self.names:
            space, port = self._space(name), self._port(name)
            _ip("netns", "add", space)
            _ip("-n", self._hub, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("-n", self._hub, "link", "set", port, "master", "bridge", "up")
            _ip("-n", space, "address", "add", f"{self.address(name)}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "eth0", "up")
            _ip("-n", space, "link", "set", "lo", "up")

    def _remove(self) -> None:
        listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
        for space in (line.split()[0] for line in listed.splitlines() if line):
            if space.startswith(f"ef{self._mark}-"):
                _ip("netns", "del", space)


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr.strip()}"
