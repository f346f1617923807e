"""Is the answer good to read? Judged without a model: what can be counted is counted."""

RUDE = ("whatever", "obviously", "stupid")
ENOUGH = 40  # characters; an answer twice as long is half as good


def brief(t, case, run):
    """A score from 1 (short enough) downwards; the case says from where on it passes."""
    answer = run["final_answer"] or ""
    if not answer:
        return {"pass": False, "score": 0.0, "why": "there is no answer"}
    score = min(1.0, ENOUGH / len(answer))
    return {
        "pass": "\n" not in answer,
        "score": round(score, 2),
        "why": f"{len(answer)} characters in answer to {case['id']}",
    }


def polite(t, case, run):
    """No rude word, and it ends its sentence."""
    answer = (run["final_answer"] or "").lower()
    return answer.endswith((".", "?", "!")) and not any(word in answer for word in RUDE)
