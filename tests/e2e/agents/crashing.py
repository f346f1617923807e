"""Ends badly in the way that its argument names."""

import json
import os
import signal
import sys

json.load(sys.stdin)
how = sys.argv[1] if len(sys.argv) > 1 else "exit"
if how == "exit":
    sys.stderr.write("the tool room is locked\n")
    sys.exit(3)
elif how == "segv":
    os.kill(os.getpid(), signal.SIGSEGV)
elif how == "abort":
    os.abort()
elif how == "midline":
    print(json.dumps({"type": "tool_call", "id": "c1", "name": "lookup", "args": {}}))
    sys.stdout.write('{"type": "answer", "te')
    sys.stdout.flush()
    sys.exit(4)
elif how == "traceback":
    raise KeyError("no such room")
elif how == "quiet":
    print("half an answer")
    sys.exit(5)
