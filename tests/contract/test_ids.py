"""Public ids, both ways (wire.md, "Ground rules")."""

from __future__ import annotations

import threading
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalfleet.contract.ids import PREFIXES, new_id, public_id, uuid7, uuid_of

SEED_IDS = [
    ("h", "h_5V125BR7R4AA189NRYAB3DQC6D"),
    ("eval", "eval_01M1GFXMZ8EDKS45DA3VXS7B42"),
    ("ecase", "ecase_01M1GFXMZ9F5JBZNQBGC2JTXP4"),
    ("run", "run_01M1GFRNR5F4N8S2JZV85T30A4"),
]


@pytest.mark.parametrize(("prefix", "text"), SEED_IDS)
def test_the_seed_s_ids_convert_both_ways(prefix: str, text: str) -> None:
    assert public_id(prefix, uuid_of(text, prefix)) == text


def test_the_seed_s_ids_hold_uuids_of_version_7_made_when_the_seed_says() -> None:
    value = uuid_of("eval_01M1GFXMZ8EDKS45DA3VXS7B42", "eval")
    assert value.version == 7
    assert value.int >> 80 == 1_788_333_708_264  # 2026-09-02T07:21:48.264Z, beside created_at …48.254011Z


@given(st.uuids(), st.sampled_from(sorted(PREFIXES)))
def test_every_uuid_survives_the_round_trip(value: UUID, prefix: str) -> None:
    text = public_id(prefix, value)
    assert len(text) == len(prefix) + 27
    assert uuid_of(text, prefix) == value
    assert uuid_of(text.lower(), prefix) == value
    assert uuid_of(str(value), prefix) == value
    assert uuid_of(value.hex.upper(), prefix) == value


def test_letters_that_look_like_digits_read_as_them() -> None:
    plain = uuid_of("run_01000000000000000000000011", "run")
    assert uuid_of("run_oIOOoooooOOOOOOOOOOOOOOOlL", "run") == plain


NONSENSE = [
    pytest.param("", id="nothing"),
    pytest.param("run_", id="a prefix alone"),
    pytest.param("chat_01M1GFRNR5F4N8S2JZV85T30A4", id="another prefix"),
    pytest.param("01M1GFRNR5F4N8S2JZV85T30A4", id="no prefix"),
    pytest.param("run_01M1GFRNR5F4N8S2JZV85T30A", id="25 characters"),
    pytest.param("run_01M1GFRNR5F4N8S2JZV85T30A44", id="27 characters"),
    pytest.param("run_81M1GFRNR5F4N8S2JZV85T30A4", id="more than 128 bits"),
    pytest.param("run_01M1GFRNR5F4N8S2JZV85T30AU", id="U is no letter of it"),
    pytest.param("run_01M1GFRNR5F4N8S2JZV85T30A4\n", id="a line end"),
    pytest.param(" run_01M1GFRNR5F4N8S2JZV85T30A4", id="a blank"),
    pytest.param("run_0_M1GFRNR5F4N8S2JZV85T30A4", id="what int() would take"),
    pytest.param("run_０1M1GFRNR5F4N8S2JZV85T30A4", id="a digit of another script"),
    pytest.param("{01a22c89-9d92-75f3-b878-e7fc65ed5537}", id="a UUID in braces"),
    pytest.param("urn:uuid:01a22c89-9d92-75f3-b878-e7fc65ed5537", id="a URN"),
    pytest.param("01a22c899d92-75f3-b878-e7fc65ed5537", id="a hyphen short"),
    pytest.param("../../etc/passwd", id="a path"),
    pytest.param("run_" + "0" * 5000, id="long"),
]


@pytest.mark.parametrize("text", NONSENSE)
def test_nonsense_is_a_value_error_that_shows_a_little_of_it(text: str) -> None:
    with pytest.raises(ValueError) as caught:
        uuid_of(text, "run")
    assert len(str(caught.value)) < 200


def test_new_ids_ascend_and_are_version_7() -> None:
    made = [uuid7() for _ in range(5000)]
    assert made == sorted(set(made))
    assert {(value.version, value.variant) for value in made} == {(7, "specified in RFC 4122")}
    assert new_id("run") < new_id("run")


def test_ids_stay_unique_and_ascending_across_threads() -> None:
    made: list[list[UUID]] = [[] for _ in range(4)]

    def work(mine: list[UUID]) -> None:
        mine.extend(uuid7() for _ in range(2000))

    threads = [threading.Thread(target=work, args=(mine,)) for mine in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert all(mine == sorted(mine) for mine in made)
    assert len({value for mine in made for value in mine}) == 8000


def test_ids_ascend_when_the_clock_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before = uuid7()
    monkeypatch.setattr("time.time_ns", lambda: 1_000_000_000_000_000_000)
    assert uuid7() > before
