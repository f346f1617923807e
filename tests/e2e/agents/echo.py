"""Answers with the turn that it was given, its environment's names and its folder, as JSON."""

import json
import os
import sys

turn = json.load(sys.stdin)
print(json.dumps({"turn": turn, "environment": sorted(os.environ), "mode": os.environ.get("MODE"), "cwd": os.getcwd()}))
