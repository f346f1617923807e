"""Says one line of every type of the protocol."""

import json
import sys

turn = json.load(sys.stdin)


def say(**line: object) -> None:
    print(json.dumps(line), flush=True)


say(type="hook", hook="tools.before", decision="answered", source="hooks/tools.py", duration_ms=1.5)
say(type="tool_call", id="c1", name="lookup", args={"q": turn["message"]})
say(type="tool_result", id="c1", output={"found": 1})
say(type="usage", input_tokens=10, output_tokens=2, amount="0.0010")
say(type="usage", input_tokens=5, output_tokens=1, amount="0.0005")
say(type="answer", text="done: " + turn["message"])
