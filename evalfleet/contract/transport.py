"""How does one request go out over HTTP, and what came back?

The only module that knows the HTTP library: httpx's face over aiohttp's transport (decision 003). It sends one request
once. Whether to send it again is for `retry`, what the answer means for `client` and `follow`.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
import sys
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Final
from urllib.parse import urlencode, urlsplit

# httpx imports its own command line when click and rich are installed, as they are beside us: 0.13 s that every process
# of ours would pay at its start. None in its place reads as "not installed", and httpx goes without.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport

from evalfleet.contract.clock import ClockOffset
from evalfleet.contract.outbound import ProxySetting, way_to
from evalfleet.contract.retry import http_date, retry_after_seconds
from evalfleet.errors import CredentialError, SettingError, UnreadableAnswer

MAX_CONNECTIONS: Final = 10_000
KEEPALIVE_SECONDS: Final = 15.0
MAX_ANSWER_BYTES: Final = 256 * 1024 * 1024
"""The largest answer body that is read, after decompression; a stream has the decoder's limits instead."""

PIECE_BYTES: Final = 256 * 1024

_ENCODINGS: Final = frozenset({"", "identity", "gzip", "deflate"})

# What a broken exchange can raise: httpx' own, what httpx-aiohttp does not translate, and the socket's.
_BROKEN: Final = (httpx.HTTPError, httpx.StreamError, aiohttp.ClientError, OSError)


class NoAnswer(Exception):
    """No whole answer: no connection, one that broke off, or too late. Never leaves this room."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. `cut_unseen`: its end was told by the connection's end only, so that a cut would not show."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    cut_unseen: bool = False

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    def retry_after(self) -> float | None:
        """Seconds to wait, if told; a date is read against the answer's own `Date` where it has one."""
        now = http_date(self.headers.get("date"))
        return retry_after_seconds(self.headers.get("retry-after"), now=time.time() if now is None else now)


class StreamAnswer:
    """An answer whose body is read as it comes. Close it, whatever happens."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self._chunks: AsyncIterator[bytes] = response.aiter_bytes()
        self.status = response.status_code
        self.headers: Mapping[str, str] = response.headers

    async def chunk(self, within: float) -> bytes | None:
        """The next bytes, None at the end. NoAnswer if the transfer breaks or nothing comes within `within` seconds."""
        try:
            async with asyncio.timeout(within):
                return await anext(self._chunks, None)
        except TimeoutError as late:
            raise NoAnswer(f"nothing came for {within:.3g} s") from late
        except _BROKEN as broken:
            raise NoAnswer(_words(broken)) from broken

    async def rest(self, within: float, *, most: int = MAX_ANSWER_BYTES) -> Answer:
        """Read to the end: for an answer that turned out to be no stream."""
        parts, size = [], 0
        try:
            async with asyncio.timeout(within):
                async for part in self._chunks:
                    size += len(part)
                    if size > most:
                        raise UnreadableAnswer(f"the answer is larger than {most} bytes")
                    parts.append(part)
        except TimeoutError as late:
            raise NoAnswer("the answer did not end in time") from late
        except _BROKEN as broken:
            raise NoAnswer(_words(broken)) from broken
        framed = "content-length" in self.headers or "transfer-encoding" in self.headers
        return Answer(self.status, self.headers, b"".join(parts), cut_unseen=not framed)

    async def aclose(self) -> None:
        """Give the connection back if the body was read to its end, else close it."""
        try:
            await self._response.aclose()
        except _BROKEN:
            # The connection is broken and gone: that is what closing wanted. The reader was told when it read.
            return


class Transport:
    """Connections to one API. One for each process and loop: it is made anywhere, but used on one loop only.

    SettingError where the environment names a proxy or certificates for it that cannot be used (`outbound`).
    """

    def __init__(self, base_url: str, token: str, *, connect_timeout: float, user_agent: str) -> None:
        self.base_url = checked_base_url(base_url)
        self.clock = ClockOffset()
        self._timeout = httpx.Timeout(None, connect=connect_timeout, pool=2 * connect_timeout)
        self._headers = {
            "Authorization": f"Bearer {checked_token(token)}",
            "User-Agent": user_agent,
            "Accept": "application/json",
            "Accept-Encoding": "gzip, deflate",
        }
        proxy, verify = way_to(self.base_url)
        limits = httpx.Limits(max_connections=MAX_CONNECTIONS, keepalive_expiry=KEEPALIVE_SECONDS)
        self._client = httpx.AsyncClient(
            transport=AiohttpTransport(
                verify=verify, limits=limits, proxy=httpx_proxy(proxy), client=lambda: _session(verify)
            ),
            headers=self._headers,
            timeout=self._timeout,
            cookies=CookieJar(policy=DefaultCookiePolicy(allowed_domains=[])),  # none: the token is all that we carry
            trust_env=False,  # no .netrc: the token is the whole truth; proxies are read above
            follow_redirects=False,
        )

    async def open(
        self,
        method: str,
        path: str,
        *,
        within: float,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> StreamAnswer:
        """Send a request and return at the answer's first byte. NoAnswer without one within `within` seconds."""
        url = self.base_url + path + ("?" + urlencode(params) if params else "")
        content: bytes | AsyncIterator[bytes] | None = body
        if body is not None and len(body) > PIECE_BYTES:
            content, headers = _pieces(body), {**(headers or {}), "Content-Length": str(len(body))}
        request = self._client.build_request(method, url, headers=headers, content=content)
        sent = time.time()
        try:
            async with asyncio.timeout(within):
                response = await self._client.send(request, stream=True)
        except TimeoutError as late:
            raise NoAnswer(f"no answer within {within:.3g} s") from late
        except _BROKEN as broken:
            raise NoAnswer(_words(broken)) from broken
        self.clock.learn(response.headers.get("date"), sent=sent, received=time.time())
        answer = StreamAnswer(response)
        encoding = response.headers.get("content-encoding", "").strip().lower()
        if encoding not in _ENCODINGS:
            await answer.aclose()
            raise UnreadableAnswer(f"{method} {path}: the answer is {encoding}-encoded, which was not asked for")
        return answer

    async def exchange(
        self,
        method: str,
        path: str,
        *,
        within: float,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> Answer:
        """Send a request and read the whole answer. NoAnswer if that does not come about within `within` seconds."""
        until = time.monotonic() + within
        stream = await self.open(method, path, within=within, params=params, headers=headers, body=body)
        try:
            return await stream.rest(max(0.0, until - time.monotonic()))
        finally:
            await stream.aclose()

    async def aclose(self) -> None:
        await self._client.aclose()


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    """A large body in pieces, so that writing it does not hold up the loop (aiohttp warns of whole ones over 1 MiB)."""
    for start in range(0, len(body), PIECE_BYTES):
        yield body[start : start + PIECE_BYTES]


def checked_base_url(base_url: str) -> str:
    """The base URL without a trailing slash. SettingError says what is wrong with it; never shows a password."""
    try:
        parts = urlsplit(base_url)
        host, _port = parts.hostname, parts.port
    except ValueError as wrong:
        raise SettingError("base_url", f"is no URL ({wrong})") from wrong
    if parts.username is not None or parts.password is not None:
        raise SettingError("base_url", "holds a user name: leave it out, the API takes a bearer token only")
    if parts.scheme not in {"http", "https"} or not host:
        raise SettingError("base_url", f"is {base_url!r}: write http://… or https://… with a host")
    if parts.query or parts.fragment or any(character.isspace() for character in base_url):
        raise SettingError("base_url", f"is {base_url!r}: leave out blanks, `?` and `#`")
    return base_url.rstrip("/")


def checked_token(token: str) -> str:
    """The token as it goes into the header. CredentialError if it cannot; never shows it."""
    if not token:
        raise CredentialError("the API token is empty")
    if not all("!" <= character <= "~" for character in token):
        raise CredentialError("the API token holds a blank, a line end or a character that a header cannot carry")
    return token


def _session(verify: ssl.SSLContext) -> aiohttp.ClientSession:
    """Made on the loop, at the first request."""
    connector = aiohttp.TCPConnector(limit=MAX_CONNECTIONS, keepalive_timeout=KEEPALIVE_SECONDS, ssl=verify)
    return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False)


def httpx_proxy(proxy: ProxySetting | None) -> httpx.Proxy | None:
    """The environment's proxy, as the HTTP library takes it."""
    if proxy is None:
        return None
    # The transport's own way of passing a user on is deprecated; it moves this header to where the proxy reads it.
    headers = {}
    if proxy.auth is not None:
        headers["Authorization"] = f"Basic {base64.b64encode(':'.join(proxy.auth).encode()).decode()}"
    return httpx.Proxy(proxy.url, headers=headers)


def _words(broken: BaseException) -> str:
    """What broke, in the words of the deepest cause that has any: httpx' own are often empty."""
    words = ""
    cause: BaseException | None = broken
    while cause is not None:
        words = str(cause).strip() or words
        cause = cause.__cause__
    return f"{type(broken).__name__}: {words}" if words else type(broken).__name__
