"""Which paths does a glob of `evalfleet.toml` mean?

The same on every Python: `pathlib` and `glob` changed what `**` takes between 3.12 and 3.13.
"""

from __future__ import annotations

import re


def glob_pattern(glob: str) -> re.Pattern[str]:
    """A path glob: `*` and `?` within one folder, `**` over any number of them, `[abc]`.

    A folder's name takes all below it: `agents/**` and `agents` are the same; matching is case-sensitive.
    """
    parts = [part for part in glob.rstrip("/").split("/") if part not in ("", ".")]
    pattern = ""
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        if part == "**":
            pattern += ".*" if last else "(?:[^/]+/)*"
        else:
            pattern += _segment(part) + ("" if last else "/")
    return re.compile(rf"(?s:{pattern})(?:/.*)?\Z", re.DOTALL)


def reaches_into(glob: str, folder: str) -> bool:
    """Whether the glob may mean something below `folder`, by the names before its first wildcard: a walk that asks does
    not read a whole tree for `data/*.json`."""
    names = []
    for part in glob.rstrip("/").split("/"):
        if any(sign in part for sign in "*?["):
            break
        names += [part] if part not in ("", ".") else []
    parts = folder.split("/")
    shorter = min(len(parts), len(names))
    return parts[:shorter] == names[:shorter]


def _segment(part: str) -> str:
    out, at = "", 0
    while at < len(part):
        character = part[at]
        at += 1
        if character == "*":
            out += "[^/]*"
        elif character == "?":
            out += "[^/]"
        elif character == "[" and (end := part.find("]", at + 1)) > 0:
            inside = part[at:end].replace("\\", "\\\\").replace("[", "\\[")
            out += "(?!/)[" + ("^" + inside[1:] if inside.startswith("!") else inside.replace("^", "\\^", 1)) + "]"
            at = end + 1
        else:
            out += re.escape(character)
    return out
