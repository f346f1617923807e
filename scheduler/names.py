"""Are `worker` and `scheduler` ours?

Both are the customer's own names for these packages, and generic enough to collide with a user's. A collision must be
one clear sentence at the start, not an AttributeError in the middle.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import evalfleet
from evalfleet.errors import UnfitHost

OURS = ("scheduler", "worker")


def check_names(names: Sequence[str] = OURS, *, home: Path | None = None) -> None:
    """UnfitHost when one of our packages resolves to somebody else's files. Imports none of them.

    `home` is the folder that must hold them: the one that holds `evalfleet/`.
    """
    home = home or Path(evalfleet.__file__).resolve().parent.parent
    for name in names:
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):  # a module of that name is loaded and has no place
            spec = None
        origin = spec.origin if spec is not None else None
        expected = home / name / "__init__.py"
        if origin is None or Path(origin).resolve() != expected:
            raise UnfitHost(
                f"the package `{name}` resolves to {origin or 'nothing'} and not to evalfleet's own ({expected}): "
                "start it as `evalfleet …` (or `python -P -m …`), without PYTHONPATH, from an environment of its own "
                "(pipx, uv tool)"
            )
