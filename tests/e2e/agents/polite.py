"""At SIGTERM it reports what it has used and ends."""

import json
import signal
import sys
import time
from types import FrameType


def leave(_number: int, _frame: FrameType | None) -> None:
    print(json.dumps({"type": "usage", "input_tokens": 7}), flush=True)
    sys.exit(0)


signal.signal(signal.SIGTERM, leave)
print(json.dumps({"type": "tool_call", "id": "started", "name": "started", "args": {}}), flush=True)
while True:
    time.sleep(60)
