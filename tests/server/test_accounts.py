"""Tokens: made on the server's database, shown once, kept as a hash, ended; each account sees its own."""

from __future__ import annotations

import asyncio
import json
import os
import time
from datetime import timedelta
from hashlib import sha256
from pathlib import Path

import pytest
from sqlalchemy import select
from typer.testing import CliRunner

from evalfleet.errors import CredentialError, UnfitHost, UsageError
from evalfleet.server import accounts
from evalfleet.server.account_tables import tokens
from evalfleet.server.accounts import FRESH, PREFIX, changing, create, every, lifetime, revoke
from scheduler.cli import app
from tests.server import conftest
from tests.server.conftest import TIMEOUT, TOKEN, Api, ScriptedDriver, assert_problem, run_body, serving


def url_in(folder: Path) -> str:
    return conftest.database_in(folder)  # looked up when it is asked for: on Postgres it is another one


async def status(api: Api, token: str, path: str = "/v2/runs") -> int:
    answer = await api.http.get(path, headers={"Authorization": f"Bearer {token}"})
    return answer.status_code


async def test_a_new_token_works_at_once_in_a_running_server_and_sees_its_own_account_only(
    api: Api, tmp_path: Path
) -> None:
    with changing(url_in(tmp_path)) as connection:
        _made, first = create(connection, "ci", account="team-a")
        _made, second = create(connection, "laptop", account="team-b")
        _made, again = create(connection, "ci too", account="team-a")
    created = await api.http.post(
        "/v2/runs", json=run_body(api.harness_id), headers={**api.key(), "Authorization": f"Bearer {first}"}
    )
    assert created.status_code == 201
    path = f"/v2/runs/{created.json()['id']}"
    assert await status(api, first, path) == 200
    assert await status(api, again, path) == 200
    assert await status(api, second, path) == 404
    assert (await api.http.get(path)).status_code == 404
    assert (await api.get("/v2/runs"))["data"] == []


async def test_a_revoked_token_ends_within_the_stated_time_and_an_expired_one_at_once(api: Api, tmp_path: Path) -> None:
    with changing(url_in(tmp_path)) as connection:
        kept, secret = create(connection, "kept")
        _short, expiring = create(connection, "short", expires=timedelta(seconds=3))
    assert await status(api, secret) == 200
    assert await status(api, expiring) == 200
    with changing(url_in(tmp_path)) as connection:
        first = revoke(connection, kept.id)
        assert revoke(connection, kept.id) == first  # again: nothing changes
    revoked_at = time.monotonic()
    while await status(api, secret) == 200:
        assert time.monotonic() - revoked_at < 5
        await asyncio.sleep(0.05)
    assert FRESH < 5
    while await status(api, expiring) == 200:
        assert time.monotonic() - revoked_at < 10
        await asyncio.sleep(0.05)
    answer = await api.http.get("/v2/runs", headers={"Authorization": f"Bearer {secret}"})
    assert_problem(answer, 401, "unauthorized")
    with changing(url_in(tmp_path)) as connection:
        states = {token.name: token.state("2999-01-01T00:00:00.000000Z") for token in every(connection)}
    assert states == {"kept": "revoked", "short": "expired"}


async def test_the_last_use_is_noted(api: Api, tmp_path: Path) -> None:
    with changing(url_in(tmp_path)) as connection:
        made, secret = create(connection, "ci")
        assert every(connection)[0].last_used_at is None
    assert await status(api, secret) == 200
    async with asyncio.timeout(TIMEOUT):
        while True:
            used = await api.stack.services.store.read(lambda connection: every(connection)[0].last_used_at)
            if used is not None:
                break
            await asyncio.sleep(0.01)
    assert used > made.created_at


async def test_a_wrong_token_of_our_shape_is_401_and_many_at_once_share_the_look_ups(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = 0
    real = accounts._live_tokens

    def counted(connection: object) -> object:
        nonlocal reads
        reads += 1
        return real(connection)  # type: ignore[arg-type]

    monkeypatch.setattr(accounts, "_live_tokens", counted)
    seen = await asyncio.gather(*(status(api, f"{PREFIX}{number}") for number in range(50)))
    assert set(seen) == {401}
    assert reads < 50


async def test_a_database_that_cannot_be_read_stops_its_tokens_and_not_the_fixed_one(
    tmp_path: Path, driver: ScriptedDriver
) -> None:
    async with serving(tmp_path, driver) as api:
        with changing(url_in(tmp_path)) as connection:
            _made, secret = create(connection, "ci")
        with changing(url_in(tmp_path)) as connection:
            connection.exec_driver_sql("ALTER TABLE tokens RENAME TO gone")
        answer = await api.http.get("/v2/runs", headers={"Authorization": f"Bearer {secret}"})
        with changing(url_in(tmp_path)) as connection:
            connection.exec_driver_sql("ALTER TABLE gone RENAME TO tokens")
        assert_problem(answer, 503, "service_unavailable")
        assert (await api.http.get("/v2/runs")).status_code == 200


async def test_a_server_starts_with_the_tokens_of_its_database_alone(tmp_path: Path, driver: ScriptedDriver) -> None:
    with changing(url_in(tmp_path)) as connection:
        _made, secret = create(connection, "ci", account="team")
    async with serving(tmp_path, driver, accounts={}) as api:
        assert await status(api, secret) == 200
        assert await status(api, TOKEN) == 401


async def test_without_any_token_that_works_it_does_not_start_and_says_what_to_do(
    tmp_path: Path, driver: ScriptedDriver
) -> None:
    with changing(url_in(tmp_path)) as connection:
        revoke(connection, create(connection, "revoked")[0].id)
        create(connection, "expired", expires=timedelta(microseconds=1))
    with pytest.raises(CredentialError, match=r"EVALFLEET_TOKEN is not set, .*evalfleet token create") as caught:
        async with serving(tmp_path, driver, accounts={}):
            pass
    assert caught.value.exit_code == 2


def test_only_the_hash_is_kept(tmp_path: Path) -> None:
    with changing(url_in(tmp_path)) as connection:
        made, secret = create(connection, "é ci", account="a.b-c_1")
        row = connection.execute(select(tokens)).one()
    assert row.hash == sha256(secret.encode()).hexdigest()
    assert len(secret) == len(PREFIX) + 43
    assert made.name == "é ci"
    for path in tmp_path.iterdir():
        assert secret.encode() not in path.read_bytes()


@pytest.mark.parametrize(
    ("text", "seconds"), [("45s", 45), ("30m", 1800), ("12h", 43_200), ("90d", 7_776_000), ("2w", 1_209_600)]
)
def test_an_expiry_is_a_span(text: str, seconds: int) -> None:
    assert lifetime(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "90", "d", "0d", "-1d", "90 d", "1.5d", "3661d", "999999w", "2027-01-01", "９d"])
def test_an_expiry_that_is_not_understood_is_never_a_default(text: str) -> None:
    with pytest.raises(UsageError, match="--expires"):
        lifetime(text)


@pytest.mark.parametrize(
    ("name", "account"), [("", "main"), (" ", "main"), ("a\nb", "main"), ("n" * 101, "main"), ("n", ""), ("n", "A"),
                          ("n", "a b"), ("n", "-a"), ("n", "a" * 65)]
)  # fmt: skip
def test_a_name_or_an_account_that_cannot_be_is_refused(tmp_path: Path, name: str, account: str) -> None:
    with changing(url_in(tmp_path)) as connection:
        with pytest.raises(UsageError):
            create(connection, name, account=account)
        assert every(connection) == []


def test_an_id_that_is_not_there_and_a_file_that_is_no_database(tmp_path: Path) -> None:
    with changing(url_in(tmp_path)) as connection, pytest.raises(UsageError, match="tok_1"):
        revoke(connection, "tok_1")
    (tmp_path / "text").write_text("no database at all, but text that is long enough\n" * 100)
    with pytest.raises(UnfitHost, match="cannot be used"), changing(f"sqlite:///{tmp_path / 'text'}"):
        pass


# -- the command


@pytest.fixture
def evalfleet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> CliRunner:
    for name in [name for name in os.environ if name.startswith("EVALFLEET_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return CliRunner()


def test_the_command_makes_lists_and_revokes(evalfleet: CliRunner, tmp_path: Path) -> None:
    database = ["--database", url_in(tmp_path)]
    made = evalfleet.invoke(app, ["token", "create", "ci", "--account", "team", "--expires", "90d", *database])
    assert made.exit_code == 0
    secret = made.stdout.strip()
    assert secret.startswith(PREFIX)

    listed = evalfleet.invoke(app, ["token", "list", "--json", *database])
    assert secret not in listed.stdout
    (token,) = json.loads(listed.stdout)["tokens"]
    assert (token["name"], token["account"], token["state"]) == ("ci", "team", "active")
    assert token["expires_at"] > token["created_at"]

    revoked = evalfleet.invoke(app, ["token", "revoke", token["id"], *database])
    assert revoked.exit_code == 0
    assert "is revoked" in revoked.stdout
    assert "revoked" in evalfleet.invoke(app, ["token", "list", *database]).stdout


def test_the_command_finds_the_servers_state(evalfleet: CliRunner, tmp_path: Path) -> None:
    absent = evalfleet.invoke(app, ["token", "list"])
    assert absent.exit_code == 2
    assert "--database" in absent.stderr
    assert not (tmp_path / ".evalfleet").exists()
    assert evalfleet.invoke(app, ["token", "create", "first"]).exit_code == 0  # before the server's first start
    assert "first" in evalfleet.invoke(app, ["token", "list"]).stdout
    assert (tmp_path / ".evalfleet" / ".gitignore").read_text() == "*\n"
    elsewhere = tmp_path / "elsewhere"
    assert evalfleet.invoke(app, ["token", "create", "x"], env={"EVALFLEET_STATE": str(elsewhere)}).exit_code == 0
    assert (elsewhere / "server.sqlite3").is_file()


@pytest.mark.parametrize(
    "words", [["create", ""], ["create", "x", "--expires", "soon"], ["create", "x", "--account", "A B"],
              ["revoke", "tok_1"], ["list", "--database", "nonsense"]]
)  # fmt: skip
def test_the_command_refuses_with_2(evalfleet: CliRunner, words: list[str]) -> None:
    assert evalfleet.invoke(app, ["token", "create", "x"]).exit_code == 0
    refused = evalfleet.invoke(app, ["token", *words])
    assert refused.exit_code == 2
    assert refused.stderr
