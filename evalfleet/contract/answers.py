"""What does an HTTP answer say: a document, or which error?"""

from __future__ import annotations

from typing import Any
from urllib.parse import urljoin, urlsplit

from evalfleet.contract import jsontext
from evalfleet.contract.problems import read_problem, title_of
from evalfleet.contract.transport import Answer, NoAnswer
from evalfleet.errors import ProblemAnswer, UnreadableAnswer


def problem_answer(request: str, answer: Answer, *, url: str = "") -> ProblemAnswer:
    """The error that an answer outside 2xx stands for. `request` is "METHOD /path", `url` what was asked in full.

    A redirect is one too: following it would send the token to whoever it names.
    """
    if 300 <= answer.status < 400:
        target = urlsplit(urljoin(url, answer.headers.get("location", "")))
        host = f"{target.scheme}://{target.netloc.rpartition('@')[2]}" if target.netloc else "nowhere"
        detail = f"{title_of(answer.status)}: redirects are not followed; it leads to {host}: set the base URL to it"
        return ProblemAnswer(answer.status, "", detail, request=request)
    read = read_problem(answer.status, answer.headers.get("content-type", ""), answer.body)
    told = answer.retry_after()
    return ProblemAnswer(
        answer.status,
        read.code,
        read.detail,
        errors=read.errors,
        retry_after=read.retry_after if told is None else told,
        quota=read.quota,
        request=request,
    )


def document_of(request: str, answer: Answer) -> dict[str, Any]:
    """The JSON object in a 2xx answer.

    NoAnswer if it may have been cut (its length was not told), UnreadableAnswer if it is whole and no JSON object.
    """
    try:
        document = jsontext.loads(answer.body)
    except ValueError as wrong:
        if answer.cut_unseen:
            raise NoAnswer(f"the answer ended after {len(answer.body)} bytes, which are no whole JSON") from wrong
        kind = answer.content_type or "of no type"
        raise UnreadableAnswer(
            f"{request}: {answer.status} with {len(answer.body)} bytes that are no JSON ({kind}); "
            "does the base URL name the API, and does no proxy answer in its place?"
        ) from wrong
    if not isinstance(document, dict):
        raise UnreadableAnswer(f"{request}: {answer.status} with a JSON {type(document).__name__}, not an object")
    return document


def page_of(request: str, document: dict[str, Any]) -> dict[str, Any]:
    """The document, if it has the shape of a page; UnreadableAnswer otherwise. A null `data` is an empty one (E10)."""
    if document.get("data", ...) is None:
        document["data"] = []
    data, page = document.get("data"), document.get("page")
    if not isinstance(data, list) or not all(isinstance(row, dict) for row in data) or not isinstance(page, dict):
        raise UnreadableAnswer(
            f"{request}: the answer is no page; it has {', '.join(sorted(document)[:8]) or 'nothing'}"
        )
    return document
