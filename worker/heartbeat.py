"""Is this worker still the owner of what it plays, and does everybody know that it lives?  (I6)

A thread of its own beats every 2 s and learns for each held conversation whether it is still held, is to start no
further run, is lost or stopped. A worker whose heartbeat has not been confirmed for 10 s is dead to the others, or soon
will be: it stops what it does.

A claim of a living worker is nobody else's to take. So whatever this process has claimed, or may have, is given back in
the end: when the broker does not hear it, it is told again after a later beat.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Hashable, Mapping

from evalfleet.errors import EvalfleetError
from evalfleet.ledger import Hold, Ledger
from evalfleet.plan import Attempt, Conversation
from evalfleet.telemetry import HEARTBEAT_AGE, UNREACHABLE

log = logging.getLogger(__name__)

EVERY_S = 2.0
UNCONFIRMED_S = 10.0
ANSWER_S = 2.0
"""A beat that is not answered within this is not confirmed; its ledger must not wait for longer."""

LOOK_EVERY = 5
"""Beats from one look at the books to the next."""

Word = Callable[[Ledger], object]
"""Tells the ledger that something is not this worker's any more; telling it twice is telling it once."""


class Heartbeat:
    """Beats until `stop`. `told(state)` of a hold is called from the heartbeat's thread when its state is `draining`,
    `lost`, `left` or `stopped`; the last three once, and then it is no hold any more.

    `ledger` is the heartbeat's own: one that gives up within `ANSWER_S`. `unreachable()`: what this worker does not
    reach and why, for whoever asks about workers.
    """

    def __init__(
        self,
        ledger: Ledger,
        queues: str,
        slots: int,
        *,
        unreachable: Callable[[], Mapping[str, str]] = dict,
        every: float = EVERY_S,
    ) -> None:
        self.incarnation = uuid.uuid4().hex
        self.ledger = ledger
        self.every = every
        self.unreachable = unreachable
        self.info = {"host": socket.gethostname(), "pid": os.getpid(), "queues": queues, "slots": slots}
        self.name = f"{self.info['host']}-{self.info['pid']}-{self.incarnation[:8]}"
        self._taken: set[Hashable] = set()
        self._holds: dict[Hold, Callable[[str], None]] = {}
        self._owed: dict[Hashable, Word] = {}
        self._strays: set[tuple[str, Conversation | Attempt]] = set()
        self._guard = threading.Lock()
        self._stopping = threading.Event()
        self._now = threading.Event()
        self._confirmed = time.monotonic()
        HEARTBEAT_AGE.set_function(lambda: time.monotonic() - self._confirmed)
        UNREACHABLE.labels("broker").set_function(lambda: float(self.age > UNCONFIRMED_S))
        self._thread = threading.Thread(target=self._main, name="evalfleet-heartbeat", daemon=True)

    def start(self) -> None:
        """Beat once before returning, so that no claim is made by a worker that nobody knows. Retried by the thread."""
        self._beat()
        self._thread.start()

    def stop(self) -> None:
        """Stop beating and leave the books: the others need not wait for the key to run out."""
        self._stopping.set()
        self._now.set()
        if self._thread.is_alive():
            self._thread.join(5)
        try:
            self.ledger.declare_dead(self.incarnation)
        except EvalfleetError as error:
            log.warning("leaving the books: %s", error)

    def take(self, what: Hashable) -> bool:
        """Before anything is claimed. False when this process is at it already, or has yet to give it back."""
        with self._guard:
            if what in self._taken:
                return False
            self._taken.add(what)
            return True

    def hold(self, hold: Hold, told: Callable[[str], None]) -> None:
        """It is claimed, and `told` is called when that changes."""
        with self._guard:
            self._holds[hold] = told

    def give_back(self, what: Hashable, word: Word | None) -> None:
        """This process is through with what it took; `word` None: the ledger never said that it was ours."""
        with self._guard:
            self._holds.pop(what, None)  # type: ignore[call-overload]
        try:
            if word is not None:
                word(self.ledger)
        except EvalfleetError as error:
            log.warning("the broker is told later that %s is free: %s", what, error)
            with self._guard:
                assert word is not None
                self._owed[what] = word
            return
        with self._guard:
            self._taken.discard(what)

    def beat_now(self) -> None:
        """Look at the flags at once (a wake-up told of a stop)."""
        self._now.set()

    @property
    def held(self) -> int:
        return len(self._holds)

    @property
    def age(self) -> float:
        """Seconds since the last confirmed beat."""
        return time.monotonic() - self._confirmed

    def _main(self) -> None:
        beats = 0
        while not self._stopping.is_set():
            self._now.wait(self.every)
            self._now.clear()
            if not self._stopping.is_set():
                self._beat()
                beats += 1
                if beats % LOOK_EVERY == 0:
                    self._give_strays_back()

    def _beat(self) -> None:
        with self._guard:
            holds = dict(self._holds)
        began = time.monotonic()
        try:
            info = {**self.info, "held": len(holds), "unreachable": self.unreachable()}
            states = self.ledger.beat(self.incarnation, info, list(holds))
        except Exception as error:  # whatever it is: a heartbeat that ends while its worker goes on is the worst of all
            level = logging.WARNING if isinstance(error, EvalfleetError) else logging.ERROR
            log.log(level, "heartbeat not confirmed for %.1f s: %s", self.age, error, exc_info=level == logging.ERROR)
            if self.age > UNCONFIRMED_S:
                self._gone(list(holds), "lost")
            return
        self._confirmed = began
        for hold, state in zip(list(holds), states, strict=True):
            if state == "draining":
                holds[hold](state)
            elif state != "held":
                self._gone([hold], state)
        self._pay()

    def _pay(self) -> None:
        """Tell what the broker did not hear."""
        with self._guard:
            owed = dict(self._owed)
        for what, word in owed.items():
            try:
                word(self.ledger)
            except EvalfleetError as error:
                log.warning("the broker is told later that %s is free: %s", what, error)
                return
            with self._guard:
                del self._owed[what]
                self._taken.discard(what)

    def _give_strays_back(self) -> None:
        """What the books say is ours, and nobody here is at, twice in a row: an order that a slow network delivered
        after we had given up on it, or a beat that put back, in a grace, what had just been given back. Nobody else
        would ever take it, for we live."""
        try:
            booked = self.ledger.held_by(self.incarnation)
            with self._guard:
                strays = {
                    (sub, what)
                    for sub, what in booked
                    if (Hold(sub, what) if isinstance(what, Conversation) else (sub, what)) not in self._taken
                }
            for sub, what in strays & self._strays:
                log.warning("%s of %s is ours on the books only, and goes back", what, sub)
                if isinstance(what, Conversation):
                    self.ledger.release(sub, what, self.incarnation, played=False)
                else:
                    self.ledger.release_grade(sub, what, self.incarnation)
            self._strays = strays
        except Exception as error:  # as for a beat
            log.warning(
                "what is ours on the books is not known: %s", error, exc_info=not isinstance(error, EvalfleetError)
            )

    def _gone(self, holds: list[Hold], why: str) -> None:
        for hold in holds:
            with self._guard:
                told = self._holds.pop(hold, None)
            if told is not None:
                told(why)
