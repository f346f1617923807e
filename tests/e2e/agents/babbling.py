"""Prints a line that is no JSON after a good one, and then never ends."""

import json
import time

print(json.dumps({"type": "usage", "input_tokens": 1}))
print("debug: thinking about it", flush=True)
while True:
    time.sleep(60)
