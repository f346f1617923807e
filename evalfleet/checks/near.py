"""Which known name did somebody probably mean, and are two names the same to a person?"""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable


def folded(name: str) -> str:
    """The form in which ids and case names must differ: NFC and case folding (S3, S7)."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def near_name(seen: str, known: Iterable[str], *, likeness: float = 0.72) -> str | None:
    """The one known name that `seen` is nearest to, or None. `toolCalled`, `tool-called` and `tool_caled` all find
    `tool_called`. `likeness` from 0 to 1, as `difflib` has it."""
    if len(seen) > 100:
        return None
    bare = _bare(seen)
    rated = [
        (difflib.SequenceMatcher(None, _bare(name), bare).ratio(), _shared_start(_bare(name), bare), name)
        for name in known
    ]
    best = max(rated, key=lambda rating: rating[:2], default=None)
    return best[2] if best is not None and best[0] >= likeness else None


def did_you_mean(seen: str, known: Iterable[str]) -> str:
    """`did you mean "x"?`, or nothing. It is a question, so it may be asked of a less near name."""
    near = near_name(seen, known, likeness=0.6)
    return f'did you mean "{near}"?' if near else ""


def _shared_start(one: str, other: str) -> int:
    """Letters in common at the start: of two equally near names, people mean the one that starts alike."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _bare(name: str) -> str:
    return "".join(char for char in name.casefold() if char.isalnum() or char == ".")
