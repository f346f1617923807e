"""Ignores SIGTERM and never ends. Its argument names a file for its pid."""

import json
import os
import signal
import sys
import time
from pathlib import Path

signal.signal(signal.SIGTERM, signal.SIG_IGN)
if len(sys.argv) > 1:
    Path(sys.argv[1]).write_text(str(os.getpid()), encoding="ascii")
print(json.dumps({"type": "tool_call", "id": "started", "name": "started", "args": {"pid": os.getpid()}}), flush=True)
while True:
    time.sleep(60)
