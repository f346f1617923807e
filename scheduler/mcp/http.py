"""How is the same served over streamable HTTP, and who may call it?

Whoever has a token of `evalfleet server`: that of EVALFLEET_TOKEN, or one of the database (`evalfleet token`). A page
in a browser may not, with or without one: its `Origin` is refused, and on a loopback address so is a `Host` that is not
this machine's (DNS rebinding).
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from urllib.parse import urlsplit

from mcp.server.transport_security import TransportSecuritySettings
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from evalfleet.errors import UsageError
from evalfleet.server.accounts import Accounts
from evalfleet.server.gate import Gate
from evalfleet.server.process import (
    ACCOUNT,
    Options,
    Server,
    database_url,
    listen,
    make_state,
    open_store,
    uvicorn_config,
)
from scheduler.mcp.protocol import Running, make_server
from scheduler.mcp.workspace import Workspace

PATH = "/mcp"
_LOCAL = ("127.0.0.1", "localhost", "[::1]")


def read_place(text: str) -> tuple[str, int]:
    """`HOST:PORT`, `[::1]:8090`. UsageError for anything else."""
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or port is None or parts.path or parts.username is not None:
        raise UsageError(f"--http {text!r}: write HOST:PORT, as in 127.0.0.1:8090")
    return host, port


async def serve_http(
    workspace: Workspace,
    place: tuple[str, int],
    *,
    token: str | None,
    database: str | None,
    announce: Callable[[str], None],
) -> None:
    """Until SIGINT or SIGTERM; calls in flight are ended as by Ctrl-C, and answered."""
    running = Running()
    server = make_server(workspace, running)
    local = is_loopback(place[0])
    app = server.streamable_http_app(streamable_http_path=PATH, transport_security=_security(local=local))
    state = workspace.state or workspace.config().root / ".evalfleet"
    with contextlib.closing(listen(*place)) as listener:
        async with _accounts(state.resolve(), token, database) as accounts, server.session_manager.run():
            web = Server(uvicorn_config(Gate(NoPages(app, local=local), accounts)))
            stop = asyncio.Event()

            def told(number: int) -> None:
                running.interrupt(number)
                stop.set()

            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, told, number)
            serving = asyncio.create_task(web.serve(sockets=[listener]))
            await web.accepting.wait()
            host, port = listener.getsockname()[:2]
            announce(f"listening on http://{f'[{host}]' if ':' in host else host}:{port}{PATH}")
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            await running.none()
            web.leave()
            await serving


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _security(*, local: bool) -> TransportSecuritySettings:
    """Elsewhere than on loopback this machine's names are not known here; there the token and `NoPages` stand."""
    return TransportSecuritySettings(
        enable_dns_rebinding_protection=local,
        allowed_hosts=[form for host in _LOCAL for form in (host, f"{host}:*")],
        allowed_origins=[form for host in _LOCAL for form in (f"http://{host}", f"http://{host}:*")],
    )


class NoPages:
    """Refuses what a browser sends for a page, but for one of this machine where the server is for this machine."""

    def __init__(self, app: ASGIApp, *, local: bool) -> None:
        self._app = app
        self._local = local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origins = [value for name, value in scope.get("headers", ()) if name == b"origin"]
        if not all(self._local and _is_local(origin) for origin in origins):
            refusal = PlainTextResponse("A page of another origin may not call this server.", 403)
            await refusal(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _is_local(origin: bytes) -> bool:
    try:
        host = urlsplit(origin.decode("ascii")).hostname
    except ValueError:
        return False
    return host is not None and is_loopback(host)


@contextlib.asynccontextmanager
async def _accounts(state: Path, token: str | None, database: str | None) -> AsyncIterator[Accounts]:
    """Whose token is whose, as a server with the same settings knows it. CredentialError when there is none at all."""
    make_state(state)
    url = database_url(Options(trees=[], token=token, state=state, database=database))
    store = await open_store(url, fixed_token=token is not None)
    try:
        yield Accounts(store, {} if token is None else {token: ACCOUNT})
    finally:
        await store.aclose()
