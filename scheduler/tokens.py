"""What does a server's operator type to let somebody in, and to put them out again?

`evalfleet token` works on the server's database, also while that server runs: a new token works at once, a revoked one
for 2 s more.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evalfleet.errors import UsageError

if TYPE_CHECKING:
    from evalfleet.server.accounts import Token

Database = Annotated[
    str | None,
    typer.Option(
        "--database",
        envvar="EVALFLEET_DATABASE_URL",
        metavar="URL",
        help="The server's database.",
        show_default="SQLite in the state",
    ),
]
State = Annotated[
    Path | None,
    typer.Option(
        "--state", envvar="EVALFLEET_STATE", metavar="DIR", help="The server's state.", show_default=".evalfleet"
    ),
]
AsJson = Annotated[bool, typer.Option("--json", envvar="EVALFLEET_JSON", help="One JSON object on stdout.")]


def token_app(command: Callable[[Callable[..., Any]], Callable[..., None]], tell: Callable[[str], None]) -> typer.Typer:
    """The commands. `command` turns errors into exit codes (S36), `tell` prints on stdout."""
    app = typer.Typer(help="Tokens of a server's accounts.", no_args_is_help=True, rich_markup_mode=None)

    @app.command()
    @command
    def create(
        name: Annotated[str, typer.Argument(help="Who or what uses it.")],
        account: Annotated[str, typer.Option("--account", metavar="A", help="Whose it is.")] = "main",
        expires: Annotated[
            str | None, typer.Option("--expires", metavar="SPAN", help="Like 90d, 12h.", show_default="never")
        ] = None,
        database: Database = None,
        state: State = None,
    ) -> None:
        """Make a token and print it; it is never shown again."""
        tell(create_token(name, account=account, expires=expires, database=database, state=state))

    @app.command("list")
    @command
    def list_(database: Database = None, state: State = None, as_json: AsJson = False) -> None:
        """All tokens, without their secrets."""
        tell(list_tokens(database=database, state=state, as_json=as_json))

    @app.command()
    @command
    def revoke(
        token_id: Annotated[str, typer.Argument(metavar="ID", help="As `list` shows it.")],
        database: Database = None,
        state: State = None,
    ) -> None:
        """End a token for good."""
        tell(revoke_token(token_id, database=database, state=state))

    return app


def create_token(name: str, *, account: str, expires: str | None, database: str | None, state: Path | None) -> str:
    """Make a token and answer it: the only time that it is shown."""
    from evalfleet.server.accounts import changing, create, lifetime

    span = None if expires is None else lifetime(expires)
    with changing(_url(database, state, make=True)) as connection:
        _token, secret = create(connection, name, account=account, expires=span)
    return secret


def list_tokens(*, database: str | None, state: Path | None, as_json: bool) -> str:
    """All tokens without their secrets, newest first."""
    from evalfleet.server.accounts import changing, every
    from evalfleet.server.documents import now

    with changing(_url(database, state)) as connection:
        found = every(connection)
    at = now()
    if as_json:
        return json.dumps({"tokens": [token.document(at) for token in found]})
    return _table(found, at)


def revoke_token(token_id: str, *, database: str | None, state: Path | None) -> str:
    """End a token. Answers what happened, in words."""
    from evalfleet.server.accounts import changing, revoke

    with changing(_url(database, state)) as connection:
        token = revoke(connection, token_id)
    return f"{token.id} ({token.name}, account {token.account}) is revoked since {token.revoked_at}"


def _table(found: Sequence[Token], at: str) -> str:
    if not found:
        return "no token is in this database; `evalfleet token create NAME` makes one"
    rows = [("id", "name", "account", "state", "created", "expires", "last used")]
    for token in found:
        times = (token.created_at, token.expires_at, token.last_used_at)
        created, expires, used = (f"{time[:19]}Z" if time else "never" for time in times)
        rows.append((token.id, token.name, token.account, token.state(at), created, expires, used))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _url(database: str | None, state: Path | None, *, make: bool = False) -> str:
    """The database that a server with the same settings uses. Only a new token may come before its first start."""
    from evalfleet.server.process import Options, database_url, make_state

    folder = (state or Path(".evalfleet")).absolute()
    if not database and make:
        make_state(folder)
    elif not database and not (folder / "server.sqlite3").is_file():
        raise UsageError(f"there is no server's database in {folder}: name it with --database or --state")
    return database_url(Options(trees=[], token="", state=folder, database=database or None))
