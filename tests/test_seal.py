"""Whose plans are taken, and what is said of the others."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from evalfleet.errors import PlanRefused
from evalfleet.plan import Plan, PlannedGraders
from evalfleet.seal import Seal
from tests.scheduler.samples import plan, scenario

SEAL = Seal("the-fleets-own-secret")
GRADERS = PlannedGraders("sha256:" + "0" * 64, None, (), network=False, memory_mb=64, judge=False)
PLAN = replace(plan({"tone": [scenario("a")]}), graders=GRADERS)
SIGNED = SEAL.signed(PLAN)


def test_a_signed_plan_is_taken_wherever_it_was_kept() -> None:
    assert SEAL.check(PLAN.id, Plan.loads(SIGNED.dumps())) == SIGNED
    assert replace(SIGNED, signature=None) == PLAN
    assert SEAL.signed(SIGNED) == SIGNED, "the same again"


CHANGES: list[tuple[str, Callable[[dict[str, Any]], object]]] = [
    (
        "the target, which would be sent the platform's key",
        lambda d: d["target"].update(base_url="http://evil.example"),
    ),
    ("the harness", lambda d: d["target"].update(harness_id="h_another")),
    ("the graders", lambda d: d["graders"].update(digest="sha256:" + "1" * 64)),
    ("the program that runs the graders", lambda d: d["graders"].update(python="/tmp/evil")),
    ("what graders see of the environment", lambda d: d["graders"].update(env=["SECRET"])),
    ("their network", lambda d: d["graders"].update(network=True)),
    ("what is said", lambda d: d["cases"][0]["scenarios"][0].update(user=["other"])),
    ("the artifact", lambda d: d.update(artifact="20260101T000000Z-evil")),
    ("a limit", lambda d: d["limits"].update(tries=100)),
    ("the evaluation", lambda d: d["evaluations"][0].update(id="eval_other")),
    ("the signature", lambda d: d.update(signature=d["signature"][:-1] + "-")),
    ("a signature that is no ASCII", lambda d: d.update(signature="hmac-sha256:\ud800ü")),
]


@pytest.mark.parametrize("change", [change for _, change in CHANGES], ids=[name for name, _ in CHANGES])
def test_a_plan_of_which_anything_was_changed_is_refused(change: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads(SIGNED.dumps())
    change(document)
    with pytest.raises(PlanRefused, match="its signature is wrong"):
        SEAL.check(PLAN.id, Plan.from_json(document))


def test_every_field_of_a_plan_is_under_its_signature() -> None:
    assert set(json.loads(SIGNED.dumps())) == set(json.loads(PLAN.dumps())) | {"signature"}


def test_a_plan_of_another_submission_is_refused_with_and_without_a_key() -> None:
    for seal in (SEAL, Seal()):
        with pytest.raises(PlanRefused, match=f"the plan of sub_other is refused: it is that of {PLAN.id}"):
            seal.check("sub_other", SIGNED)
    with pytest.raises(PlanRefused, match="its signature is wrong"):
        SEAL.check("sub_other", replace(SIGNED, id="sub_other"))


def test_an_unsigned_plan_is_refused_by_who_has_a_key_and_taken_by_who_has_none() -> None:
    with pytest.raises(PlanRefused, match="not signed; whoever submits needs the fleet's EVALFLEET_PLAN_KEY"):
        SEAL.check(PLAN.id, PLAN)
    assert Seal().check(PLAN.id, PLAN) is PLAN
    assert Seal().check(PLAN.id, SIGNED) is SIGNED
    assert Seal().signed(SIGNED) == PLAN


def test_another_key_is_another_fleet_and_no_key_is_ever_shown() -> None:
    with pytest.raises(PlanRefused) as caught:
        Seal("another-secret-of-ours").check(PLAN.id, SIGNED)
    assert "secret" not in f"{caught.value} {SEAL!r}"
    assert SEAL.key is not None
    assert SEAL.key.encode() not in SIGNED.dumps()
