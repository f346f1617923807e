"""What happens in the grader's own process, from fork to answer?

It walls itself in (descriptors, limits, privileges), waits for its one request, imports the one file as the module that
it is (`evals.graders.<file>`), calls the one function with fresh copies and a `t`, and says one document on its private
line. Nothing here returns: the process ends. No code of a grader's has run in it before, nor in what it was forked
from.

Hears its request, `{"op", "file", "function", "case", "run", "about", "memory_mb"}`. Says: `{"answer": {...}}`,
`{"error": sentence}`, `{"graders": [name, ...], "refused": {name: why}}` (the S6 check), or
`{"llm": {"prompt", "model"}}` and then waits for `{"text", "tokens"}`.
"""

# Plain calls: a path object for each name is memory that every forked call would pay for again.
# ruff: noqa: PTH113, PTH118, PTH120
from __future__ import annotations

import contextlib
import gc
import importlib.util
import inspect
import io
import os
import resource
import signal
import socket
import sys
import threading
from types import ModuleType
from typing import Any, NoReturn

from evalfleet.graders.inside import answers, faults, frames, kernel, names, ours, tools

CHANNEL = 1000  # the private line's descriptor: far from the small numbers that programs close in a row
NOFILE = 1024
NPROC = 1024  # processes and threads of all calls of one bundle together; where a user namespace counts them apart
FILE_BYTES = 256 * 1024 * 1024
_SPARE = 64 * 1024 * 1024  # bytes of memory released when the limit is hit, to say so

_GRADERS = os.path.join("evals", "graders")
_PACKAGE = "evals.graders"


class _Line:
    """The private line to the keeper. Only the process that the grader was given may use it: a fork of it may not."""

    def __init__(self, channel: socket.socket, nonce: bytes) -> None:
        self._channel = channel
        self._nonce = nonce
        self._owner = os.getpid()
        self._buffer = frames.FrameBuffer(frames.MAX_FRAME)
        self.lock = threading.Lock()

    @property
    def is_mine(self) -> bool:
        return os.getpid() == self._owner

    def say(self, document: Any) -> None:
        packed = frames.pack(document, self._nonce)
        if len(packed) > frames.MAX_CHILD_FRAME:
            raise ValueError(f"{len(packed)} bytes at once; at most {frames.MAX_CHILD_FRAME}")
        self._channel.sendall(packed)

    def hear(self) -> Any:
        while True:
            data = self._channel.recv(65536)
            if not data:
                os._exit(1)  # the keeper is gone, and with it whoever waits for an answer
            found = self._buffer.feed(data)
            if found:
                return found[0]


def run(root: str, channel: socket.socket, nonce: bytes, log: int, cages: dict[str, bool]) -> NoReturn:
    """Never returns. `log` is the write end for stdout and stderr; the request comes on `channel`."""
    try:
        line = _Line(_wall_in(root, channel, log, cages), nonce)
        request = line.hear()
        _last_walls(request)
    except Exception as error:  # noqa: BLE001 - whatever keeps the walls from standing must not run the grader without them
        os.write(2, f"{faults.CAGE_COMPLAINT}{error!r}\n".encode())
        os._exit(faults.CAGE_EXIT)
    where = faults.Where(os.path.join(root, _GRADERS, request["file"] + ".py"), root, cages)
    try:
        said = _import_only(where) if request["op"] == "import" else _grade(request, where, line)
    except BaseException as error:  # noqa: BLE001 - the grader's code may raise anything; all of it is its error (S24)
        resource.setrlimit(resource.RLIMIT_AS, (resource.getrlimit(resource.RLIMIT_AS)[1],) * 2)
        said = {"error": faults.sentence(error, where)}
    if not line.is_mine:
        os._exit(0)  # a fork of the grader came back here: only one process answers
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):  # the grader may have closed or replaced it (F03)
            stream.flush()
    with line.lock:
        line.say(said)
    os._exit(0)


def furnish(root: str, scratch: str) -> None:
    """What is the same for every call of a keeper, once, in the keeper: a call's process pays for each page of memory
    that it is the first to write to."""
    _limit(resource.RLIMIT_NOFILE, NOFILE)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, FILE_BYTES)
    os.environ["HOME"] = os.environ.get("HOME", scratch)
    os.environ["TMPDIR"] = scratch
    os.chdir(root)
    sys.dont_write_bytecode = True
    ours.install()
    # multiprocessing's spawn and forkserver run the main module's file again in each process that they start.
    sys.modules["__main__"] = ModuleType("__main__")
    sys.modules["__main__"].__file__ = ours.__file__


def open_streams() -> None:
    """`sys.stdin`, `stdout` and `stderr` for all calls, in the zygote; 1 and 2 are left on a pipe without a reader.

    Those that the interpreter made remember the files that they were opened on; these know that they are pipes."""
    ends = os.pipe()
    for number in (1, 2):
        os.dup2(ends[1], number)
    sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False), encoding="utf-8")
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(
            io.BufferedWriter(io.FileIO(number, "w", closefd=False)),
            encoding="utf-8",
            errors="backslashreplace",
            line_buffering=True,
        )
        for number in (1, 2)
    )
    for end in ends:
        os.close(end)


def _wall_in(root: str, channel: socket.socket, log: int, cages: dict[str, bool]) -> socket.socket:
    os.setsid()
    os.dup2(log, 1)
    os.dup2(log, 2)
    number = min(CHANNEL, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 1)
    os.dup2(channel.detach(), number, inheritable=False)
    os.closerange(3, number)
    if cages["process_limit"]:
        _limit(resource.RLIMIT_NPROC, NPROC)
    if kernel.IS_LINUX:
        kernel.die_with_parent(signal.SIGKILL)
        kernel.drop_privileges()
    sys.path.append(root)
    return socket.socket(fileno=number)


def _last_walls(request: dict[str, Any]) -> None:
    """Those that the request names; the memory limit is the grader's, and not that of reading a large request."""
    sys.argv = [request["file"] + ".py"]
    if kernel.IS_LINUX:  # macOS refuses to lower the address space below what it has mapped already
        memory = int(request["memory_mb"]) * 1024 * 1024
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory + _SPARE))
    gc.enable()


def _limit(what: int, most: int) -> None:
    hard = resource.getrlimit(what)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(what, (most, most))


def _load(where: faults.Where) -> ModuleType:
    """The file as an import of it by another grader gives it, and no second copy: `json.py` is `evals.graders.json`
    and hides nobody's `json` (F06)."""
    if not os.path.isfile(where.file):
        raise faults.NoSuchFile
    parent = _package(os.path.dirname(where.file))
    name = f"{_PACKAGE}.{where.stem}" if parent is not None else "_grader_" + where.stem
    if name in sys.modules:  # the package's own __init__.py has imported it
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, where.file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{where.shown} cannot be read as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    if parent is not None:
        setattr(parent, where.stem, module)
    return module


def _package(folder: str) -> ModuleType | None:
    """`evals.graders`, imported; None where another `evals` on the path hides the tree's."""
    try:
        spec = importlib.util.find_spec(_PACKAGE)  # imports `evals`
    except (ImportError, AttributeError, ValueError):  # it has no such folder, or is no package
        return None
    places = None if spec is None else spec.submodule_search_locations
    if places is None or not any(os.path.realpath(place) == os.path.realpath(folder) for place in places):
        return None
    return importlib.import_module(_PACKAGE)


def _import_only(where: faults.Where) -> dict[str, Any]:
    module = _load(where)
    with open(where.file, "rb") as file:  # noqa: PTH123
        text = names.read_text(file.read(), where.file)
    refused: dict[str, str] = {}
    graders: list[str] = []
    for name, value in vars(module).items():
        if name.startswith("_") or not callable(value):
            continue
        why_not = text.names.get(name) if name in text.imported else names.why_not(value)
        if name not in text.names and getattr(value, "__module__", None) != module.__name__:
            why_not = names.only_imported(str(getattr(value, "__module__", "elsewhere")))
        if why_not is None:
            graders.append(name)
        else:
            refused[name] = why_not
    return {"graders": sorted(graders), "refused": refused}


def _grade(request: dict[str, Any], where: faults.Where, line: _Line) -> dict[str, Any]:
    module, name = _load(where), request["function"]
    function = None if name.startswith("_") else getattr(module, name, None)
    if not callable(function):
        raise faults.NoSuchFunction(name)
    why_not = names.why_not(function)
    if why_not is not None:
        raise faults.NoGrader(name, why_not)
    value = function(tools.Tools(line, request.get("about") or {}, request["run"]), request["case"], request["run"])
    if inspect.iscoroutine(value):
        value.close()
    return {"answer": answers.read_answer(value)}
