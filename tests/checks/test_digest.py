"""Digests that suite versions and pins stand on (S10, S34)."""

from __future__ import annotations

from typing import Any

import pytest

from evalfleet.checks import canonical, digest


def test_the_spelling_is_frozen() -> None:
    """Were this to change, every suite would seem to be another one."""
    document = {"b": [1, 1.0, 0.1, True, None], "a": {"é": "x\n", "A": ""}}
    assert canonical(document) == '{"a":{"A":"","é":"x\\n"},"b":[1,1.0,0.1,true,null]}'.encode()
    assert digest(document) == "3747d84688314081de61a4c2dc2f49d95917708d3f0d4f6e2fe86ad41a24fb60"


@pytest.mark.parametrize(
    ("document", "error"),
    [
        ({1: "x"}, TypeError),
        ([{None: 1}], TypeError),
        ({"a": {1, 2}}, TypeError),
        (float("nan"), ValueError),
        (float("inf"), ValueError),
        ("\ud800", ValueError),
    ],
    ids=str,
)
def test_what_no_json_file_can_hold_has_no_digest(document: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        digest(document)
