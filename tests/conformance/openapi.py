"""Is what was answered what `/openapi.json` says? A reader of as much JSON Schema as that document uses."""

from __future__ import annotations

import re
from typing import Any

import httpx

Schema = dict[str, Any]

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
    "number": (int, float),
    "integer": (int,),
}
_READ = {
    "$ref", "anyOf", "type", "const", "enum", "properties", "required", "additionalProperties", "items", "pattern",
    "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "description", "format", "examples",
    "default", "maxProperties", "propertyNames",
}  # fmt: skip


class Described:
    """An OpenAPI document, and which of its answers have been seen."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self._paths = [
            (re.compile(re.sub(r"\{\w+\}", "[^/]+", re.sub(r"\.", r"\\.", path))), path) for path in document["paths"]
        ]
        self.seen: set[tuple[str, str, str]] = set()

    def check(self, answer: httpx.Response, body: Any) -> None:
        """AssertionError when the operation does not know the status, the media type, or the shape of the body.

        `body` is the parsed JSON; None where there is none to check. Unknown paths and methods are nobody's promise.
        """
        request = answer.request
        path = next((path for pattern, path in self._paths if pattern.fullmatch(request.url.path)), None)
        operation = self.document["paths"].get(path, {}).get(request.method.lower())
        if operation is None:
            return
        where = f"{request.method} {path} {answer.status_code}"
        described = operation["responses"].get(str(answer.status_code))
        assert described is not None, f"{where} is not in /openapi.json"
        self.seen.add((request.method, str(path), str(answer.status_code)))
        media = answer.headers.get("content-type", "").partition(";")[0]
        assert media in described["content"], f"{where}: {media} is not in /openapi.json"
        for name, header in described.get("headers", {}).items():
            assert not header.get("required") or name in answer.headers, f"{where}: no {name}"
        if body is not None:
            self.match(body, described["content"][media]["schema"], where)

    def match(self, value: Any, schema: Schema, at: str) -> None:
        """AssertionError where `value` is not as `schema` says."""
        assert set(schema) <= _READ, f"{at}: this reader does not know {set(schema) - _READ}"
        if "$ref" in schema:
            self.match(value, self.document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]], at)
            return
        if "anyOf" in schema:
            problems = []
            for one in schema["anyOf"]:
                try:
                    self.match(value, one, at)
                    break
                except AssertionError as problem:
                    problems.append(str(problem))
            else:
                raise AssertionError("; ".join(problems))
        if "type" in schema:
            kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
            fits = any(isinstance(value, _TYPES[kind]) for kind in kinds)
            fits = fits and ("boolean" in kinds or not isinstance(value, bool))  # Python's True is an int
            assert fits, f"{at}: {value!r} is no {kinds}"
        assert "const" not in schema or value == schema["const"], f"{at}: {value!r} is not {schema.get('const')!r}"
        assert "enum" not in schema or value in schema["enum"], f"{at}: {value!r} is none of {schema.get('enum')}"
        if isinstance(value, str):
            assert re.search(schema.get("pattern", ""), value), f"{at}: {value!r} is not like {schema['pattern']}"
        if isinstance(value, int | float) and not isinstance(value, bool):
            assert value >= schema.get("minimum", value), f"{at}: {value} is too small"
            assert value <= schema.get("maximum", value), f"{at}: {value} is too large"
        if isinstance(value, dict):
            self._match_object(value, schema, at)
        if isinstance(value, list) and "items" in schema:
            for number, item in enumerate(value):
                self.match(item, schema["items"], f"{at}/{number}")

    def _match_object(self, value: dict[str, Any], schema: Schema, at: str) -> None:
        properties = schema.get("properties", {})
        for name in schema.get("required", ()):
            assert name in value, f"{at}: no {name}"
        rest = schema.get("additionalProperties", True)
        for name, item in value.items():
            if name in properties:
                self.match(item, properties[name], f"{at}/{name}")
            elif isinstance(rest, dict):
                self.match(item, rest, f"{at}/{name}")
            else:
                assert rest, f"{at}: {name} is not in /openapi.json"
