"""What becomes of submissions that the broker has forgotten?

What their schedulers drive goes back on the books at once (`dispatch`). What nobody drove at that moment, because its
scheduler had died, too, is found where every plan is: in the results store. So each scheduler looks there at its start,
when the broker comes back, and when it finds another epoch than it knew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from evalfleet.artifact import list_results, read_plan
from evalfleet.errors import OperatorError, PlanRefused, PlatformError, ProblemAnswer, StorageError
from evalfleet.ledger import Ledger
from evalfleet.plan import Plan
from evalfleet.results import ResultsStore
from evalfleet.seal import Seal
from scheduler.submit import Opened, put_on_books

log = logging.getLogger(__name__)

Documents = Callable[[Plan], Sequence[Mapping[str, Any]]]
"""A plan's evaluations as they stand. Raises PlatformError, or OperatorError where no key is set for its platform."""


def reload_unfinished(ledger: Ledger, store: ResultsStore, documents: Documents, seal: Seal) -> bool:
    """Put back on the books what has begun, has no summary, and misses attempts on evaluations that still run.

    What `seal` does not know stays off them. False when the target did not say so of all of them: ask again. Raises
    what the ledger raises.
    """
    whole = True
    for artifact in list_results(store):
        if store.exists(f"{artifact}/summary.json"):
            continue
        try:
            plan = read_plan(store, artifact)
        except StorageError as problem:  # half made, or another evalfleet's: it must not hide the others
            log.debug("passed over while looking for unfinished submissions: %s", problem)
            continue
        if ledger.meta(plan.id) is not None:
            continue
        try:
            found = tuple(documents(plan))
        except (PlatformError, OperatorError) as trouble:
            if _is_for_good(trouble):  # of another server, or of one person's `eval` in the same folder
                level = logging.WARNING if isinstance(trouble, OperatorError) else logging.DEBUG
                log.log(level, "%s is not ours to go on with: %s", plan.id, trouble)
            else:
                log.warning("%s is unfinished, and its evaluations cannot be read: %s", plan.id, trouble)
                whole = False
            continue
        if any(document["status"] == "running" for document in found):
            try:
                seal.check(plan.id, plan)
            except PlanRefused as refused:
                log.warning("%s is unfinished and stays off the books: %s", store.shown(artifact), refused)
                continue
            log.warning("the broker does not know %s, which is unfinished: it goes back on the books", plan.id)
            put_on_books(ledger, Opened(plan, found, True, ""), store)
    return whole


def _is_for_good(trouble: PlatformError | OperatorError) -> bool:
    """Would it say the same if it were asked again? Nobody here has a key for it, or it knows no such evaluation."""
    if isinstance(trouble, ProblemAnswer):
        return trouble.status < 500 and trouble.status != 429
    return isinstance(trouble, OperatorError)
