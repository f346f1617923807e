"""The concierge of a small hotel: a deterministic agent to try evalfleet with.

It plays one turn (docs/agents.md): the turn comes as JSON on stdin, what it does goes out as JSON Lines. It has three
tools (lookup, book, cancel), asks one hook before it uses them, and remembers what the conversation's history says.
"""

import json
import re
import sys

ROOMS = {12: "single", 21: "double", 22: "double", 31: "suite"}
PRICES = {"single": 80, "double": 110, "suite": 240}
LONGEST_STAY = 14


def say(kind, **fields):
    print(json.dumps({"type": kind, **fields}), flush=True)


class Turn:
    """One turn: what the guest wants, and the tools to serve it with."""

    def __init__(self, document):
        self.message = document["message"]
        self.history = document["history"]
        self.calls = 0

    def call(self, tool, args, work):
        """Use a tool if the hook lets us; None if it does not."""
        allowed = not (tool == "book" and args["nights"] > LONGEST_STAY)
        say("hook", hook="tools.before", decision="answered" if allowed else "deny", source="hooks/stay.py")
        if not allowed:
            return None
        self.calls += 1
        call_id = f"call_{self.calls}"
        say("tool_call", id=call_id, name=tool, args=args)
        output = work(args)
        say("tool_result", id=call_id, output=output)
        return output

    def guest(self):
        """The name that the guest gave, in this turn or in an earlier one."""
        said = [entry["text"] for entry in self.history if entry["role"] == "user"] + [self.message]
        names = [found[1] for text in said if (found := re.search(r"my name is (\w+)", text, re.IGNORECASE))]
        return names[-1] if names else None

    def booking(self):
        """The booking that this conversation is about."""
        said = [entry["text"] for entry in self.history] + [self.message]
        numbers = re.findall(r"\bB-\d+-\d+\b", "\n".join(said))
        return numbers[-1] if numbers else None


def lookup(args):
    return [{"room": room, "price": PRICES[kind]} for room, kind in ROOMS.items() if kind == args["kind"]]


def book(args):
    return {"booking": f"B-{args['room']}-{args['nights']}", "guest": args["guest"]}


def cancel(args):
    return f"cancelled {args['booking']}"


def answer(turn):
    wish = turn.message.lower()
    if "cancel" in wish:
        number = turn.booking()
        if number is None:
            return "I see no booking in our conversation. Which one may I cancel?"
        turn.call("cancel", {"booking": number}, cancel)
        return f"Booking {number} is cancelled."
    kinds = [kind for kind in PRICES if kind in wish]
    if "book" in wish:
        guest = turn.guest()
        if guest is None:
            return "Gladly. Under which name may I book?"
        nights = int((re.search(r"(\d+) nights?", wish) or [0, 1])[1])
        free = turn.call("lookup", {"kind": (kinds or ["double"])[0]}, lookup)
        made = turn.call("book", {"guest": guest, "room": free[0]["room"], "nights": nights}, book)
        if made is None:
            return f"I am sorry, {guest}: we take guests for {LONGEST_STAY} nights at most."
        return f"Room {free[0]['room']} is yours, {guest}. Your booking is {made['booking']}."
    if kinds:
        free = {kind: turn.call("lookup", {"kind": kind}, lookup) for kind in kinds}
        return " ".join(f"A {kind} is {rooms[0]['price']} euros a night." for kind, rooms in free.items())
    if "name" in wish:
        guest = turn.guest()
        return (
            f"Your name is {guest}."
            if guest and "what" in wish
            else f"Welcome, {guest}."
            if guest
            else "I do not know it."
        )
    return "I can look up, book and cancel rooms. What may I do for you?"


def main():
    turn = Turn(json.load(sys.stdin))
    text = answer(turn)
    heard = sum(len(entry["text"]) for entry in turn.history) + len(turn.message)
    say("usage", input_tokens=heard // 4 + 1, output_tokens=len(text) // 4 + 1, amount="0.0001", currency="USD")
    say("answer", text=text)


main()
