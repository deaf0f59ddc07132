"""Read scores out of the answers of judges. An answer that has no clear score is reported, never guessed."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

NonTranslation = Literal["critical", "as stated"]

WEIGHTS: Mapping[str, float] = {"critical": 25.0, "major": 5.0, "minor": 1.0}
LOWEST_MQM = -25.0
_NUMBER = re.compile(r"(?<![\w.,])[-+]?\d{1,9}(?:\.\d{1,9})?(?![\d,]*\d)(?!\.\d|\w)")
# The rest of a range, as in "80-90". In "85 - 2 errors" the second number is not a score.
_UP_TO_ANOTHER = r"[ \t]*(?:-|–|to|or)[ \t]*\d+(?:\.\d+)?[ \t]*(?:[^\w \t]|\Z)"
_EMPHASIS = re.compile(r"[*_`#]+")
_SEVERITY = re.compile(r"(?:critical|major|minor|neutral)\b")
# One severity and whatever words before a colon, or alone.
_HEADING = re.compile(
    rf"(critical|major|minor)\b(?:(?:(?!\b{_SEVERITY.pattern})[^:：])*[:：]\s*(.*)"
    rf"|(?:\s+(?:errors?|issues?|mistakes?|problems?|severity))?\s*(?:\(\d+\))?)"
)
_BULLET = re.compile(r"\A(?:[-•–—+]|\d{1,2}[.)])\s+")
_CATEGORIES = r"accuracy|fluency|style|terminology|locale(?: convention)?|non-translation|other"
# The category at the beginning of a line, before what is wrong.
_CATEGORY = re.compile(rf"\(?(?:{_CATEGORIES})\b\)?\s*(?:[/:(\-–—\"].*|\w+\s*[-–—:(\"].*)?\Z")
# A category anywhere, with its kind as "fluency/grammar". In a line that is not listed, it may be a remark.
_KIND = re.compile(rf"\b(?:{_CATEGORIES})\s*/\s*\w")
_NO_ERROR = r"(?:no[- ](?:\w+[- ])?(?:errors?|issues?)\b|none\b|n/a\b)"
_NONE = re.compile(rf"(?:(?:{_CATEGORIES})\s*:)?[\s\"'(\[]*{_NO_ERROR}.*")
# An error in a line that begins with "none": a category with its kind, or another severity that is not "none".
_ERROR_BESIDE = re.compile(rf"{_KIND.pattern}|\b{_SEVERITY.pattern}(?: \w+)?\s*[:：](?!\s*{_NO_ERROR})")


@dataclass(frozen=True)
class Parsed:
    """The content of an answer. score: None if it cannot be parsed, for the `reason`. errors: counts by severity."""

    score: float | None
    reason: str = ""
    errors: Mapping[str, int] = field(default_factory=dict)


def without_thoughts(answer: str) -> str:
    """Return an answer without the reasoning that a model wrote before it, or did not end."""
    for mark in ("think", "thinking"):
        answer = answer.rpartition(f"</{mark}>")[2].partition(f"<{mark}>")[0]
    return answer.strip()


def number_in(answer: str, lowest: float, highest: float, *, label: str = "score", at_start: bool = False) -> Parsed:
    """Return the one number of an answer, which must be on the scale from `lowest` to `highest`.

    The scale itself ("/100", "out of 5", "(1-5)") is not a second number. If there are several, the only one that
    follows `label` or "score" and a colon counts. at_start: only a number at the very beginning counts, as in G-Eval.
    """
    text = _EMPHASIS.sub("", without_thoughts(answer)).strip().replace("−", "-")
    top, bottom = f"{highest:g}", f"{lowest:g}"
    text = re.sub(rf"\(?\b{re.escape(bottom)}\s*(?:-|–|to)\s*{re.escape(top)}\b\)?", " ", text)
    text = re.sub(rf"(?<=\d)\s*(?:/|out of)\s*{re.escape(top)}(?!\.?\d)", " ", text)
    if at_start:
        found = [m[0]] if (m := _NUMBER.match(text)) else []
    else:
        found = _NUMBER.findall(text)
        if len(found) > 1:
            labelled = rf"\b(?:{re.escape(label)}|score)\W*[:=]\s*({_NUMBER.pattern})(?!{_UP_TO_ANOTHER})"
            found = re.findall(labelled, text, re.IGNORECASE) or found
    if len(found) != 1:
        return Parsed(None, "several numbers" if found else "no number")
    value = float(found[0])
    return Parsed(value) if lowest <= value <= highest else Parsed(None, "number outside of the scale")


def errors_in(answer: str, *, max_errors: int = 5, non_translation: NonTranslation = "critical") -> Parsed:
    """Return the MQM score of an answer that lists errors by severity: minus 25 for each critical, 5 for each major
    and 1 for each minor error, at least -25. Of more than `max_errors`, the most severe count.

    An answer without errors must say so. An error without a known category or severity, and a line that begins with a
    severity and is no heading, make an answer unparsable.
    """
    found = dict.fromkeys(WEIGHTS, 0)
    severity, says_none = "", False
    for raw in without_thoughts(answer).lower().splitlines():
        stripped = _EMPHASIS.sub("", raw).strip()
        line = _BULLET.sub("", stripped, count=1)
        is_listed = line != stripped or stripped.startswith(('"', "“", "„", "«", "'", "-"))
        if heading := _HEADING.fullmatch(line):
            severity, line, is_listed = heading[1], (heading[2] or "").strip(), True
        if not line:
            continue
        if _NONE.fullmatch(line):
            if _ERROR_BESIDE.search(line):
                return Parsed(None, "error or remark")
            says_none = True
        elif _SEVERITY.match(line):
            return Parsed(None, "unknown heading")
        elif _CATEGORY.match(line) or (is_listed and _KIND.search(line)):
            if not severity:
                return Parsed(None, "error without severity")
            is_garbled = non_translation == "critical" and "non-translation" in line
            found["critical" if is_garbled else severity] += 1
        elif severity and is_listed:
            return Parsed(None, "error without category")
        elif _KIND.search(line):
            return Parsed(None, "error or remark")
        elif line.endswith((":", "：")):
            severity = ""  # The lines below belong to a heading without a known severity.
    if not says_none and not any(found.values()):
        return Parsed(None, "no errors and no statement that there are none")
    total, left = 0.0, max_errors
    for name, weight in WEIGHTS.items():
        total, left = total + weight * min(found[name], left), left - min(found[name], left)
    return Parsed(max(-total, LOWEST_MQM) + 0.0, "", found)
