"""How much does a target bear, and does it answer at all? What one worker has heard slows all of them.

A target is where runs are made: a platform by its address, or the fleet's own server. It is shared by submissions, so
what is known of it stands beside them, and the claim asks both (`lua/claim.lua`). Nothing here needs a clock that
ticks: the limit rises by itself, computed from the time of the last cut, and whoever is let through finds out more.
"""

from __future__ import annotations

from dataclasses import dataclass

from evalfleet.ledger.broker import Broker, guarded
from evalfleet.plan import Conversation

ANSWERED_MS = 10_000
"""A target that has taken a run of anybody's within this time is not down, whoever else does not reach it."""
KNOWN_MS = 600_000
"""What nobody has said again for so long is forgotten."""
CEILING_MS = 60_000
"""A limit that an operator has set holds for as long as a scheduler repeats it."""


@dataclass(frozen=True, slots=True)
class Target:
    """`most` runs open over all submissions (None: any number), of which there are `open`; `wait_ms`: nothing is begun
    for so long. `down`: why it counts as down, "" when it does not. `why`: in which words it last refused. `since_ms`:
    for how long it has taken nothing; 0 when it does. The last cut was to `cut` runs, `cut_ms` ago."""

    most: int | None = None
    open: int = 0
    wait_ms: int = 0
    down: str = ""
    why: str = ""
    since_ms: int = 0
    cut: int = 0
    cut_ms: int = 0

    @property
    def room(self) -> int | None:
        """How many runs may be begun now; None: any number."""
        if self.wait_ms:
            return 0
        return None if self.most is None else max(0, self.most - self.open)


class Targets(Broker):
    """What workers hear of a target, by its name (`PlannedTarget.name`)."""

    def _target(self, name: str) -> str:
        return f"{self.prefix}t:{name}"

    @guarded
    def target_busy(self, name: str, wait_ms: int, why: str) -> int:
        """It refused a request for now and asks to wait; the limit that this cut it to, 0 if it belongs to a refusal
        that has cut it already."""
        return int(
            self._scripts["target_busy"](
                keys=[self._target(name)], args=[wait_ms, why, self.prefix, self._wake, KNOWN_MS, name]
            )
        )

    @guarded
    def target_down(self, name: str, why: str) -> bool:
        """This worker has had no answer for some seconds. True if it counts as down, since nobody else has had one."""
        args: list[str | int] = [why, self._wake, ANSWERED_MS, KNOWN_MS]
        return bool(self._scripts["target_down"](keys=[self._target(name)], args=args))

    @guarded
    def target_answered(self, name: str) -> None:
        """It took a run, or answers again."""
        self._scripts["target_answered"](keys=[self._target(name)], args=[self._wake, KNOWN_MS])

    @guarded
    def is_target_down(self, name: str) -> bool:
        """Whether nobody has had an answer since somebody said that it is down."""
        return bool(self.redis.hexists(self._target(name), "down"))

    @guarded
    def target_wait_ms(self, name: str) -> int:
        """For how long nothing is begun there."""
        until = self.redis.hget(self._target(name), "until")
        return 0 if until is None else max(0, int(until) - self.now_ms())

    @guarded
    def set_target_limit(self, name: str, most: int) -> None:
        """Never more runs open there than this, over all submissions; to be repeated."""
        self.redis.set(f"{self._target(name)}:ceiling", most, px=CEILING_MS)

    @guarded
    def turned_away(self, submission: str, conversation: Conversation) -> int:
        """How often the target has taken no run of this conversation while it took others'; 0: it takes none."""
        return int(
            self._scripts["turned_away"](
                keys=self._keys(submission, "meta tries"), args=[str(conversation), self.prefix]
            )
        )
