"""Appends the run id to $COUNT_FILE, one line for each call, then answers with the message."""

import json
import os
import sys
import time

turn = json.load(sys.stdin)
descriptor = os.open(os.environ["COUNT_FILE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
os.write(descriptor, f"{turn['run_id']}\n".encode())
os.close(descriptor)
time.sleep(float(os.environ.get("COUNT_SECONDS", "0")))
print(f"counted: {turn['message']}")
