"""Costs 0.01 a turn, and says so; notes each start in COUNT_FILE."""

import json
import os
import sys

turn = json.load(sys.stdin)
descriptor = os.open(os.environ["COUNT_FILE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
os.write(descriptor, (json.dumps([0, "start", turn["chat_id"], turn["message"]]) + "\n").encode())
print(json.dumps({"type": "usage", "input_tokens": 1, "output_tokens": 1, "amount": "0.01"}))
print(json.dumps({"type": "answer", "text": turn["message"]}))
