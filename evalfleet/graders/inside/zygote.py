"""How does a grader's process start in about a millisecond, without being a fork of ours?

This file is run by the interpreter that `[graders] python` names: `python -I zygote.py FD SETTINGS`. It puts up the
walls that all calls share (user, mount, IPC and network namespace; the tree read-only), says on its control line what
stands, and then forks a keeper for each line that arrives. It imports nothing of the user's and ends when the control
line closes, killing the keepers that are left.

Control line, in: `C` + number (8 bytes) + one descriptor: a keeper for that line; `K` + number: kill it. Out: one
document.
"""

# Plain calls: a path object for each name is memory that every forked call would pay for again.
# ruff: noqa: PTH100, PTH118, PTH120
from __future__ import annotations

import array
import gc
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from types import ModuleType
from typing import Any

if sys.version_info < (3, 8):  # noqa: UP036 - not our interpreter, but the one that [graders] names
    sys.exit("this is Python " + sys.version.split()[0])


def _load_siblings() -> None:
    """The other files of this folder under their full names, without evalfleet being installed for this interpreter.
    The names are taken away again afterwards: `import evalfleet` in a grader means whatever its own packages say."""
    for name in ("evalfleet", "evalfleet.graders", "evalfleet.graders.inside"):
        package = ModuleType(name)
        package.__path__ = [os.path.dirname(os.path.abspath(__file__))] if name.endswith("inside") else []
        sys.modules[name] = package


_load_siblings()

from evalfleet.graders.inside import child, keeper, kernel, sweep  # noqa: E402

for _name in [name for name in sys.modules if name.partition(".")[0] == "evalfleet"]:
    del sys.modules[_name]

_LAST_SECONDS = 2.0
ORDER = struct.Struct(">cQ")


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    settings = json.loads(sys.argv[2])
    cages, own_namespace = _raise_walls(control, settings["root"], bool(settings["network"]), settings["cages"])
    control.sendall(
        json.dumps({"cages": cages, "python": sys.version.split()[0], "executable": sys.executable}).encode() + b"\n"
    )
    child.open_streams()
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)
    gc.disable()  # a collection in a keeper would only copy pages; child.py switches it on again
    gc.freeze()
    try:
        _Zygote(control, settings, cages, own_namespace).serve()
    finally:
        sweep.remove_folder(settings["scratch"])


def _raise_walls(control: socket.socket, root: str, network: bool, allowed: str) -> tuple[dict[str, bool], int | None]:
    """What stands afterwards, and the descriptor of our own PID namespace (None: no PID namespaces here).

    `allowed` "best", or "plain" to go without namespaces (to see what such a host gives)."""
    cages = {
        "user_namespace": False,
        "pid_namespace": False,
        "network_closed": False,
        "read_only_tree": False,
        "subreaper": kernel.IS_LINUX,
        "memory_limit": kernel.IS_LINUX,
        "process_limit": False,
    }
    if kernel.IS_LINUX:
        kernel.become_subreaper()
    if not kernel.IS_LINUX or allowed != "best":
        return cages, None
    common = kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC
    choices = [common] if network else [common | kernel.CLONE_NEWNET, common]
    for flags in choices:
        if not _can(flags):
            continue
        kernel.enter_user_namespace(flags | kernel.CLONE_NEWPID)
        _go_on_as_first_process(control)
        cages["user_namespace"] = cages["pid_namespace"] = True
        cages["network_closed"] = bool(flags & kernel.CLONE_NEWNET)
        cages["process_limit"] = os.geteuid() != 0  # the kernel counts root's nowhere
        try:
            kernel.make_read_only(root)
            cages["read_only_tree"] = True
        except OSError:
            pass  # the copy's file modes still say read-only; `cages` tells the difference
        return cages, os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    return cages, None


def _go_on_as_first_process(control: socket.socket) -> None:
    """Return in a child that is PID 1 of a namespace which our user namespace owns: only from such a one may a process
    come back (setns) after it has made a further one for a keeper. Our own process waits for the child and ends."""
    pid = os.fork()
    if pid != 0:
        control.close()
        os.waitpid(pid, 0)
        os._exit(0)
    kernel.die_with_parent(signal.SIGKILL)


def _can(flags: int) -> bool:
    """Tried in a process of its own: a namespace that was entered cannot be left when the next step is refused."""
    pid = os.fork()
    if pid == 0:
        try:
            kernel.enter_user_namespace(flags)
            kernel.unshare(kernel.CLONE_NEWPID)
            inner = os.fork()
            if inner == 0:
                os._exit(0)
            os._exit(0 if os.waitpid(inner, 0)[1] == 0 else 1)
        except OSError:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


class _Zygote:
    def __init__(
        self, control: socket.socket, settings: dict[str, Any], cages: dict[str, bool], own_namespace: int | None
    ) -> None:
        self._control = control
        self._root = settings["root"]
        self._scratch = settings["scratch"]
        self._cages = cages
        self._own_namespace = own_namespace
        self._keepers: dict[int, int] = {}  # number of its line → pid

    def serve(self) -> None:
        wake = keeper.child_deaths()
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        poller.register(wake, select.POLLIN)
        while True:
            for descriptor, _event in poller.poll():
                if descriptor == wake:
                    os.read(wake, 4096)
                    self._reap()
                elif not self._take_order():
                    self._end(wake)
                    return

    def _end(self, wake: int) -> None:
        """The lines of the keepers close with the control line: each ends what it keeps, which only it can find on a
        host without PID namespaces; who has not in two seconds is killed."""
        if self._own_namespace is not None:
            sweep.kill(-1)
        until = time.monotonic() + _LAST_SECONDS
        while self._keepers and time.monotonic() < until:
            if select.select([wake], [], [], 0.1)[0]:
                os.read(wake, 4096)
            self._reap()
        for pid in self._keepers.values():
            sweep.kill(pid)
        sweep.end_children(0, wake)

    def _take_order(self) -> bool:
        descriptors = array.array("i")
        data, ancillary, _flags, _address = self._control.recvmsg(ORDER.size, socket.CMSG_SPACE(descriptors.itemsize))
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors.frombytes(payload[: len(payload) - len(payload) % descriptors.itemsize])
        if len(data) < ORDER.size:
            return False
        order, number = ORDER.unpack(data)
        if order == b"K":
            pid = self._keepers.get(number)
            if pid is not None:
                sweep.kill(pid)
        elif descriptors:
            self._fork_keeper(number, socket.socket(fileno=descriptors[0]))
        return True

    def _fork_keeper(self, number: int, line: socket.socket) -> None:
        try:
            if self._own_namespace is not None:
                kernel.unshare(kernel.CLONE_NEWPID)
            pid = os.fork()
        except OSError:
            pid = -1  # the closed line tells the worker, which has its own answer to a host that is full
        if pid == 0:
            self._become_keeper(number, line)
        if self._own_namespace is not None:
            kernel.setns(self._own_namespace, kernel.CLONE_NEWPID)
        line.close()
        if pid > 0:
            self._keepers[number] = pid

    def _become_keeper(self, number: int, line: socket.socket) -> None:
        try:
            signal.set_wakeup_fd(-1)
            self._control.close()
            os.environ[sweep.MARK] = f"{os.getpid()}.{number}"
            keeper.run(line, self._root, self._cages, os.path.join(self._scratch, str(number)))
        finally:
            os._exit(1)  # an exception of ours: the worker sees the line close, which is its word for a lost cage

    def _reap(self) -> None:
        while True:
            try:
                pid, _status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            self._keepers = {number: known for number, known in self._keepers.items() if known != pid}
        if self._own_namespace is None and kernel.IS_LINUX:
            self._end_strays()

    def _end_strays(self) -> None:
        """Without PID namespaces a keeper that was itself killed leaves its grader to us, the next reaper."""
        known = set(self._keepers.values())
        for pid in sweep.children(os.getpid()):
            if pid not in known:
                for below in [pid, *sweep.descendants(pid)]:
                    sweep.kill(below)


if __name__ == "__main__":
    main()
