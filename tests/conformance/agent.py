"""The agent of the suite: what it does is decided by its message alone.

wait        says nothing until it is ended
fail        ends as a failure of its own, `agent_broke`, not retryable
silent      ends well, without an answer
many N      N tool calls
anything    one tool call, one hook, some usage, and the message back
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


turn = json.loads(sys.stdin.readline())
word, _, number = turn["message"].partition(" ")
if word == "wait":
    say(type="tool_call", id="w", name="wait", args={})
    time.sleep(600)
elif word == "fail":
    say(type="error", message="broken on request", code="agent_broke")
elif word == "many":
    for call in range(int(number)):
        say(type="tool_call", id=f"c{call}", name="count", args={"n": call})
        say(type="tool_result", id=f"c{call}", output=call)
    say(type="answer", text=number)
elif word != "silent":
    say(type="tool_call", id="c1", name="echo", args={"text": turn["message"]})
    say(type="tool_result", id="c1", output=turn["message"])
    say(type="hook", hook="tools.before", decision="answered", source="hooks/tools.py", duration_ms=1.5)
    say(type="usage", input_tokens=10, output_tokens=5, amount="0.0010")
    say(type="answer", text=f"{turn['turn']}: {turn['message']}")
