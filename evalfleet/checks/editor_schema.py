"""What can an editor know of a case file? Its JSON Schema (draft 2020-12), made from what the reader goes by.

`evalfleet schema` prints it, `docs/case.schema.json` is it. Whatever the reader accepts, it accepts. It refuses less:
what no schema can say (equal ids, `tool_order` of one tool with itself, a grader that is not there) is for `validate`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from evalfleet.checks.assertions import DECISIONS, EXAMPLES, HOOK_POINTS
from evalfleet.checks.duration import LONGEST, PATTERN
from evalfleet.checks.expectation import FIELDS, Expectation, Field, MinToolCalls
from evalfleet.checks.schema import DEFAULT_KEYS, FILE_KEYS, LONGEST_ID, MOST_TRIALS, SCENARIO_KEYS

_CONTROL = r"\u0000-\u001f\u007f-\u009f\u2028\u2029"
_PLAIN = ["string", "number", "boolean"]
"""Where text is wanted, a plain number or bool is the text that it is spelt with (S1); `null` is nothing."""

_TEXT = {"type": _PLAIN, "pattern": r"\S"}
_NAME = {"type": _PLAIN, "pattern": rf"^(?=.*\S)[^{_CONTROL}]+$"}
_ID = {
    "type": _PLAIN,
    "maxLength": LONGEST_ID,
    "pattern": rf"^[^\s/{_CONTROL}](?:[^/{_CONTROL}]*[^\s/{_CONTROL}])?$",
}
_GRADER = {"type": _PLAIN, "pattern": r"^[^\s./\\]+\.[^\s./\\_-][^\s./\\-]*$"}
_WANTED: Mapping[str, dict[str, Any]] = {
    "name": _NAME,
    "text": _TEXT,
    "count": {"type": "integer", "minimum": 0},
    "number": {"type": "number"},
    "args": {"type": "object"},
    "true": {"const": True},
}
_SPECIAL: Mapping[tuple[str, str], dict[str, Any]] = {
    (MinToolCalls.kind, "count"): {"type": "integer", "minimum": 1},
    ("hook_called", "name"): {"anyOf": [{"enum": list(HOOK_POINTS)}, _NAME]},
    ("hook_called", "decision"): {"anyOf": [{"enum": list(DECISIONS)}, _NAME]},
    ("grader", "name"): _GRADER,
}
"""Where the reader wants more of one field than of its type. A hook may have a name of its own (S22): the known ones
are there to be completed."""

_KEYS: Mapping[str, dict[str, Any]] = {
    "id": _ID,
    "user": {"anyOf": [_TEXT, {"type": "array", "minItems": 1, "items": _TEXT}]},
    "trials": {"type": "integer", "minimum": 1, "maximum": MOST_TRIALS},
    "timeout": {
        "anyOf": [{"type": "string", "pattern": PATTERN}, {"type": "integer", "minimum": 1, "maximum": LONGEST}]
    },
    "expect": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/assertion"}},
}


def case_schema() -> dict[str, Any]:
    """A fresh copy, as JSON."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "evalfleet case file",
        "description": "evals/cases/<name>.yaml: scenarios to play in one conversation, and what must hold afterwards.",
        **_object(
            {
                "defaults": _described("defaults", FILE_KEYS, _object(_own(DEFAULT_KEYS))),
                "scenarios": _described(
                    "scenarios", FILE_KEYS, {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/scenario"}}
                ),
            },
            required=["scenarios"],
        ),
        "$defs": {
            "scenario": {
                "title": "scenario",
                **_object(_own(SCENARIO_KEYS), required=["id", "user", "expect"]),
            },
            "assertion": {
                "title": "assertion",
                "description": "One assertion: one key with its value.",
                **_object({cls.kind: _assertion(cls, fields) for cls, fields in FIELDS.items()}),
                "minProperties": 1,
                "maxProperties": 1,
            },
        },
    }


def _own(keys: Mapping[str, str]) -> dict[str, Any]:
    return {key: _described(key, keys, _KEYS[key]) for key in keys}


def _described(key: str, keys: Mapping[str, str], schema: dict[str, Any]) -> dict[str, Any]:
    return {"title": key, "description": f"{keys[key][0].upper()}{keys[key][1:]}.", **schema}


def _assertion(cls: type[Expectation], fields: tuple[Field, ...]) -> dict[str, Any]:
    described = {"title": cls.kind, "description": f"Passes when {cls.holds}."}
    if fields[0].key == "":
        return {**described, "description": f"{described['description']} {fields[0].says}", **_wanted(cls, fields[0])}
    return {
        **described,
        **_object(
            {field.key: {"description": field.says, **_wanted(cls, field)} for field in fields},
            required=[field.key for field in fields if field.required],
        ),
        "examples": [yaml.safe_load(EXAMPLES[cls.kind])],
    }


def _wanted(cls: type[Expectation], field: Field) -> dict[str, Any]:
    return _SPECIAL.get((cls.kind, field.key)) or _WANTED[field.wants]


def _object(properties: dict[str, Any], required: list[str] | None = None) -> dict[str, Any]:
    """A mapping with these keys and no others."""
    schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    return schema if required is None else {**schema, "required": required}
