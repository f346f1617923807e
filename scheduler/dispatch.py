"""Who feeds the queue, notices what was lost, and says when a submission has ended?

The dispatcher keeps a submission's conversations in hand and never more than its concurrency in flight. Nothing that it
remembers is needed: a new one, anywhere, reconciles from the ledger and goes on (I1, I3).

* **feed**: a message for each conversation, while in flight < concurrency and not too much awaits grading or recording;
* **reap**: what dead workers held goes back (I6);
* **reconcile**: what is missing, unclaimed, not given up and not in the queue is fed again; so are stale gradings;
* **end**: completed by the aggregator, or incomplete when all that is missing was given up, or stalled (I8).
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

from evalfleet.checks.text import trial_number
from evalfleet.contract.tasks import RUN_QUEUE, queue_name
from evalfleet.errors import StorageError
from evalfleet.givenup import RECORD_REFUSED
from evalfleet.graders.judge_call import judge_at
from evalfleet.ledger import FAULT, JUDGE_ROW, MIXED, Ledger, Load, Meta, Snapshot, Spent, slots_of
from evalfleet.plan import Attempt, Conversation, Plan
from evalfleet.telemetry import (
    IN_FLIGHT,
    LEFT_OUT,
    PAUSED,
    REAPED,
    SPEND,
    TARGET_DOWN,
    TARGET_MOST,
    WAITING,
    WANTED,
)
from scheduler.budget import notice, why_closed
from scheduler.enough import STOPPED_BY
from scheduler.reasons import gave_out, nobody_takes, trouble, unwritten, unwritten_too_long
from scheduler.share import places, shares

log = logging.getLogger(__name__)

REAP_EVERY_S = 2.0
RECONCILE_EVERY_S = 10.0
SHARE_EVERY_S = 1.0
LOST_AFTER_MS = 60_000
"""A message that no worker has looked at for this long while the queue is moving counts as lost."""
COMPLETES_WITHIN_S = 1.0
"""The aggregator completes right after its last batch; later than this, somebody has to ask it to."""
NO_WORKERS_AFTER_S = 30.0


class Publisher(Protocol):
    """Sends messages. May raise TargetUnreachable; whatever was not sent is sent again by the reconciler."""

    def run(self, plan: str, conversations: Sequence[Conversation]) -> None: ...
    def grade(self, plan: str, attempt: Attempt) -> None: ...
    def aggregate(self, plan: str) -> None: ...
    def queued(self, kind: str) -> int: ...


@dataclass(frozen=True, slots=True)
class Ended:
    """How it ended: state completed | incomplete | stopped, with reason and code, and what was given up."""

    state: str
    reason: str = ""
    code: str = ""
    given_up: Mapping[str, Mapping[str, Any]] | None = None

    @property
    def is_by_limit(self) -> bool:
        """Its budget or its time has stopped it: the command ends with 4 (S36)."""
        return self.code == "max_time" or self.code.startswith("budget")

    @property
    def is_our_fault(self) -> bool:
        """A bug of ours stopped it, or one of its conversations: the command ends with 70 (S36)."""
        return self.code == FAULT or any(why.get("code") == FAULT for why in (self.given_up or {}).values())


class Books(NamedTuple):
    """What is done already: attempt → outcome for all that is recorded, or in evidence and only has to be sent; and
    what the chats in evidence have cost."""

    done: Mapping[Attempt, str]
    spent: Spent | None = None


class Dispatcher:
    """One submission's feeder. `reload` is called when Redis came back empty: it answers what is done by now. `enough`
    is asked before each feeding: a sentence is why nothing more is to be fed. It stands in `stopping` then; what is in
    flight ends and is recorded, and so does the submission, if whoever drives has not ended it before."""

    def __init__(
        self,
        ledger: Ledger,
        plan: Plan,
        publisher: Publisher,
        *,
        reload: Callable[[], Books],
        enough: Callable[[Ledger], str] | None = None,
        target_limit: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.ledger = ledger
        self.plan = plan
        self.publisher = publisher
        self.reload = reload
        self.enough = enough
        self.stopping = ""
        self.clock = clock
        self.queue: deque[Conversation] = deque()
        self._queued: set[Conversation] = set()
        self._reap_at = 0.0
        self._reconcile_at = 0.0
        self._share_at = 0.0
        self._share = 1
        self._target_most: int | None = None
        self._moved_at = clock()
        self._seen: tuple[int, int, int] | None = None
        self._deadline: int | None = None
        self._paused = False
        self.idle_reason = ""
        self.judge_trouble = ""
        self.judge_row = 0
        self._free = frozenset(  # cases whose scenarios go on without a judge
            index
            for index, case in enumerate(plan.cases)
            if not any(plan.may_ask(planned.scenario) for planned in case.scenarios)
        )
        self.store_trouble = ""
        self._aggregate_at = 0.0
        self._is_lost = False
        self.odd = ""
        self.target_limit = target_limit
        self.trouble = ""

    @property
    def is_judge_away(self) -> bool:
        """Ten gradings in a row had none: what may ask it waits (S26)."""
        return self.judge_row >= JUDGE_ROW

    @property
    def note(self) -> str:
        """What it waits for, for people; "" when all is well."""
        if self.is_judge_away:
            return f"grading is paused, the judge failed {JUDGE_ROW} times in a row: {self.judge_trouble}"
        if self.judge_trouble:
            return f"graders are asked again, they had no judge: {self.judge_trouble}"
        return self.store_trouble or self.trouble or self.idle_reason or self.odd

    # -- one pass ---------------------------------------------------------------------------------------------------

    def step(self) -> Ended | None:
        """Feed, and when their time has come reap and reconcile. Answers how the submission ended, once it has."""
        sub = self.plan.id
        meta = self.ledger.meta(sub)
        if meta is None:
            self._reopen()
            return None
        if meta.state != "running":
            return self._ended(meta)
        if self.enough is not None and not self.stopping:
            self.stopping = self.enough(self.ledger)
            if self.stopping:
                self.ledger.drain(sub)
                return None
        self.judge_trouble, self.judge_row, self._deadline = meta.judge_trouble, meta.judge_row, meta.deadline
        self.store_trouble = unwritten(meta.store_trouble, meta.store_since) if meta.store_trouble else ""
        self._paused = meta.paused and not meta.draining
        now = self.clock()
        if now >= self._reap_at:
            self._reap_at = now + REAP_EVERY_S
            self._reap()
        for conversation in self.ledger.take_returned(sub):
            self._offer(conversation, front=True)
        if now >= self._reconcile_at:
            self._reconcile_at = now + RECONCILE_EVERY_S
            self._reconcile(self.ledger.snapshot(sub))
            spent = self.ledger.spent(sub)
            SPEND.labels(sub).set(math.nan if spent.currency == MIXED else spent.amount / 1e9)
            self.odd = notice(meta.budget, spent) or self._refused_records()
        load = self.ledger.load(sub)
        self._measure(load, meta)
        if now >= self._share_at or load.target.most != self._target_most:
            self._share_at, self._target_most = now + SHARE_EVERY_S, load.target.most
            self._compete(load, meta)
        if load.target.since_ms > 1000 * self.plan.limits.stall and not meta.paused:
            self.ledger.end(sub, "stopped", gave_out(self.plan.target.name, load.target), "target_down")
            return None
        if self.store_trouble and not meta.paused:
            seconds = (self.ledger.now_ms() - meta.store_since) / 1000
            if seconds > self.plan.limits.stall:
                self.ledger.end(sub, "stopped", unwritten_too_long(meta.store_trouble, seconds), "storage")
                return None
        if not meta.paused and not load.grace:  # a message would be dropped by its claim, and fed again
            room = min(load.most, self._share) - load.claimed - load.published
            if load.target.room is not None:
                room = min(room, load.target.room - load.published)
            self._feed(room, load.waiting, meta.concurrency)
        if not self.queue and load.claimed == load.published == load.waiting == 0:
            return self._settle()
        if (load.closed or self.stopping) and load.claimed == load.waiting == 0:  # what was sent will be refused
            self._close(load.closed, meta)
            return None
        self._watch_for_stall(load.claimed, load.published, load.waiting, meta)
        return None

    def _refused_records(self) -> str:
        """The attempts that the server does not record, in words; "" where there are none."""
        given_up = self.ledger.given_up(self.plan.id)
        refused = {name: why for name, why in given_up.items() if why.get("code") == RECORD_REFUSED}
        if not refused:
            return ""
        first = Attempt.parse(next(iter(sorted(refused))))
        more = f" and {len(refused) - 1} more" if len(refused) > 1 else ""
        return f"{self.plan.key_of(first)}, trial {trial_number(first.trial)}{more}: {refused[str(first)]['reason']}"

    def _compete(self, load: Load, meta: Meta) -> None:
        """Its share of the fleet's places. What it has under way it wants anyway, more only while it may begin more."""
        under_way = load.claimed + load.published
        ahead = 0 if meta.paused or load.closed else self._feedable(load.waiting, meta.concurrency)
        want = max(under_way, min(load.most, under_way + ahead))
        WANTED.labels(self.plan.id).set(want if load.target.most is None else min(want, load.target.most))
        try:
            if self.target_limit is not None:
                self.ledger.set_target_limit(self.plan.target.name, self.target_limit)
            workers = self.ledger.workers()
            places_here = places(slots_of(workers, queue_name(RUN_QUEUE, self.plan.target.account)))
            competitors = self.ledger.compete(self.plan.id, min(want, places_here))
            found = shares(slots_of(workers), competitors)
        except StorageError as full:  # what it has said before counts for a while, and so does its share
            log.warning("%s does not compete: %s", self.plan.id, full)
            return
        self._share = max(1, found.get(self.plan.id, 1))

    def _measure(self, load: Load, meta: Meta) -> None:
        name, target = self.plan.target.name, load.target
        IN_FLIGHT.labels(self.plan.id).set(load.claimed)
        WAITING.labels(self.plan.id).set(load.waiting)
        PAUSED.labels(self.plan.id).set(meta.paused or any((self.is_judge_away, self.store_trouble, target.down)))
        TARGET_DOWN.labels(name).set(1 if target.down else 0)
        TARGET_MOST.labels(name).set(math.inf if target.most is None else target.most)
        self.trouble = trouble(name, target, load.most, datetime.now(UTC))

    def _feed(self, room: int, waiting: int, concurrency: int) -> None:
        """Never more than the concurrency in flight (I7); less when too much awaits grading or recording."""
        room = min(room, self._feedable(waiting, concurrency))
        if room <= 0:
            return
        if waiting >= 2 * concurrency:
            batch = [conversation for conversation in self.queue if conversation.case in self._free][:room]
            taken = set(batch)
            self.queue = deque(conversation for conversation in self.queue if conversation not in taken)
        else:
            batch = [self.queue.popleft() for _ in range(room)]
        self._queued.difference_update(batch)
        if batch:
            self.ledger.publish(self.plan.id, batch)
            self.publisher.run(self.plan.id, batch)

    def _feedable(self, waiting: int, concurrency: int) -> int:
        """How many of the queue may be begun now. Where too much waits, and it is the judge that it waits for, those
        that need none (S26)."""
        if waiting < 2 * concurrency:
            return len(self.queue)
        if self.store_trouble or not self.judge_trouble or not self._free:
            return 0
        return sum(conversation.case in self._free for conversation in self.queue)

    def _offer(self, conversation: Conversation, *, front: bool = False) -> None:
        if conversation not in self._queued:
            self._queued.add(conversation)
            (self.queue.appendleft if front else self.queue.append)(conversation)

    def _reap(self) -> None:
        taken = self.ledger.reap(self.plan.id, self.plan.limits.losses)
        if taken:
            REAPED.inc(len(taken))
            log.warning("%d claims of dead workers of %s go back: %s", len(taken), self.plan.id, ", ".join(taken[:10]))
            self._reconcile_at = 0.0  # a grading that went back has no message under way

    def _reconcile(self, seen: Snapshot) -> None:
        """Find again what no message speaks of any more."""
        LEFT_OUT.labels(self.plan.id).set(len(seen.given_up))
        lost: list[str] = []
        queue_empty = self.publisher.queued("run") == 0
        for conversation in self.plan.conversations():
            if conversation in self._queued:
                continue
            name = str(conversation)
            if name in seen.claims or name in seen.given_up:
                continue
            published = seen.published.get(name)
            if published is not None:
                if seen.now_ms - published < (1_000 if queue_empty else LOST_AFTER_MS):
                    continue
                lost.append(name)
            if self._is_open(conversation, seen):
                self._offer(conversation, front=published is not None)
        self.ledger.unpublish(self.plan.id, lost)
        for name in seen.plays & seen.given_up.keys():
            self.ledger.drop_play(self.plan.id, Attempt.parse(name))  # its run is found again by a resume
        if seen.plays and self.publisher.queued("grade") == 0:
            for name in seen.plays - seen.grading.keys() - seen.given_up.keys():
                self.publisher.grade(self.plan.id, Attempt.parse(name))
        if seen.records:
            self._ask_to_record()

    def _ask_to_record(self) -> None:
        """Unless a message says so already. A results store that is away is asked in the rhythm of reconciling."""
        now = self.clock()
        if self.publisher.queued("aggregate") == 0 and (not self.store_trouble or now >= self._aggregate_at):
            self._aggregate_at = now + RECONCILE_EVERY_S / 2
            self.publisher.aggregate(self.plan.id)

    def _is_open(self, conversation: Conversation, seen: Snapshot) -> bool:
        for attempt in self.plan.attempts(conversation):
            if attempt in seen.done:
                continue
            name = str(attempt)
            if not (name in seen.records or name in seen.plays or name in seen.given_up):
                return True
        return False

    # -- the end ----------------------------------------------------------------------------------------------------

    def _settle(self) -> Ended | None:
        """Nothing is under way: is everything recorded, given up, or was something lost just now?"""
        sub = self.plan.id
        seen = self.ledger.snapshot(sub)
        self._reconcile(seen)
        if self.queue or seen.claims or seen.published or seen.plays or seen.records:
            return None
        given_up = self.ledger.given_up(sub)
        missing = [a for a in self.plan.all_attempts() if a not in seen.done]
        if not missing:
            # All is in evidence: the aggregator is about to complete, or died before it did.
            self._watch_for_stall(0, 0, 0, None)
            if self.clock() - self._moved_at > COMPLETES_WITHIN_S and self.publisher.queued("aggregate") == 0:
                self.ledger.ask_replay(sub)
                self._ask_to_record()
            return None
        if any(str(a) in given_up or str(a.conversation) in given_up for a in missing):
            if self._are_notes_waiting():
                return None
            reasons = sorted({entry["reason"] for entry in given_up.values()})
            self.ledger.end(sub, "incomplete", "; ".join(reasons[:3]), "given_up")
        return None

    def _close(self, code: str, meta: Meta) -> None:
        """Budget or time is used up (S36: 4), or enough has failed: nothing is in flight, the rest is missing."""
        if self._are_notes_waiting():
            return
        sub = self.plan.id
        if self.stopping:
            self.ledger.end(sub, "stopped", self.stopping, STOPPED_BY)
        else:
            reason = why_closed(code, meta.budget, self.plan.limits.max_time, self.ledger.spent(sub))
            self.ledger.end(sub, "stopped", reason, code)

    def _are_notes_waiting(self) -> bool:
        """What is known of missing attempts belongs in the artifact before the end."""
        if not self.ledger.notes(self.plan.id, 1):
            return False
        self._ask_to_record()
        self._watch_for_stall(0, 0, 0, None)
        return True

    def _ended(self, meta: Meta) -> Ended:
        IN_FLIGHT.labels(self.plan.id).set(0)
        return Ended(meta.state, meta.reason, meta.code, self.ledger.given_up(self.plan.id))

    def _watch_for_stall(self, claimed: int, published: int, waiting: int, meta: Meta | None) -> None:
        """A submission in which nothing moves ends resumable, with the reason (I8)."""
        now = self.clock()
        state = (claimed, published, waiting)
        if state != self._seen or claimed > 0 or (meta is not None and meta.paused and not meta.draining):
            self._seen, self._moved_at, self.idle_reason = state, now, ""
            return
        idle = now - self._moved_at
        if idle >= NO_WORKERS_AFTER_S and not self.idle_reason:
            self.idle_reason = self._why_idle(published, waiting)
        if idle >= self.plan.limits.stall:
            reason = f"nothing moved for {idle:.0f} s: {self._why_idle(published, waiting)}"
            self.ledger.end(self.plan.id, "stopped", reason, "stalled")

    def _why_idle(self, published: int, waiting: int) -> str:
        known = self.store_trouble or self.trouble
        note = self.note or (self._graders_at_work() if waiting else "")
        return known or nobody_takes(self.plan.target.account, self.ledger.workers(), published, waiting, note)

    def _graders_at_work(self) -> str:
        """Whom attempts wait for that wait for nothing but their graders; "" where something else waits, too."""
        seen = self.ledger.snapshot(self.plan.id)
        if seen.records or not seen.grading:
            return ""
        graders, asked = self.plan.graders, [self.plan.scenario(Attempt.parse(name)) for name in seen.plays]
        judge = judge_at("" if graders is None else graders.judge_address)
        asks = f", which ask {judge}" if any(map(self.plan.may_ask, asked)) else ""
        return f"{len(seen.plays)} attempts wait for their graders{asks}"

    def _reopen(self) -> None:
        """Redis came back empty: the plan goes back on the books, with what the evaluations hold."""
        if not self._is_lost:
            log.warning("the broker lost %s; its plan goes back on the books", self.plan.id)
        self._is_lost = True
        self.queue.clear()
        self._queued.clear()
        self.ledger.open_epoch()
        books = self.reload()
        self.ledger.add(
            self.plan, books.done, spent=books.spent, deadline=self._deadline, paused=self._paused, replay=True
        )
        self._is_lost = False
        self._reconcile_at = 0.0
