"""Whatever is sent to any route: no 5xx, no status and no shape that `/openapi.json` does not know.

Requests are made from that document: valid ones, ones with something changed, and bytes that are no request at all.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evalfleet.server.openapi import document
from tests.conformance.conftest import Caller, assert_problem, attempt, calling
from tests.conformance.deployments import deployed
from tests.conformance.openapi import Described

OPERATIONS = [
    (method.upper(), path, operation)
    for path, operations in document()["paths"].items()
    for method, operation in operations.items()
]
SCHEMAS = document()["components"]["schemas"]
EXAMPLES = 25

_odd = st.sampled_from(
    ["", " ", "\x00", "\ud800", "\u2028", "é", "0", "-1", "1e999", "../..", "%00", "null", "x" * 2000]
)
_text = st.one_of(_odd, st.text(max_size=20))
_json = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), _text),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(_text, inner, max_size=3)),
    max_leaves=8,
)
_header = st.text(st.characters(min_codepoint=0x21, max_codepoint=0xFF, exclude_categories=["Cc"]), max_size=300)


def fitting(schema: dict[str, Any], ids: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    """Values that a schema takes; where it asks for an id, some of ours."""
    if "$ref" in schema:
        return fitting(SCHEMAS[schema["$ref"].rpartition("/")[2]], ids)
    if "anyOf" in schema:
        return st.one_of([fitting(one, ids) for one in schema["anyOf"]])
    if "const" in schema:
        return st.just(schema["const"])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if " id, or its UUID" in schema.get("description", ""):
        return ids
    kind = schema.get("type")
    if kind == "string":
        pattern = schema.get("pattern")
        plain = st.text(min_size=schema.get("minLength", 0), max_size=30)
        return plain if pattern in (None, r"\S") else st.from_regex(pattern)
    if kind == "integer":
        return st.integers(schema.get("minimum", -5), schema.get("maximum", 200))
    if kind == "array":
        return st.lists(fitting(schema["items"], ids), min_size=schema.get("minItems", 0), max_size=4)
    if kind == "object" and "properties" in schema:
        parts = {name: fitting(one, ids) for name, one in schema["properties"].items()}
        required = {name: parts.pop(name) for name in schema["required"]}
        return st.fixed_dictionaries(required, optional=parts)
    if kind == "object":
        return st.dictionaries(_text, _json, max_size=3)
    return _json


@st.composite
def changed(draw: st.DrawFn, values: st.SearchStrategy[Any]) -> Any:
    """A value with one node of it replaced, removed or added."""
    holder: Any = [draw(values)]
    node, key = holder, 0
    while isinstance(node[key], dict | list) and node[key] and draw(st.booleans()):
        node = node[key]
        key = draw(st.sampled_from(sorted(node) if isinstance(node, dict) else range(len(node))))
    act = draw(st.sampled_from(["replace", "remove", "add"]))
    if act == "add" and isinstance(node[key], dict):
        node[key][draw(_text)] = draw(_json)
    elif act == "remove" and node is not holder:
        node.pop(key)
    else:
        node[key] = draw(_json)
    return holder[0]


@st.composite
def requests(draw: st.DrawFn, method: str, path: str, operation: dict[str, Any], known: list[str]) -> dict[str, Any]:
    """The keywords of one `httpx` request."""
    ids = st.one_of(st.sampled_from(known), _text)
    headers: dict[str, bytes] = {}
    query: list[tuple[str, str]] = []
    for parameter in operation.get("parameters", ()):
        fits = draw(st.integers(0, 3)) > 0
        if parameter["in"] == "path":
            value = draw(ids if fits else _text).encode("utf-8", "replace").decode() or "x"
            path = path.replace("{" + parameter["name"] + "}", httpx.URL("/", params={"x": value}).query.decode()[2:])
        elif parameter["in"] == "query" and draw(st.booleans()):
            value = str(draw(fitting(parameter["schema"], ids) if fits else _text))
            query.append((parameter["name"], value.encode("utf-8", "replace").decode()))
        elif parameter["in"] == "header" and draw(st.integers(0, 4)):
            value = draw(st.from_regex(r"\A[!-~]{1,255}\Z") if fits else _header)
            headers[parameter["name"]] = value.encode("latin-1")
    if draw(st.integers(0, 3)) == 0:
        accept = st.sampled_from(["text/event-stream", "application/json", "*/*;q=0", ",;,", "text/html"])
        headers["Accept"] = draw(st.one_of(accept, _header)).encode("latin-1")
    if draw(st.integers(0, 3)) == 0:
        headers["X-Request-Id"] = draw(_header).encode("latin-1")
    keywords: dict[str, Any] = {"method": method, "url": path, "params": query, "headers": headers}
    if "requestBody" in operation or draw(st.integers(0, 5)) == 0:
        keywords["content"] = draw(_bodies(operation, ids))
        headers["Content-Type"] = draw(
            st.sampled_from([b"application/json"] * 5 + [b"text/plain", b"", b"application/problem+json; charset=x"])
        )
    return keywords


def _bodies(operation: dict[str, Any], ids: st.SearchStrategy[str]) -> st.SearchStrategy[bytes]:
    values: st.SearchStrategy[Any] = _json
    if "requestBody" in operation:
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        values = st.one_of(fitting(schema, ids), changed(fitting(schema, ids)), changed(fitting(schema, ids)), _json)
    return st.one_of(values.map(lambda value: json.dumps(value).encode("ascii")), st.binary(max_size=40))


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Caller]:
    folder = tmp_path_factory.mktemp("fuzz")
    with deployed("sqlite", folder) as target, calling(target, target.token, Described(document())) as caller:
        yield caller


@pytest.fixture(scope="module")
def known(caller: Caller) -> list[str]:
    """Ids that lead somewhere: an ended run and its chat, an open evaluation and an ended one, the harness."""
    run = caller.play()
    open_one, ended = caller.evaluation("ab", k=2), caller.evaluation()
    caller.record(open_one, attempt("a", 0, run))
    caller.end(ended, "cancel")
    commit = run["harness_commit"]
    return [run["id"], run["chat_id"], open_one["id"], ended["id"], caller.harness_id, commit]


@pytest.mark.parametrize(("method", "path", "operation"), OPERATIONS, ids=[f"{m} {p}" for m, p, _ in OPERATIONS])
def test_nothing_that_is_sent_leads_to_a_5xx_or_to_an_answer_that_is_not_described(
    caller: Caller, known: list[str], method: str, path: str, operation: dict[str, Any]
) -> None:
    @settings(
        max_examples=EXAMPLES,
        suppress_health_check=list(HealthCheck),
    )
    @given(requests(method, path, operation, known))
    def send(keywords: dict[str, Any]) -> None:
        answer = caller.send(keywords.pop("method"), keywords.pop("url"), **keywords)
        assert answer.status_code < 500, answer.text
        if answer.status_code >= 400:
            assert_problem(answer, answer.status_code, answer.json()["code"])

    send()


def test_most_of_what_is_described_was_seen(caller: Caller) -> None:
    """The requests above are not all refused at the first check: each operation was met, and most with success."""
    if len({(method, path) for method, path, _ in caller.described.seen}) < len(OPERATIONS):  # type: ignore[union-attr]
        pytest.skip("only a part of this file was run")
    seen = caller.described.seen if caller.described else set()
    succeeded = {(method, path) for method, path, status in seen if status.startswith("2")}
    can = {(m, p) for m, p, operation in OPERATIONS if any(s.startswith("2") for s in operation["responses"])}
    assert len(succeeded) > len(can) * 0.7, can - succeeded


def test_the_known_path_is_still_there_at_the_end(caller: Caller, known: list[str]) -> None:
    assert caller.get(f"/v2/runs/{known[0]}")["id"] == known[0]
    assert caller.get("/readyz") == {"status": "ready"}
