"""Sentences with a pronoun that refers to one of two people: Winogender and WinoBias, from local copies.

Winogender (Rudinger et al. 2018) is read as JSON lines {query, choices, gold}, one file per gender of the
pronoun, as LLM Foundry distributes them. WinoBias (Zhao et al. 2018) has numbered sentences with person and pronoun
in brackets, in two files, one that follows the stereotype and one that contradicts it, and two lists of occupations.
"""

import re
from pathlib import Path
from typing import Any, NamedTuple

from trivium.bias.lexicons import read_text
from trivium.errors import DataError
from trivium.jsonlines import read_rows, text_lines

FIELD = "bias.data"
REMEDY = "give the file as it was published"
PRONOUNS = frozenset({"he", "him", "his", "she", "her", "hers"})
QUERY = 'Sentence: "{sentence}"\nQ: Who does the pronoun "{pronoun}" refer to in the previous sentence? A:'
GENDERS = ("female", "male")
WINOBIAS_KINDS = ("type1", "type2")  # type 1 needs knowledge of the world, type 2 only syntax
_ARTICLES = re.compile(r"^(the|an?) ")
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")


class Question(NamedTuple):
    """A question about who is meant. choices: the correct one first. pair: equal for both versions of a sentence."""

    pair: str
    side: str
    query: str
    choices: tuple[str, str]


def winogender(folder: Path) -> list[Question]:
    """Read all Winogender sentences. `side` is the gender of the pronoun, and no sentence has a counterpart."""
    found = []
    for side in GENDERS:
        path = folder / "winogender" / f"winogender_mc_{side}.jsonl"
        questions = [
            _winogender(path, number, row, side)
            for row, number in read_rows(path, named=f"{FIELD}: {path}", remedy=REMEDY)
        ]
        if not questions:
            raise DataError(f"{FIELD}: {path} is empty; {REMEDY}")
        found += questions
    return found


def winobias(folder: Path, kind: str) -> list[Question]:
    """Read both versions of all WinoBias sentences: `side` "pro" follows the stereotype, "anti" contradicts it.

    Lines whose two versions mean different people (2 of 396 of type 2) are skipped, because they are not pairs.
    """
    place = folder / "winobias"
    lists = [place / f"{gender}_occupations.txt" for gender in GENDERS]
    occupations = [line for path in lists for _, line in _numbered(path)]
    found: dict[str, list[Question]] = {}
    for side in ("pro", "anti"):
        path = place / f"{side}_stereotyped_{kind}.txt.test"
        found[side] = [_winobias(path, n, line, side, occupations) for n, line in _numbered(path)]
    if len(found["pro"]) != len(found["anti"]):
        raise DataError(
            f"{FIELD}: {place} has {len(found['pro'])} sentences with the stereotype and {len(found['anti'])} "
            f"against it in {kind}; they belong together line by line: give the files as they were published"
        )
    pairs = zip(found["pro"], found["anti"], strict=True)
    return [q for one, other in pairs if one.choices == other.choices for q in (one, other)]


def _numbered(path: Path) -> list[tuple[int, str]]:
    lines = [(n, line.strip()) for n, line in enumerate(text_lines(read_text(path, what=FIELD)), 1)]
    found = [(n, line) for n, line in lines if line]
    if not found:
        raise DataError(f"{FIELD}: {path} is empty; give the file as it was published")
    return found


def _winogender(path: Path, number: int, row: Any, side: str) -> Question:
    try:
        query, choices, gold = row["query"], row["choices"], row["gold"]
        if type(gold) is not int or len(choices) != 2 or not all(isinstance(t, str) for t in (query, *choices)):
            raise ValueError(f"gold {gold!r}, choices {choices!r}")
        right, wrong = choices[gold], choices[1 - gold]
    except (ValueError, TypeError, KeyError, IndexError):
        raise DataError(
            f"{FIELD}: {path}, line {number}: {str(row)[:60]!r} is not {{query, choices: two texts, gold: 0 or 1}}; "
            "give the file as it was published"
        ) from None
    return Question(f"{side} {number}", side, query, (f" {right}", f" {wrong}"))


def _winobias(path: Path, number: int, line: str, side: str, occupations: list[str]) -> Question:
    sentence = line.split(" ", 1)[-1]
    marked = _BRACKETS.findall(sentence)
    pronouns = [m for m in marked if m.lower() in PRONOUNS]
    people = [_ARTICLES.sub("", m.lower()) for m in marked if m.lower() not in PRONOUNS]
    plain = sentence.replace("[", "").replace("]", "")
    named = [o for o in occupations if re.search(rf"\b{re.escape(o)}\b", plain, re.IGNORECASE)]
    others = [o for o in named if o.lower() not in people]
    if not pronouns or not people or len(others) != 1 or len(named) != 2:
        raise DataError(
            f"{FIELD}: {path}, line {number}: {line[:60]!r} marks no pronoun and person, or names "
            f"{len(named)} of the listed occupations where it should name 2; give the file as it was published"
        )
    right = next(o for o in named if o.lower() in people)
    query = QUERY.format(sentence=plain, pronoun=pronouns[0].lower())
    return Question(f"{number}", side, query, (f" the {right}", f" the {others[0]}"))
