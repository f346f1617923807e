"""What exactly is to be played, scored and recorded in one submission?

The plan is an immutable JSON document (`suite.json`): conversations, evaluations, the grader bundle by its digest,
limits. It holds no secret. `scheduler.plan` builds it; the dispatcher, the workers, the aggregator and the reports read
it here. How it becomes conversations is pure arithmetic on the document (S8, S9).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from evalfleet.checks.case import Scenario, case_key
from evalfleet.credentials import DEFAULT
from evalfleet.quarantine import Quarantine

FORMAT = 1
_SELECTED = re.compile(r"/k[0-9]+/(partial|draft)(/[0-9]+-of-[0-9]+)?\Z")
"""The end of the suite key of an evaluation of not the whole tree (S10)."""


def canonical_json(value: object) -> bytes:
    """One spelling for one value: sorted keys, no blanks, ASCII only (a lone surrogate survives as its escape)."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.encode("ascii")


def run_key(submission: str, case_name: str, trial: int, turn_index: int, try_: int, body: Mapping[str, Any]) -> str:
    """The idempotency key of one run (I2): 64 hex digits, a pure function of what is asked.

    `turn_index` counts over the whole conversation from 0; `body` is the request of `POST /v2/runs` as it is sent, so a
    later turn's key holds its chat id and follows its chat. No worker and no time: whoever plays a conversation again
    finds its finished runs.
    """
    return hashlib.sha256(canonical_json(["run", submission, case_name, trial, turn_index, try_, body])).hexdigest()


@dataclass(frozen=True, slots=True)
class Conversation:
    """One trial index of one case. `case` is the index in `Plan.cases`; `str()` is the field name in Redis."""

    case: int
    trial: int

    def __str__(self) -> str:
        return f"{self.case}:{self.trial}"

    @classmethod
    def parse(cls, text: str) -> Conversation:
        case, trial = text.split(":")
        return cls(int(case), int(trial))


@dataclass(frozen=True, slots=True)
class Attempt:
    """One scored trial of one scenario; both are indices into the plan. `str()` is the field name in Redis."""

    case: int
    scenario: int
    trial: int

    def __str__(self) -> str:
        return f"{self.case}:{self.scenario}:{self.trial}"

    @classmethod
    def parse(cls, text: str) -> Attempt:
        case, scenario, trial = text.split(":")
        return cls(int(case), int(scenario), int(trial))

    @property
    def conversation(self) -> Conversation:
        return Conversation(self.case, self.trial)


@dataclass(frozen=True, slots=True)
class Step:
    """One scenario as a conversation plays it; not `scored`: it is context, in the artifact and in no rate (S9)."""

    scenario: int
    scored: bool


@dataclass(frozen=True, slots=True)
class PlannedScenario:
    """`evaluation` indexes `Plan.evaluations`; None: it was not selected and is only ever context."""

    scenario: Scenario
    evaluation: int | None

    def wants(self, trial: int) -> bool:
        return self.evaluation is not None and trial < self.scenario.trials


@dataclass(frozen=True, slots=True)
class PlannedCase:
    """One conversation. `name` is the file's name without its ending, `file` its path from the tree's root. The rows of
    a suite are cases of one name and file, so a case is told by its index, or by name and scenario id."""

    name: str
    file: str
    scenarios: tuple[PlannedScenario, ...]

    @property
    def trials(self) -> int:
        """How many conversations this case takes."""
        return max((p.scenario.trials for p in self.scenarios if p.evaluation is not None), default=0)


@dataclass(frozen=True, slots=True)
class PlannedTarget:
    """Where runs are made. `base_url` None: the server of this submission, known from the environment. `profile` names
    the platform's key, which whoever makes calls has in its environment (`evalfleet.credentials`)."""

    base_url: str | None
    harness_id: str
    machine_id: str | None
    harness: str
    profile: str = DEFAULT

    @property
    def name(self) -> str:
        """What it is called beside those of other submissions: two with one name bear runs together."""
        if self.base_url is None:
            return "server"
        return self.base_url if self.profile == DEFAULT else f"{self.base_url} as {self.profile}"

    @property
    def account(self) -> str | None:
        """Who has to hold its key: a profile; None: whoever knows the fleet's own server."""
        return None if self.base_url is None else self.profile


@dataclass(frozen=True, slots=True)
class Limits:
    """`tries` new tries for each command (S14), `losses` of workers before a conversation is given up, seconds without
    progress (`stall`, I8), seconds a run may stay queued before it is cancelled (`queued`, S12).

    `budget`: decimal text in the currency of the usage, over all commands; `max_time`: seconds for each command. When
    one is reached nothing more is begun. None: no such limit. `grade`: graders are asked (else `--no-graders`).
    `weight`: its part of a fleet's places, beside the weights of the others that want some. `max_failures`: scenarios
    that may lose the gate before a fleet stops; with `allow_flaky` a flaky one has not (`scheduler.enough`).
    """

    tries: int = 3
    losses: int = 5
    stall: int = 600
    queued: int = 600
    budget: str | None = None
    max_time: int | None = None
    grade: bool = True
    weight: int = 1
    max_failures: int | None = None
    allow_flaky: bool = False


@dataclass(frozen=True, slots=True)
class Scorer:
    id: str
    version: str


@dataclass(frozen=True, slots=True)
class SuiteName:
    """What an evaluation is of: `key` stays, `version` moves with the scenarios and their graders (S10)."""

    key: str
    version: str
    name: str


@dataclass(frozen=True, slots=True)
class PlannedEvaluation:
    """All scored scenarios of one trials number. `id` is None until the evaluation is created."""

    k: int
    id: str | None
    suite: SuiteName


@dataclass(frozen=True, slots=True)
class PlannedBaseline:
    """The older result that this one is compared with (S31): its commit, and its artifact: a name in the same results
    store, or the place of one elsewhere. `fail_on`: "any" or "significant" where a regression loses the gate."""

    commit: str
    artifact: str
    fail_on: str | None = None


@dataclass(frozen=True, slots=True)
class PlannedGraders:
    """`digest` names the bundle; `env` holds names, never values; `judge`: `t.llm` has somebody to ask (S28).

    `version`: a digest of the graders alone, without the rest of the tree in the bundle, which is what a suite's
    version pins (S10); `judge_address`: where `t.llm` ends up, for sentences; `asking`: the graders that may call it
    (S26), None where that is not known."""

    digest: str
    python: str | None
    env: tuple[str, ...]
    network: bool
    memory_mb: int
    judge: bool
    version: str = ""
    judge_address: str = ""
    asking: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """See the module. Times are RFC 3339 UTC text, `commit` 40 hex digits, `concurrency` open runs over all workers.

    `timeout`: the seconds that `--timeout` put in the place of every scenario's own; the scenarios have it already, it
    is here for whoever scores them again by today's case files. `quarantine`: what does not gate, of what is scored; no
    part of the pin, since it decides nothing that is recorded. `rescored_from`: the submission whose runs these are,
    where an artifact was judged anew (S32). `signature`: of all the rest, where the fleet has a key
    (`evalfleet.seal`); None on one machine.
    """

    id: str
    pin: str
    generation: int
    created_at: str
    evalfleet: str
    suite: str
    artifact: str
    target: PlannedTarget
    commit: str
    concurrency: int
    limits: Limits
    scorer: Scorer
    infra_codes: tuple[str, ...]
    evaluations: tuple[PlannedEvaluation, ...]
    cases: tuple[PlannedCase, ...]
    graders: PlannedGraders | None
    timeout: float | None = None
    quarantine: tuple[Quarantine, ...] = ()
    rescored_from: str | None = None
    baseline: PlannedBaseline | None = None
    signature: str | None = None
    format: int = FORMAT

    def conversations(self) -> Iterator[Conversation]:
        """Trial-major: every case gets its first trial before any gets its second."""
        for trial in range(max((case.trials for case in self.cases), default=0)):
            for index, case in enumerate(self.cases):
                if trial < case.trials:
                    yield Conversation(index, trial)

    def steps(self, conversation: Conversation) -> list[Step]:
        """What this conversation plays, in order: up to the last scenario that still wants this trial (S9)."""
        planned = self.cases[conversation.case].scenarios
        wanted = [p.wants(conversation.trial) for p in planned]
        last = max((index for index, wants in enumerate(wanted) if wants), default=-1)
        return [Step(index, wanted[index]) for index in range(last + 1)]

    def may_ask(self, scenario: Scenario) -> bool:
        """Whether a grader of the scenario may call `t.llm` (S26)."""
        asking = None if self.graders is None else self.graders.asking
        return any(asking is None or grader.name in asking for grader in scenario.graders)

    @property
    def is_whole(self) -> bool:
        """Whether all of the tree, or of a suite's file, is scored: neither a selection nor drafts (S10)."""
        return not any(_SELECTED.search(evaluation.suite.key) for evaluation in self.evaluations)

    def attempts(self, conversation: Conversation) -> list[Attempt]:
        """The scored scenarios of a conversation, in file order."""
        return [
            Attempt(conversation.case, step.scenario, conversation.trial)
            for step in self.steps(conversation)
            if step.scored
        ]

    def all_attempts(self) -> Iterator[Attempt]:
        for conversation in self.conversations():
            yield from self.attempts(conversation)

    def scenario(self, attempt: Attempt) -> Scenario:
        return self.cases[attempt.case].scenarios[attempt.scenario].scenario

    def key_of(self, attempt: Attempt) -> str:
        """The evaluation's case key, `<case>/<scenario id>` (S7)."""
        case = self.cases[attempt.case]
        return case_key(case.name, case.scenarios[attempt.scenario].scenario.id)

    def evaluation_of(self, attempt: Attempt) -> PlannedEvaluation:
        """The evaluation that an attempt is recorded on; KeyError for a scenario that is only context."""
        index = self.cases[attempt.case].scenarios[attempt.scenario].evaluation
        if index is None:
            raise KeyError(f"{attempt} is only context in this plan")
        return self.evaluations[index]

    def numbers(self) -> dict[tuple[str, str], int]:
        """(case name, scenario id) → the case's index."""
        return {(c.name, p.scenario.id): number for number, c in enumerate(self.cases) for p in c.scenarios}

    def keys_of(self, evaluation: int) -> list[str]:
        """The case keys of one evaluation, in file order."""
        return [
            case_key(case.name, planned.scenario.id)
            for case in self.cases
            for planned in case.scenarios
            if planned.evaluation == evaluation
        ]

    def turns(self) -> int:
        """Runs that the whole plan makes when nothing is tried twice, context included."""
        return sum(
            len(self.cases[conversation.case].scenarios[step.scenario].scenario.user)
            for conversation in self.conversations()
            for step in self.steps(conversation)
        )

    def context_turns(self) -> int:
        """Turns that are paid for and never scored (S9)."""
        return sum(
            len(self.cases[conversation.case].scenarios[step.scenario].scenario.user)
            for conversation in self.conversations()
            for step in self.steps(conversation)
            if not step.scored
        )

    def with_evaluations(self, ids: Sequence[str]) -> Plan:
        """The same plan once its evaluations are created; `ids` in the order of `evaluations`."""
        named = zip(self.evaluations, ids, strict=True)
        return replace(self, evaluations=tuple(replace(planned, id=id_) for planned, id_ in named))

    def to_json(self) -> dict[str, Any]:
        return {
            "format": self.format,
            "id": self.id,
            "pin": self.pin,
            "generation": self.generation,
            "created_at": self.created_at,
            "evalfleet": self.evalfleet,
            "suite": self.suite,
            "artifact": self.artifact,
            "target": {
                "base_url": self.target.base_url,
                "harness_id": self.target.harness_id,
                "machine_id": self.target.machine_id,
                "harness": self.target.harness,
                **({} if self.target.profile == DEFAULT else {"profile": self.target.profile}),
            },
            "commit": self.commit,
            "concurrency": self.concurrency,
            "limits": {
                "tries": self.limits.tries,
                "losses": self.limits.losses,
                "stall": self.limits.stall,
                "queued": self.limits.queued,
                "budget": self.limits.budget,
                "max_time": self.limits.max_time,
                "grade": self.limits.grade,
                "weight": self.limits.weight,
                **({} if self.limits.max_failures is None else {"max_failures": self.limits.max_failures}),
                **({"allow_flaky": True} if self.limits.allow_flaky else {}),
            },
            "scorer": {"id": self.scorer.id, "version": self.scorer.version},
            "infra_codes": list(self.infra_codes),
            "evaluations": [
                {"k": e.k, "id": e.id, "suite": {"key": e.suite.key, "version": e.suite.version, "name": e.suite.name}}
                for e in self.evaluations
            ],
            "cases": [
                {
                    "name": case.name,
                    "file": case.file,
                    "scenarios": [{**p.scenario.to_json(), "evaluation": p.evaluation} for p in case.scenarios],
                }
                for case in self.cases
            ],
            "graders": None
            if self.graders is None
            else {
                "digest": self.graders.digest,
                "python": self.graders.python,
                "env": list(self.graders.env),
                "network": self.graders.network,
                "memory_mb": self.graders.memory_mb,
                "judge": self.graders.judge,
                "version": self.graders.version,
                "judge_address": self.graders.judge_address,
                "asking": None if self.graders.asking is None else list(self.graders.asking),
            },
            "timeout": self.timeout,
            "quarantine": [entry.to_json() for entry in self.quarantine],
            "rescored_from": self.rescored_from,
            **({} if self.baseline is None else {"baseline": asdict(self.baseline)}),
            **({} if self.signature is None else {"signature": self.signature}),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Plan:
        """Read a plan of ours. ValueError says what is off: another format, a field that is not there."""
        if not isinstance(document, Mapping) or document.get("format") != FORMAT:
            seen = document.get("format") if isinstance(document, Mapping) else type(document).__name__
            who = document.get("evalfleet") if isinstance(document, Mapping) else None
            raise ValueError(
                f"not a plan of format {FORMAT}: {seen!r}; it was written by evalfleet {who or 'of another time'}"
            )
        try:
            return _plan_from(document)
        except KeyError as error:
            raise ValueError(f"the plan has no {error.args[0]!r}") from error
        except (TypeError, AttributeError) as error:
            raise ValueError(f"the plan is not readable: {error}") from error

    def dumps(self) -> bytes:
        """Canonical bytes: equal plans have equal bytes."""
        return canonical_json(self.to_json())

    @classmethod
    def loads(cls, data: bytes | str) -> Plan:
        """ValueError when the bytes are no JSON or no plan."""
        return cls.from_json(json.loads(data))


def _baseline_from(document: Mapping[str, Any] | None) -> PlannedBaseline | None:
    if document is None:
        return None
    return PlannedBaseline(str(document["commit"]), str(document["artifact"]), document["fail_on"])


def _plan_from(document: Mapping[str, Any]) -> Plan:
    target, limits, graders = document["target"], document["limits"], document["graders"]
    return Plan(
        id=str(document["id"]),
        pin=str(document["pin"]),
        generation=int(document["generation"]),
        created_at=str(document["created_at"]),
        evalfleet=str(document["evalfleet"]),
        suite=str(document["suite"]),
        artifact=str(document["artifact"]),
        target=PlannedTarget(
            target["base_url"],
            target["harness_id"],
            target["machine_id"],
            target["harness"],
            target.get("profile", DEFAULT),
        ),
        commit=str(document["commit"]),
        concurrency=int(document["concurrency"]),
        limits=Limits(
            limits["tries"],
            limits["losses"],
            limits["stall"],
            limits["queued"],
            budget=limits.get("budget"),
            max_time=limits.get("max_time"),
            grade=limits.get("grade", True),
            weight=limits.get("weight", 1),
            max_failures=limits.get("max_failures"),
            allow_flaky=limits.get("allow_flaky", False),
        ),
        scorer=Scorer(document["scorer"]["id"], document["scorer"]["version"]),
        infra_codes=tuple(document["infra_codes"]),
        evaluations=tuple(
            PlannedEvaluation(
                k=int(e["k"]),
                id=e["id"],
                suite=SuiteName(e["suite"]["key"], e["suite"]["version"], e["suite"]["name"]),
            )
            for e in document["evaluations"]
        ),
        cases=tuple(
            PlannedCase(
                name=case["name"],
                file=case["file"],
                scenarios=tuple(
                    PlannedScenario(
                        Scenario.from_json({k: v for k, v in s.items() if k != "evaluation"}), s["evaluation"]
                    )
                    for s in case["scenarios"]
                ),
            )
            for case in document["cases"]
        ),
        graders=None
        if graders is None
        else PlannedGraders(
            digest=graders["digest"],
            python=graders["python"],
            env=tuple(graders["env"]),
            network=graders["network"],
            memory_mb=graders["memory_mb"],
            judge=graders["judge"],
            version=graders.get("version", graders["digest"]),
            judge_address=graders.get("judge_address", ""),
            asking=None if graders.get("asking") is None else tuple(graders["asking"]),
        ),
        timeout=document.get("timeout"),
        quarantine=tuple(map(Quarantine.from_json, document.get("quarantine") or ())),
        rescored_from=document.get("rescored_from"),
        baseline=_baseline_from(document.get("baseline")),
        signature=document.get("signature"),
    )
