"""How is a service that plays an agent or judges one called, and what does its trouble mean?

One client for each service, over the aiohttp transport (design.md, "HTTP"). It keeps no cookies: a session of one chat
must not reach another. No secret stands in a message.
"""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport

from evalfleet.contract import jsontext
from evalfleet.contract.outbound import way_to
from evalfleet.contract.retry import http_date, retry_after_seconds
from evalfleet.contract.transport import httpx_proxy
from evalfleet.server.drivers.protocol import shorten
from evalfleet.server.driving import Busy, Ended, Failure

CONNECT_TIMEOUT = 10.0
BODY_SHOWN = 64 * 1024  # of an error's body; a sentence of it is shown
_MAX_CONNECTIONS = 10_000
_KEEPALIVE = 4.0  # seconds; many servers close after 5, and a turn must not meet a connection that is just closing
_PIECE = 256 * 1024
# httpx' own, what httpx-aiohttp does not translate (a malformed answer), and the socket's.
_BROKEN = (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL, aiohttp.ClientError, OSError)
_SHOWN = 300


def make_client(url: str) -> httpx.AsyncClient:
    """A client for one service. A turn has no deadline but its caller's; a connection is there within 10 s or not.

    SettingError where the environment names a proxy or certificates for it that cannot be used.
    """
    proxy, verify = way_to(url)
    return httpx.AsyncClient(
        transport=AiohttpTransport(
            verify=verify,
            limits=httpx.Limits(max_connections=_MAX_CONNECTIONS, keepalive_expiry=_KEEPALIVE),
            proxy=httpx_proxy(proxy),
            client=lambda: _session(verify),
        ),
        timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT, pool=CONNECT_TIMEOUT),
        headers={"User-Agent": "evalfleet", "Accept-Encoding": "identity"},
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        trust_env=False,  # no .netrc: the settings say which key goes out
        follow_redirects=False,
    )


def _session(verify: ssl.SSLContext) -> aiohttp.ClientSession:
    """Made on the loop, at the first request."""
    connector = aiohttp.TCPConnector(limit=_MAX_CONNECTIONS, keepalive_timeout=_KEEPALIVE, ssl=verify)
    return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False)


class Lost(Exception):
    """No whole answer came: the service could not be reached, or the connection was lost. `ended`: what the turn comes
    to; it can be asked for again where there was no connection."""

    def __init__(self, url: str, error: Exception) -> None:
        failure = _lost(url, error)
        super().__init__(failure.message)
        self.failure = failure
        self.ended = Ended(failure, Busy(f"the agent's endpoint {failure.message}", again=_is_unconnected(error)))


@asynccontextmanager
async def ask(
    client: httpx.AsyncClient, url: str, body: bytes, headers: Mapping[str, str]
) -> AsyncIterator[httpx.Response]:
    """POST `body`; the answer from its first byte on. Raises Lost. What the `async with` raises itself goes through."""
    sized = {"Content-Length": str(len(body)), **headers}
    try:
        response = await client.send(client.build_request("POST", url, content=_cut(body), headers=sized), stream=True)
    except _BROKEN as error:
        raise Lost(url, error) from error
    try:
        yield response
    finally:
        # A connection that is broken already needs no closing; its reader has been told.
        with suppress(*_BROKEN):
            await response.aclose()


async def pieces(url: str, response: httpx.Response) -> AsyncGenerator[bytes]:
    """The body as it comes. Raises Lost."""
    try:
        async for piece in response.aiter_bytes():
            yield piece
    except _BROKEN as error:
        raise Lost(url, error) from error


async def _cut(body: bytes) -> AsyncIterator[bytes]:
    """In pieces, so that sending a large body does not hold up the loop (aiohttp warns of whole ones over 1 MiB)."""
    for start in range(0, len(body), _PIECE):
        yield body[start : start + _PIECE]


def address(url: str) -> str:
    """A URL as a message may show it: no user, no password, no query."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{host}{port}{parts.path}"


def media_type(headers: Mapping[str, str]) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()


# The transport makes one error of httpx' of these and of a connection closed before the answer, so its cause is asked.
_UNCONNECTED = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.ClientHttpProxyError)
_OF_A_PROXY = (aiohttp.ClientProxyConnectionError, aiohttp.ClientHttpProxyError)


def _is_unconnected(error: Exception) -> bool:
    """Was there no connection to the service, so that it has seen nothing of the request?"""
    return isinstance(error.__cause__ or error, _UNCONNECTED)


def _lost(url: str, error: Exception) -> Failure:
    """The service could not be reached, or the connection was lost: nobody's answer (S17)."""
    match error:
        case _ if isinstance(error.__cause__ or error, _OF_A_PROXY):
            what = "cannot be reached through the proxy of the environment"
        case _ if _is_unconnected(error):
            what = "cannot be reached"
        case httpx.ConnectTimeout():  # also what the transport makes of a connection closed before the answer
            what = "cannot be reached, or closed the connection before it answered"
        case httpx.ReadError():
            what = "broke off in the middle of its answer"
        case aiohttp.ClientResponseError():
            what = "answered with what is no HTTP"
        case _:
            what = "could not be asked"
    detail = shorten(str(error).replace(url, address(url)), _SHOWN)
    return Failure("upstream_unavailable", f"{address(url)} {what}" + (f": {detail}" if detail else ""), retryable=True)


def status_failure(url: str, status: int, body: bytes, secrets: Iterable[str] = (), *, prefix: str) -> Failure:
    """What a status other than 2xx means for the run (S17). `prefix` starts the code of what is the agent's own."""
    said = _said(body)
    for value in secrets:
        said = said.replace(value, "***")
    said = shorten(said, _SHOWN)
    message = f"{address(url)} answered {status}" + (f": {said}" if said else "")
    if status == 402 or (status == 429 and b"insufficient_quota" in body):
        return Failure("out_of_funds", message)
    if status == 429:
        return Failure("rate_limited", message, retryable=True)
    if status >= 500 or status == 408:
        return Failure("upstream_unavailable", message, retryable=True)
    if status in (401, 403):
        return Failure("agent_unauthorized", f"{message}; the key was refused or is missing")
    return Failure(f"{prefix}_{status}", message)


def refused(url: str, status: int, headers: Mapping[str, str], failure: Failure) -> Ended:
    """What a turn comes to that was answered with such a status. 429 and 503 say that nothing was done for it."""
    if failure.code not in ("rate_limited", "upstream_unavailable"):
        return Ended(failure)
    date = http_date(headers.get("date"))
    seconds = retry_after_seconds(headers.get("retry-after"), now=time.time() if date is None else date)
    limited = status == 429 or (status == 503 and seconds is not None)
    said = "answered" if seconds is None else f"asks to wait {seconds:.0f} s:"
    why = f"the agent's endpoint {address(url)} {said} {status}"
    return Ended(failure, Busy(why, seconds, limited, again=status in (429, 503)))


async def read_some(url: str, response: httpx.Response, limit: int = BODY_SHOWN) -> bytes:
    """The start of a body, for a message. Raises Lost."""
    body = b""
    async with aclosing(pieces(url, response)) as coming:
        async for piece in coming:
            body += piece
            if len(body) >= limit:
                break
    return body[:limit]


def _said(body: bytes) -> str:
    """The sentence in an error's body: OpenAI's `error.message`, a problem's `detail`, or its text."""
    text = body.decode("utf-8", errors="replace").strip()
    try:
        document: Any = jsontext.loads(text) if text.startswith("{") else None
    except ValueError:
        document = None
    if isinstance(document, dict):
        inner = document.get("error", document)
        if isinstance(inner, str):
            return inner
        if isinstance(inner, dict):
            for key in ("message", "detail", "title"):
                if isinstance(inner.get(key), str) and inner[key]:
                    return str(inner[key])
        return json.dumps(document)
    return " ".join(text.split())
