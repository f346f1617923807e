"""Was a hook of the tree asked, and what did it decide? (S22)

`hook_called` and the hook trace read a journal by the same two functions here, so they never disagree about a hook.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from evalfleet.checks.near import near_name
from evalfleet.checks.text import quoted
from evalfleet.checks.trial import PLATFORM_SOURCE, HookCall

NO_ANSWER = frozenset({"failed", "malformed"})
"""Decisions of a hook that did not do its work: they satisfy only an assertion that asks for them."""


def judge_hook(hooks: Sequence[HookCall], name: str, decision: str | None) -> tuple[bool, str]:
    """`hook_called`: passed, and the sentence.

    A call that the platform's own code answered (`splox.toolkit…`) is no call of the tree's hook. A fallback counts
    as `failed`. Without a decision, any call counts that was answered.
    """
    asked = [hook for hook in hooks if hook.hook == name and not by_the_platform(hook)]
    if not asked:
        own = sum(hook.hook == name for hook in hooks)
        if own:
            return False, (
                f"{quoted(name)} was answered by the platform's own code, {own}×; no hook file of the tree was asked"
            )
        names = list(dict.fromkeys(hook.hook for hook in hooks if not by_the_platform(hook)))
        near = near_name(name, names)
        others = f"; {quoted(near)} was, which is another name" if near else ""
        seen = f"; asked were {', '.join(quoted(other, 60) for other in names[:5])}" if names and not near else ""
        return False, f"{quoted(name)} was never asked{others or seen or '; no hook was'}"
    counted = Counter(hook.decision for hook in asked)
    times = _times(len(questions(asked)))
    answered = [hook for hook in asked if hook.decision not in NO_ANSWER]
    if decision is None:
        if answered:
            return True, f"{quoted(name)} was asked {times} and decided {_decisions(counted)}"
        return False, f"{quoted(name)} was asked {times} and answered none ({_decisions(counted)})"
    if counted[decision]:
        return True, f"{quoted(name)} decided {quoted(decision)} ({_decisions(counted)})"
    wrong = "answered none" if not answered else f"never decided {quoted(decision)}"
    return False, (
        f"{quoted(name)} was asked {times} and {wrong}; {quoted(decision)} was wanted ({_decisions(counted)})"
    )


def questions(calls: Iterable[HookCall]) -> list[HookCall]:
    """How often the hooks of the tree were asked: their calls, in order, without the platform's own.

    A fallback that follows the failure it stands for is not a second question: it gives that one its words and its
    time, where the call had none. One alone is a failure.
    """
    asked: list[HookCall] = []
    unanswered: dict[str, list[int]] = {}  # hook → its failures that no fallback has followed yet
    for call in calls:
        if by_the_platform(call):
            continue
        waiting = unanswered.setdefault(call.hook, [])
        if call.fallback and waiting:
            at = waiting.pop()
            known = asked[at].duration_ms
            asked[at] = replace(
                asked[at],
                error=asked[at].error or call.error,
                duration_ms=call.duration_ms if known is None else known,
            )
            continue
        if call.decision in NO_ANSWER and not call.fallback:
            waiting.append(len(asked))
        asked.append(call)
    return asked


def by_the_platform(hook: HookCall) -> bool:
    """Was it answered by the platform's own code (`splox.toolkit…`)? Then no hook file of the tree was asked."""
    return hook.source == PLATFORM_SOURCE or hook.source.startswith(PLATFORM_SOURCE + ".")


def _decisions(counted: Counter[str]) -> str:
    return ", ".join(f"{number} {decision or 'without a decision'}" for decision, number in counted.most_common())


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
