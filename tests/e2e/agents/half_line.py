"""Ends in the middle of a JSON line, and says that all is well."""

import json
import sys

json.load(sys.stdin)
print(json.dumps({"type": "usage", "input_tokens": 1}))
sys.stdout.write('{"type": "answer", "text": "hal')
