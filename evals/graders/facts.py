"""Does the agent speak of rooms that exist? The rooms are in a file beside this one."""

import json
import re
from pathlib import Path

ROOMS = {room["room"] for room in json.loads(Path(__file__).with_name("rooms.json").read_text(encoding="utf-8"))}


def only_rooms_we_have(t, case, run):
    booked = [call["args"]["room"] for call in run["tool_calls"] if call["name"] == "book"]
    named = [int(number) for number in re.findall(r"\b[Rr]oom (\d+)", run["final_answer"] or "")]
    invented = sorted(set(booked + named) - ROOMS)
    return {"pass": not invented, "why": f"rooms that we do not have: {invented}" if invented else "every room exists"}
