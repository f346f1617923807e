"""Says that it started, answers after the seconds that its argument names (1)."""

import json
import sys
import time

turn = json.load(sys.stdin)
print(json.dumps({"type": "tool_call", "id": "started", "name": "started", "args": {}}), flush=True)
time.sleep(float(sys.argv[1]) if len(sys.argv) > 1 else 1)
print(json.dumps({"type": "answer", "text": f"slowly: {turn['message']}"}))
