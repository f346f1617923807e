"""How did a grader's call end, in a sentence, where it did not answer? (S24)"""

from __future__ import annotations

import os
import signal

from evalfleet.graders.cage import Ending


def end_sentence(ending: Ending, limit: float, judge: str = "the judge") -> str:
    """For the ends "limit", "died" and "garbled". `limit` in seconds; `judge`: whom t.llm asks, with the address."""
    if ending.end == "limit":
        sentence = f"ran over its {limit:g} s and was stopped"
        if ending.llm_ms or ending.in_llm:
            sentence += f"; {ending.llm_ms / 1000:.1f} s of them it waited for {judge}"
            sentence += ", which did not answer" if ending.in_llm else ""
        return sentence
    if ending.end == "garbled":
        return f"its answer cannot be read: {ending.detail}"
    status = ending.status or 0
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            name = f"signal {number}, {signal.Signals(number).name}"
        except ValueError:
            name = f"signal {number}"
        hint = "; most likely the machine ran out of memory" if number == signal.SIGKILL else ""
        return f"its process crashed: killed by {name}{hint}"
    return f"its process ended itself (exit code {os.waitstatus_to_exitcode(status)}) without an answer"
