"""Which walls can this kernel put around a grader, and how are they raised?

Thin names over system calls that Python 3.8 does not have (`os.unshare` is 3.12). Everything here raises OSError where
the kernel refuses; who calls decides what that means. Linux only but for `IS_LINUX`.
"""

from __future__ import annotations

import ctypes
import os
import sys

IS_LINUX = sys.platform.startswith("linux")

CLONE_NEWNS = 0x00020000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38

_MS_RDONLY = 1
_MS_REMOUNT = 32
_MS_BIND = 4096
_MS_REC = 16384
_MS_PRIVATE = 1 << 18
_MS_RELATIME = 1 << 21
_ST_RELATIME = 4096
_ST_SAME_AS_MS = 2 | 4 | 8 | 1024 | 2048  # nosuid, nodev, noexec, noatime, nodiratime: same bits in statvfs and mount

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, call: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    _check(_libc.unshare(ctypes.c_int(flags)), "unshare")


def setns(descriptor: int, kind: int) -> None:
    _check(_libc.setns(ctypes.c_int(descriptor), ctypes.c_int(kind)), "setns")


def _prctl(option: int, value: int) -> None:
    zero = ctypes.c_ulong(0)
    _check(_libc.prctl(ctypes.c_int(option), ctypes.c_ulong(value), zero, zero, zero), "prctl")


def die_with_parent(signal_number: int) -> None:
    _prctl(_PR_SET_PDEATHSIG, signal_number)


def become_subreaper() -> None:
    """Orphans among our descendants become our children instead of init's, so that they can be found and ended."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def enter_user_namespace(flags: int) -> None:
    """A user namespace (and those in `flags`) in which the same uid and gid stand, with every capability inside."""
    uid, gid = os.geteuid(), os.getegid()
    unshare(CLONE_NEWUSER | flags)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        descriptor = os.open("/proc/self/" + name, os.O_WRONLY)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)


def _mount(source: bytes, target: bytes, flags: int) -> None:
    _check(_libc.mount(source, target, None, ctypes.c_ulong(flags), None), "mount")


def make_read_only(folder: str) -> None:
    """Bind `folder` on itself, read-only, in our own mount namespace: file modes do not stop the owner, this does."""
    path = os.fsencode(folder)
    _mount(b"none", b"/", _MS_REC | _MS_PRIVATE)
    _mount(path, path, _MS_BIND | _MS_REC)
    seen = os.statvfs(folder).f_flag
    kept = seen & _ST_SAME_AS_MS  # a mount that came from the parent namespace may not lose these
    if seen & _ST_RELATIME:
        kept |= _MS_RELATIME
    _mount(b"none", path, _MS_BIND | _MS_REMOUNT | _MS_RDONLY | kept)


class _CapHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _CapData(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


# Made once, before any fork: ctypes takes 0.15 ms for them, and every call's process would pay it.
_CAPSET = _libc.capset if IS_LINUX else None
_CAPABILITIES = ctypes.byref(_CapHeader(0x20080522, 0)), ctypes.byref((_CapData * 2)())


def drop_privileges() -> None:
    """No capability from here on, and none to gain by starting a set-uid program. Linux only."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    assert _CAPSET is not None
    _check(_CAPSET(*_CAPABILITIES), "capset")
