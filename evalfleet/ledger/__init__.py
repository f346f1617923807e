"""What do scheduler and workers share in Redis, and how is each change made atomic?

Everything here may be lost and is then rebuilt: what remains to be done is the evaluations' `missing_attempts` (I1),
plans are in the results store, evidence is in the artifact. The ledger makes work *fast and single*, never *true*.

Keys, all below one prefix (`ef:` unless set):

    epoch                    when claims may begin (ms); missing = Redis came back empty (design.md)
    i:<incarnation>          a living worker process, PX 12000
    subs                     submissions that somebody drives or waits for
    s:<submission>:plan      the plan, compressed
    s:<submission>:graders   the graders' bundle in pieces, compressed, with its digest
    s:<submission>:meta      state, concurrency, reason, progress_at, evaluations completed
    s:<submission>:claims    conversation → incarnation that plays it; its length is the number of open runs (I7)
    s:<submission>:published conversation → when its message was sent (ms); gone as soon as a worker looked at it
    s:<submission>:returned  conversations that went back unplayed, a list
    s:<submission>:plays     attempt → played, waits for graders
    s:<submission>:grading   attempt → incarnation that grades it
    s:<submission>:records   attempt → judged, waits for the aggregator
    s:<submission>:notes     lines for the artifact that are no attempt: what stays missing, and context (S9)
    s:<submission>:done      outcomes (`rows`): what is recorded on the evaluation, or in evidence and being sent
    s:<submission>:givenup   conversation or attempt → why nobody tries again before a resume
    s:<submission>:losses    conversation or attempt → workers it has cost
    s:<submission>:tries     conversation → the first try that this command made (S14)
    s:<submission>:spent     conversation/try → what its chat cost, while it may be played again (billionths)
    s:<submission>:outcomes, :counts   what this command judged (`rows`): for progress, and for who stops after failures
    s:<submission>:log       what the parts said about it lately, a list of a few lines
    t:<target>               what it bears: the last cut, until when nothing is begun, since when it takes nothing
    t:<target>:ceiling       the limit that an operator has set, PX 60000
    s:<submission>:judge     there while grading is paused for want of a judge, PX 30000 (S26)
"""

from __future__ import annotations

from evalfleet.ledger.broker import GRACE_MS, connect
from evalfleet.ledger.claims import Claimed, Claims
from evalfleet.ledger.feeding import Competitor, Feeding, Load, Progress, Snapshot
from evalfleet.ledger.grading import JUDGE_PAUSE_MS, JUDGE_ROW, Grading, JudgeRow
from evalfleet.ledger.liveness import HEARTBEAT_PX, Hold, Liveness, queues_of, slots_of
from evalfleet.ledger.log import Log
from evalfleet.ledger.records import Records
from evalfleet.ledger.spending import MIXED, Reading, Spending, Spent
from evalfleet.ledger.submissions import ENDED_TTL_S, FAULT, Meta, Submissions
from evalfleet.ledger.targets import Target, Targets

__all__ = [
    "ENDED_TTL_S", "FAULT", "GRACE_MS", "HEARTBEAT_PX", "JUDGE_PAUSE_MS", "JUDGE_ROW", "MIXED", "Claimed", "Competitor",
    "Hold", "JudgeRow", "Ledger", "Load", "Meta", "Progress", "Reading", "Snapshot", "Spent", "Target", "connect",
    "queues_of", "slots_of",
]  # fmt: skip


class Ledger(Submissions, Liveness, Claims, Grading, Records, Feeding, Spending, Targets, Log):
    """The shared books. Thread-safe; every method is one round trip unless it says otherwise.

    Raises `TargetUnreachable` when Redis does not answer within some seconds, `CredentialError` when it refuses our
    login, `BrokerFull` when it refuses writes.
    """
