"""Which score does a judge's answer give? Read loosely, and never guessed: `None` where it is not sure.

For graders that ask a model: `from evals.graders.scores import score_in`.
"""

import json
import re

NUMBER = r"(-?(?:\d+(?:[.,]\d+)?|\.\d+))"
BEGINS = r"(?<![\w.,/-])"  # in no word, version, date or range
ENDS = r"(?![\w/]|[.,]\d)"
OF = r"\s*(?:/|out of)\s*(\d+)" + ENDS
LABEL = r"\b(?:score|rating|grade|verdict)\b[^\w.-]{0,10}(?:is\s+|of\s+)?"


def score_in(text):
    """A number from 0 to 1, or None. In this order: the last JSON object with a `score`; `8/10`, `7 out of 10`; what
    follows "score" or "rating"; `80%`; the only number there is. Two that differ, and one out of range, are none."""
    text = re.sub(r"(?s)<think>.*?</think>", " ", text)
    found = _json_scores(text)
    if found:
        return _sure(found[-1:])
    text = text.replace("*", "").replace("_", "").replace("`", "")
    text = re.sub(r"(?i)\b(?:from|of)\s+\d+(?:\.\d+)?\s*(?:to|-|–)\s*\d+(?:\.\d+)?", " ", text)  # the scale, told back
    for pattern in (LABEL + NUMBER + OF, BEGINS + NUMBER + OF):
        shares = re.findall("(?i)" + pattern, text)
        if shares:
            return _sure([_number(part) / float(whole) for part, whole in shares if float(whole)])
    labelled = re.findall("(?i)" + LABEL + NUMBER + ENDS, text)
    if labelled:
        return _sure([_number(word) for word in labelled])
    percents = re.findall(r"(?<![\w.,-])(\d+(?:\.\d+)?)\s*%", text)
    if percents:
        return _sure([float(word) / 100 for word in percents])
    return _sure([_number(word) for word in re.findall(BEGINS + NUMBER + ENDS, text)])


def _sure(scores):
    return scores[0] if len(set(scores)) == 1 and 0 <= scores[0] <= 1 else None


def _number(word):
    return float(word.replace(",", "."))


def _json_scores(text):
    """The `score` of every JSON object in the text: prose and fences around it, and braces in it, do not matter."""
    found, at = [], text.find("{")
    while at >= 0:
        try:
            value, end = json.JSONDecoder().raw_decode(text, at)
        except (ValueError, RecursionError):
            end = at + 1
        else:
            score = value.get("score") if isinstance(value, dict) else None
            if isinstance(score, str) and re.fullmatch(r"\s*\d*\.?\d+\s*", score):
                score = float(score)
            if isinstance(score, (int, float)) and not isinstance(score, bool):
                found.append(score)
        at = text.find("{", end)
    return found
