"""What a profile's variables are called, which variables nobody else may see, and where a key may be sent."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evalfleet.credentials import KEY, is_ours, is_profile, key_variable, profile_of, same_address, url_variable
from evalfleet.errors import CredentialError, SettingError
from evalfleet.plan import PlannedTarget
from evalfleet.settings import Settings

VARIABLES = [
    ("default", "SPLOX_API_KEY", "SPLOX_BASE_URL"),
    ("staging", "SPLOX_API_KEY_STAGING", "SPLOX_BASE_URL_STAGING"),
    ("acme-eu-2", "SPLOX_API_KEY_ACME_EU_2", "SPLOX_BASE_URL_ACME_EU_2"),
]


@pytest.mark.parametrize(("profile", "key", "url"), VARIABLES, ids=[profile for profile, *_ in VARIABLES])
def test_a_profile_and_its_variables_name_each_other(profile: str, key: str, url: str) -> None:
    assert is_profile(profile)
    assert (key_variable(profile), url_variable(profile)) == (key, url)
    assert profile_of(key, "SPLOX_API_KEY") == profile_of(url, "SPLOX_BASE_URL") == profile


@pytest.mark.parametrize("name", ["", "Staging", "acme_eu", "-a", "a-", "a--b", "2nd", "ä", "a b", "a\n", "x" * 41])
def test_what_is_no_profile(name: str) -> None:
    assert not is_profile(name)


SPELT_OTHERWISE = [
    ("SPLOX_API_KEY_staging", "is written SPLOX_API_KEY_STAGING"),
    ("SPLOX_API_KEY_ACME-EU", "is written SPLOX_API_KEY_ACME_EU"),
    ("SPLOX_API_KEY_DEFAULT", "is written SPLOX_API_KEY"),
    ("SPLOX_API_KEY_", "names no profile"),
    ("SPLOX_API_KEY_A__B", "names no profile"),
    ("SPLOX_API_KEY_2", "names no profile"),
]


@pytest.mark.parametrize(("variable", "wanted"), SPELT_OTHERWISE, ids=[name for name, _ in SPELT_OTHERWISE])
def test_a_key_that_nobody_would_find_is_refused_by_its_name_and_not_shown(variable: str, wanted: str) -> None:
    with pytest.raises(SettingError, match=f"^{variable}: {wanted}") as caught:
        Settings.from_env({variable: "hush-hush"})
    assert "hush" not in str(caught.value)


def test_variables_of_others_are_none_of_ours() -> None:
    assert [profile_of(name, KEY) for name in ("PATH", "SPLOX_API_KEYS", "SPLOX_BASE_URL", "MY_SPLOX_API_KEY")] == [
        None
    ] * 4
    assert all(map(is_ours, ("EVALFLEET_TOKEN", "SPLOX_API_KEY", "SPLOX_API_KEY_STAGING", "SPLOX_API_KEY_x")))
    assert not any(map(is_ours, ("PATH", "SPLOX_API_KEYS", "SPLOX_BASE_URL", "OPENAI_API_KEY")))


SAME = [
    ("https://p.example/api", "https://p.example/api/", True),
    ("https://P.example/api", "https://p.example:443/api", True),
    ("http://p.example", "http://p.example:80/", True),
    ("https://p.example/api", "http://p.example/api", False),
    ("https://p.example/api", "https://p.example:8443/api", False),
    ("https://p.example/api", "https://p.example.evil.example/api", False),
    ("https://p.example/api", "https://p.example/API", False),
    ("https://p.example/api", "https://p.example/api/../other", False),
    ("https://p.example/api", "https://p.example", False),
    ("https://p.example/api", "https://p.example@evil.example/api", False),
]


@pytest.mark.parametrize(("one", "other", "same"), SAME, ids=[other for _, other, _ in SAME])
def test_an_address_is_the_same_by_what_it_means(one: str, other: str, same: bool) -> None:
    assert same_address(one, other) is same_address(other, one) is same


P, Q = "https://p.example/api", "https://q.example/api"
ENVIRONMENT = {
    "EVALFLEET_BASE_URL": "http://own.example",
    "EVALFLEET_TOKEN": "own-token",
    "SPLOX_API_KEY": "key-of-default",
    "SPLOX_API_KEY_STAGING": "key-of-staging",
}
BOTH = {**ENVIRONMENT, "SPLOX_BASE_URL": P, "SPLOX_BASE_URL_STAGING": Q}
OWN = PlannedTarget(None, "h_1", None, "concierge")
DEFAULT, STAGING = replace(OWN, base_url=P), replace(OWN, base_url=Q, profile="staging")

MET = [
    pytest.param(ENVIRONMENT, OWN, False, ("http://own.example", "own-token"), id="our own server needs no word"),
    pytest.param(ENVIRONMENT, DEFAULT, True, (P, "key-of-default"), id="a signed plan says where"),
    pytest.param(ENVIRONMENT, STAGING, True, (Q, "key-of-staging"), id="for a profile, too"),
    pytest.param(BOTH, DEFAULT, False, (P, "key-of-default"), id="the environment says where"),
    pytest.param(BOTH, STAGING, False, (Q, "key-of-staging"), id="for each profile its own"),
    pytest.param(
        {**ENVIRONMENT, "SPLOX_BASE_URL": P}, replace(STAGING, base_url=P), False, (P, "key-of-staging"),
        id="one platform, several accounts",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("environment", "target", "vouched", "wanted"), MET)
def test_a_plan_gets_the_key_of_its_profile(
    environment: dict[str, str], target: PlannedTarget, vouched: bool, wanted: tuple[str, str]
) -> None:
    assert Settings.from_env(environment).contact(target, vouched=vouched) == wanted


REFUSED = [
    pytest.param(ENVIRONMENT, DEFAULT, False, "SPLOX_BASE_URL: is not set, and nobody vouches for", id="nobody's word"),
    pytest.param(ENVIRONMENT, STAGING, False, "SPLOX_BASE_URL_STAGING: is not set", id="nobody's for a profile"),
    pytest.param(
        BOTH, replace(DEFAULT, base_url=Q), True, f"SPLOX_BASE_URL: is {P}, and runs would go to {Q}", id="signed"
    ),
    pytest.param(BOTH, replace(STAGING, base_url=P), True, f"SPLOX_BASE_URL_STAGING: is {Q}", id="another profile's"),
    pytest.param(
        {**ENVIRONMENT, "SPLOX_BASE_URL": P}, STAGING, True, f"SPLOX_BASE_URL: is {P}", id="not the platform's"
    ),
    pytest.param(BOTH, replace(DEFAULT, profile="prod"), True, "SPLOX_API_KEY_PROD is not set", id="no such key"),
    pytest.param({}, DEFAULT, True, "SPLOX_API_KEY is not set", id="no key at all"),
    pytest.param({}, OWN, True, "EVALFLEET_BASE_URL: is not set", id="no server"),
]


@pytest.mark.parametrize(("environment", "target", "vouched", "wanted"), REFUSED)
def test_a_key_is_not_sent_where_it_does_not_belong(
    environment: dict[str, str], target: PlannedTarget, vouched: bool, wanted: str
) -> None:
    with pytest.raises((SettingError, CredentialError)) as caught:
        Settings.from_env(environment).contact(target, vouched=vouched)
    assert str(caught.value).startswith(wanted)
    assert not [secret for secret in ("key-of", "own-token") if secret in str(caught.value)]


def test_accounts_are_those_whose_credentials_are_whole() -> None:
    assert Settings.from_env(ENVIRONMENT).accounts == (None, "default", "staging")
    assert Settings.from_env({"EVALFLEET_TOKEN": "t", "SPLOX_API_KEY_B": "b", "SPLOX_API_KEY_A": "a"}).accounts == (
        "a",
        "b",
    )
    assert Settings.from_env({}).accounts == ()


def test_every_key_is_known_to_what_keeps_secrets_out_of_sight() -> None:
    settings = Settings.from_env(ENVIRONMENT)
    assert {"own-token", "key-of-default", "key-of-staging"} <= set(settings.secrets)
    assert "key-of" not in repr(settings)
