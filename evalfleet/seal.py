"""How does a worker know that a plan is one of ours, though whoever reaches the broker can put one there?

A plan says which target is sent a key and which program runs the graders. So it is signed: HMAC-SHA256 over all of it,
its id included, under a secret that submitters, schedulers and workers have in their environment (EVALFLEET_PLAN_KEY)
and the broker never sees. The graders are covered by their digest, which is in the plan. A message needs no signature:
it only names a plan (I3).
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field, replace

from evalfleet.errors import PlanRefused
from evalfleet.plan import Plan

REFUSED = "plan_refused"
"""The code of a submission that ended because its plan, or its graders, were not what was signed."""
_ALGORITHM = "hmac-sha256"


@dataclass(frozen=True, slots=True)
class Seal:
    """Signs plans and checks them. Without a key it does neither: everything is taken as it stands on the books."""

    key: str | None = field(default=None, repr=False)

    def signed(self, plan: Plan) -> Plan:
        """The same plan with its signature; without a key, with none."""
        return replace(plan, signature=None if self.key is None else self._signature(plan))

    def check(self, submission: str, plan: Plan) -> Plan:
        """The plan, if it is the one of this submission and was signed with our key. PlanRefused says what is off."""
        if plan.id != submission:
            raise PlanRefused(f"the plan of {submission} is refused: it is that of {plan.id[:80]}")
        if self.key is None:
            return plan
        if plan.signature is None:
            raise PlanRefused(
                f"the plan of {submission} is refused: it is not signed; whoever submits needs the fleet's "
                "EVALFLEET_PLAN_KEY"
            )
        # As bytes: what stands there may be any text, and only ASCII texts can be compared in constant time.
        if not hmac.compare_digest(plan.signature.encode("utf-8", "replace"), self._signature(plan).encode("ascii")):
            raise PlanRefused(
                f"the plan of {submission} is refused: its signature is wrong; it was changed, or signed with another "
                "EVALFLEET_PLAN_KEY than this part's"
            )
        return plan

    def vouches_for(self, plan: Plan) -> bool:
        """Did somebody with our key sign it?"""
        try:
            return self.key is not None and self.check(plan.id, plan) is plan
        except PlanRefused:
            return False

    def _signature(self, plan: Plan) -> str:
        assert self.key is not None
        signed = b"evalfleet plan\n" + replace(plan, signature=None).dumps()
        return f"{_ALGORITHM}:{hmac.new(self.key.encode('ascii'), signed, hashlib.sha256).hexdigest()}"
