"""Was a hook of the tree asked, and what did it decide? (S22)"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

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
    asked = [hook for hook in hooks if hook.hook == name and not _by_the_platform(hook)]
    if not asked:
        own = sum(hook.hook == name for hook in hooks)
        if own:
            return False, (
                f"{quoted(name)} was answered by the platform's own code, {own}×; no hook file of the tree was asked"
            )
        names = list(dict.fromkeys(hook.hook for hook in hooks if not _by_the_platform(hook)))
        near = near_name(name, names)
        others = f"; {quoted(near)} was, which is another name" if near else ""
        seen = f"; asked were {', '.join(quoted(other, 60) for other in names[:5])}" if names and not near else ""
        return False, f"{quoted(name)} was never asked{others or seen or '; no hook was'}"
    counted = Counter(hook.decision for hook in asked)
    answered = [hook for hook in asked if hook.decision not in NO_ANSWER]
    if decision is None:
        if answered:
            return True, f"{quoted(name)} was asked {_times(len(_asks(asked)))} and decided {_decisions(counted)}"
        return False, f"{quoted(name)} was asked {_times(len(_asks(asked)))} and answered none ({_decisions(counted)})"
    if counted[decision]:
        return True, f"{quoted(name)} decided {quoted(decision)} ({_decisions(counted)})"
    wrong = "answered none" if not answered else f"never decided {quoted(decision)}"
    return False, (
        f"{quoted(name)} was asked {_times(len(_asks(asked)))} and {wrong}; "
        f"{quoted(decision)} was wanted ({_decisions(counted)})"
    )


def _asks(asked: Sequence[HookCall]) -> Sequence[HookCall]:
    """A fallback that follows the failed call it stands for is not a second question."""
    failed = sum(1 for hook in asked if not hook.fallback and hook.decision == "failed")
    replayed = [hook for hook in asked if hook.fallback]
    return [hook for hook in asked if not hook.fallback] + replayed[failed:]


def _by_the_platform(hook: HookCall) -> bool:
    return hook.source == PLATFORM_SOURCE or hook.source.startswith(PLATFORM_SOURCE + ".")


def _decisions(counted: Counter[str]) -> str:
    return ", ".join(f"{number} {decision or 'without a decision'}" for decision, number in counted.most_common())


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
