"""What does an API error look like on the wire (RFC 9457), for the server that writes it and the client that reads it?

{"type": "https://api.splox.com/problems/<code>", "title": <status name>, "status", "detail", "code",
 "trace_id"?, "errors"?: [{"name", "location", "reason", "code"}]}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from evalfleet.contract import jsontext

MEDIA_TYPE: Final = "application/problem+json"
TYPE_BASE: Final = "https://api.splox.com/problems/"

# Our own table: http.HTTPStatus renamed 413 and 422 between Python versions, and a title is part of the answer.
TITLES: Final[Mapping[int, str]] = MappingProxyType(
    {
        400: "Bad Request",
        401: "Unauthorized",
        402: "Payment Required",
        403: "Forbidden",
        404: "Not Found",
        405: "Method Not Allowed",
        406: "Not Acceptable",
        408: "Request Timeout",
        409: "Conflict",
        410: "Gone",
        411: "Length Required",
        413: "Content Too Large",
        415: "Unsupported Media Type",
        422: "Unprocessable Entity",
        429: "Too Many Requests",
        431: "Request Header Fields Too Large",
        500: "Internal Server Error",
        501: "Not Implemented",
        502: "Bad Gateway",
        503: "Service Unavailable",
        504: "Gateway Timeout",
    }
)

_STATUS_OF: Final[Mapping[str, int]] = {
    "invalid_json": 400,
    "invalid_body": 400,
    "unknown_field": 400,
    "invalid_parameter": 400,
    "cursor_invalid": 400,
    "cursor_filter_mismatch": 400,
    "idempotency_key_required": 400,
    "idempotency_key_invalid": 400,
    "harness_files_invalid": 400,
    "unauthorized": 401,
    "machine_limit_reached": 402,
    "forbidden": 403,
    "insufficient_balance": 403,
    "not_found": 404,
    "method_not_allowed": 405,
    "not_acceptable": 406,
    "idempotency_key_conflict": 409,
    "idempotency_key_in_flight": 409,
    "interaction_not_pending": 409,
    "evaluation_incomplete": 409,
    "evaluation_completed": 409,
    "evaluation_cancelled": 409,
    "evaluation_not_running": 409,
    "attempt_conflict": 409,
    "event_cursor_expired": 410,
    "body_too_large": 413,
    "unsupported_media_type": 415,
    "validation_failed": 422,  # 400 for the event journal's `limit`
    "interaction_type_mismatch": 422,
    "harness_not_runnable": 422,
    "rate_limited": 429,
    "internal_error": 500,
    "upstream_unavailable": 502,
    "service_unavailable": 503,
}

PROBLEM_TYPES: Final[Mapping[str, tuple[int, str]]] = MappingProxyType(
    {code: (status, TITLES[status]) for code, status in _STATUS_OF.items()}
)
"""code → (its usual HTTP status, that status' title). wire.md's table, and four codes for plain HTTP trouble."""


def title_of(status: int) -> str:
    """The name of an HTTP status; "Error" for one that we do not know."""
    return TITLES.get(status, "Error")


@dataclass(frozen=True, slots=True)
class ProblemField:
    """One entry of `errors[]`. `name`: JSON Pointer (body) or plain name; `location`: body|path|query|header|server."""

    name: str
    location: str
    reason: str
    code: str

    def document(self) -> dict[str, str]:
        return {"name": self.name, "location": self.location, "reason": self.reason, "code": self.code}


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem document with the status and the extra headers it is answered with."""

    status: int
    code: str
    detail: str
    errors: Sequence[ProblemField] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    trace_id: str | None = None

    @classmethod
    def of(
        cls,
        code: str,
        detail: str,
        *,
        errors: Sequence[ProblemField] = (),
        headers: Mapping[str, str] | None = None,
        trace_id: str | None = None,
    ) -> Problem:
        """A problem with the usual status of `code`. KeyError for a code that PROBLEM_TYPES does not hold."""
        status, _title = PROBLEM_TYPES[code]
        return cls(status, code, detail, errors, headers or {}, trace_id)

    def document(self) -> dict[str, Any]:
        """The JSON object; `trace_id` and `errors` only where there are any."""
        document: dict[str, Any] = {
            "type": TYPE_BASE + self.code,
            "title": title_of(self.status),
            "status": self.status,
            "detail": self.detail,
            "code": self.code,
        }
        if self.trace_id is not None:
            document["trace_id"] = self.trace_id
        if self.errors:
            document["errors"] = [error.document() for error in self.errors]
        return document

    def body(self) -> bytes:
        """The document as UTF-8 JSON; always writable, whatever text the detail quotes."""
        return jsontext.dumps(self.document())

    def response_headers(self) -> dict[str, str]:
        """`headers` and the content type; 401 gets its `WWW-Authenticate` (wire.md)."""
        headers = {"Content-Type": MEDIA_TYPE, **self.headers}
        if self.status == 401:
            headers.setdefault("WWW-Authenticate", 'Bearer realm="splox"')
        return headers


@dataclass(frozen=True, slots=True)
class ReadProblem:
    """What could be made out of an error answer's body. `code` is "" if it was no problem document.

    `quota` marks the second kind of 429, a used-up usage window: `retry_after` then comes from the body (seconds).
    """

    code: str
    detail: str
    errors: tuple[dict[str, Any], ...] = ()
    quota: bool = False
    retry_after: float | None = None


QUOTA_CODE: Final = "usage_window_exceeded"


def read_problem(status: int, content_type: str, body: bytes) -> ReadProblem:
    """Read the body of an error answer. Never raises: an unreadable body is a problem without a code (E10)."""
    try:
        document = jsontext.loads(body) if body else None
    except ValueError:
        document = None
    if not isinstance(document, dict):
        shown = content_type.partition(";")[0].strip() or "no content type"
        return ReadProblem("", f"{title_of(status)} ({len(body)} bytes of {shown})")
    code, error = document.get("code"), document.get("error")
    quota = status == 429 and QUOTA_CODE in (code, error)
    detail = next((text for key in ("detail", "message", "error", "title") if _is_text(text := document.get(key))), "")
    fields = document.get("errors")
    return ReadProblem(
        code=QUOTA_CODE if quota else code if isinstance(code, str) else "",
        detail=str(detail) or title_of(status),
        errors=tuple(entry for entry in fields if isinstance(entry, dict)) if isinstance(fields, list) else (),
        quota=quota,
        retry_after=_seconds(document.get("retry_after_seconds")),
    )


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _seconds(value: object) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9:
        return float(value)
    return None
