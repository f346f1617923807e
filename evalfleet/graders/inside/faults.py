"""What went wrong in a grader, in one short sentence, with what opens the wall that it ran into?

Must never fail and never grow: an exception's own text may raise, or be 100 MB (F09).
"""

# Plain calls: a path object for each name is memory that every forked call would pay for again.
# ruff: noqa: PTH110, PTH117, PTH118, PTH119, PTH120
from __future__ import annotations

import contextlib
import errno
import os
import sys
from types import TracebackType
from typing import Any

from evalfleet.graders.inside import answers

CAGE_COMPLAINT = "the cage could not be closed: "
CAGE_EXIT = 97  # the child's exit code when its walls did not stand: ours, not the grader's
TEXT_CHARS = 500
_FRAMES = 20

_NETWORK_ERRNOS = {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EADDRNOTAVAIL}


class NoSuchFile(Exception):
    pass


class NoSuchFunction(Exception):
    pass


class NoGrader(Exception):
    """`args`: the name, and why what it holds is none."""


class Where:
    """The grader's file, and the cage around it. `shown` is its path as the author knows it."""

    def __init__(self, file: str, root: str, cages: dict[str, bool]) -> None:
        self.file = file
        self.root = root
        self.cages = cages
        self.stem = os.path.basename(file)[:-3]
        self.shown = f"evals/graders/{self.stem}.py"


def sentence(error: BaseException, where: Where) -> str:
    """One line for `error`; prints its last frames to stderr, which becomes the call's log."""
    trace, error.__traceback__ = error.__traceback__, None
    own_line, frames, in_environ = _walk(trace, where)
    del trace  # frees what the frames held, after a MemoryError
    if isinstance(error, NoSuchFile):
        return f"there is no {where.shown}"
    if isinstance(error, NoSuchFunction):
        return f"AttributeError: {where.shown} has no public function {error.args[0]!r}"
    if isinstance(error, NoGrader):
        return f"{where.shown}: {error.args[0]} {error.args[1]}"
    if isinstance(error, answers.Malformed):
        return str(error)
    if isinstance(error, SystemExit):
        what = f"called sys.exit({answers.describe(error.code) if error.code is not None else ''})"
    elif isinstance(error, SyntaxError):
        what = f"{type(error).__name__}: {answers.cut(str(error.msg), TEXT_CHARS)}"
        if error.filename == where.file and error.lineno is not None:
            own_line = error.lineno
    else:
        text = _text(error)
        what = answers.cut(type(error).__name__, 100) + (f": {text}" if text else "")
    place = f" ({where.shown}, line {own_line})" if own_line else ""
    _print_frames(frames, what)
    return what + place + _hint(error, where, in_environ)


def _text(error: BaseException) -> str:
    try:
        text = str(error)
    except BaseException as second:  # noqa: BLE001 - F09: an exception whose text raises
        return f"(its text cannot be read: {answers.cut(type(second).__name__, 100)})"
    first, _, rest = text[: TEXT_CHARS * 2].partition("\n")
    return answers.cut(first + (" …" if rest else "") if len(text) <= TEXT_CHARS * 2 else text, TEXT_CHARS)


def _walk(trace: TracebackType | None, where: Where) -> tuple[int | None, list[str], bool]:
    own_line, frames, in_environ = None, [], False
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename == where.file:
            own_line = trace.tb_lineno
        in_environ = code.co_name == "__getitem__" and os.path.basename(code.co_filename) == "os.py"
        in_environ = in_environ or (code.co_name == "__getitem__" and code.co_filename == "<frozen os>")
        if own_line is not None:  # from the grader's own code on; what called it is ours
            shown = os.path.relpath(code.co_filename, where.root) if os.path.isabs(code.co_filename) else "…"
            shown = code.co_filename if shown.startswith("..") else shown
            frames.append(f'  File "{shown}", line {trace.tb_lineno}, in {code.co_name}')
            if len(frames) > _FRAMES:
                del frames[_FRAMES // 2]
        trace = trace.tb_next
    return own_line, frames, in_environ


def _print_frames(frames: list[str], what: str) -> None:
    with contextlib.suppress(OSError):  # the grader may have closed it; the sentence says enough
        os.write(2, ("\n".join([*frames, what]) + "\n").encode("utf-8", "backslashreplace"))


def _hint(error: BaseException, where: Where, in_environ: bool) -> str:
    """Which setting opens what stopped it (S28)."""
    chain: BaseException | None = error
    seen: list[Any] = []
    while chain is not None and len(seen) < 10:
        seen.append(chain)
        chain = chain.__cause__ or chain.__context__
    if any(isinstance(one, MemoryError) for one in seen):
        return "; it reached its memory limit, `memory` under [graders] raises it"
    if in_environ and isinstance(error, KeyError):
        return f"; graders see no variable but those named in `env` under [graders], e.g. env = [{error.args[0]!r}]"
    if isinstance(error, ModuleNotFoundError) and error.name:
        if os.path.exists(os.path.join(os.path.dirname(where.file), error.name.split(".")[0] + ".py")):
            return f"; the graders' own folder is not on the path: import evals.graders.{error.name} instead"
        return f"; graders run on {sys.executable}, `python` under [graders] names another"
    for one in seen:
        if not isinstance(one, OSError):
            continue
        if where.cages["network_closed"] and (one.errno in _NETWORK_ERRNOS or type(one).__name__ == "gaierror"):
            return "; graders have no network, `network = true` under [graders] opens it"
        if one.errno == errno.ENOENT and not os.path.isabs(str(one.filename or "/")):
            return "; graders see evals/, the harness's files, and the globs in `files` under [graders]"
        if one.errno in (errno.EROFS, errno.EACCES) and one.filename:
            return "; the tree is a read-only copy, tempfile.gettempdir() is a folder to write in"
        if one.errno == errno.EMFILE:
            return "; a grader may hold 1024 open files"
        if one.errno == errno.EFBIG:
            return "; a grader may write files of 256 MiB"
    return ""
