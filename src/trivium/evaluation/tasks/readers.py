"""Convert rows of a benchmark, from files or from the Hub, into examples."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from trivium.errors import DataError
from trivium.evaluation.tasks.definition import Definition, Wording
from trivium.evaluation.tasks.task import Example

Row = Mapping[str, Any]
LETTERS = "ABCD"
BY_FIELDS = ("fields", "hans", "wic")  # readers whose prompt is the task's template filled with fields of the row
# A wikiHow tag; otherwise the rest of a line that has an unclosed bracket, so that its other brackets are not tried
# again.
_MARK = re.compile(r"\[[^\]\n]*+(\])?")
_ENDED = re.compile(r"""[.!?…]["'”’)\]]*$""")
BLANK = "  _  ."  # at the end of a RACE question


def read_examples(rows: Sequence[Row], of: Definition, wording: Wording, *, where: str) -> list[Example]:
    """Return the examples in rows. Raises DataError, which names the row and the missing or invalid field."""
    if not rows:
        raise DataError(f"{where} holds no rows for task {of.name}; give a file with at least one")
    numbered = _together(rows, of, wording, where) if of.reader == "race" else list(enumerate(rows, 1))
    found: list[Example] = []
    for place, (number, row) in enumerate(numbered, 1):
        with _naming(of, row, where, number):
            found.append(_READERS[of.reader](row, of, wording, f"{where}:{place}"))
    return found


@contextmanager
def _naming(of: Definition, row: Row, where: str, number: int) -> Iterator[None]:
    """Convert errors in a row into DataError with its 1-based number in the file."""
    try:
        yield
    except KeyError as error:
        raise DataError(
            f"{where}, row {number}: there is no field {error}, which task {of.name} reads, among "
            f"{', '.join(map(str, row))}"
        ) from None
    except (ValueError, IndexError, TypeError, AttributeError) as error:
        raise DataError(f"{where}, row {number}: {str(row)[:80]} is no row of {of.name}: {error}") from None


def completed(row: Row, of: Definition) -> Row:
    """Return a row with all fields that the task reads, whichever publisher it comes from."""
    if of.reader == "hans":  # by its authors with sentence1, sentence2 and gold_label; on the Hub without gold_label
        label = row["label"] if "label" in row else row["gold_label"]
        words = {number: word for word, number in of.answers.items()}
        return {
            **row,
            "premise": row["premise"] if "premise" in row else row["sentence1"],
            "hypothesis": row["hypothesis"] if "hypothesis" in row else row["sentence2"],
            "label": label,
            "gold_label": words.get(_number(label, of.answers), str(label)),
        }
    if of.reader == "wic":  # The harness shows the word as it is written in the first sentence.
        written = str(row["sentence1"])[row["start1"] : row["end1"]] if "start1" in row else row["word"]
        return {**row, "written": written}
    if of.reader == "fields" and "context" in row:  # The authors of ANLI call the premise "context".
        row = {"premise": row["context"], **row}
    if "{sentence}" in of.paper.prompt:
        row = {**row, "sentence": as_sentence(str(_Fields(row)["hypothesis"]))}
    return row


def as_sentence(text: str) -> str:
    """Append a full stop unless the text ends with punctuation, possibly inside quotes or brackets."""
    text = text.rstrip()
    return text if _ENDED.search(text) else f"{text}."


def _fields(row: Row, of: Definition, wording: Wording, key: str) -> Example:
    row = completed(row, of)
    choices = tuple(_filled(c, row) for c in of.choices)
    assert of.answer is not None, f"task {of.name} says no field of the answer"
    return _example(row, of, wording, key, choices, _number(row[of.answer], of.answers))


def _lambada(row: Row, of: Definition, wording: Wording, key: str) -> Example:
    context, space, word = str(row["text"]).rstrip().rpartition(" ")
    if not space or not word:
        raise ValueError("the text has no last word behind a space")
    return _example({**row, "context": context}, of, wording, key, (f" {word}",), 0)


def _hellaswag(row: Row, of: Definition, wording: Wording, key: str) -> Example:
    """Read rows as published, or with `query`, `choices` and `gold` as the harness prepares them.

    The harness leaves a space where a wikiHow tag began a text, so that half of the endings start with two spaces.
    The harness wording keeps both; the paper's wording has one space before each ending.
    """
    if "query" in row:
        query, endings, answer = row["query"], _listed(row, "choices"), row["gold"]
    else:
        query = _cleaned(f"{_filled('{activity_label}: {ctx_a}', row)} {row['ctx_b'].capitalize()}")
        endings, answer = [_cleaned(e) for e in _listed(row, "endings")], row["label"]
    if wording == "paper":
        query, endings = query.strip(), [e.strip() for e in endings]
    choices = tuple(f" {e}" for e in endings)
    return _example({**row, "query": query}, of, wording, key, choices, _number(answer))


def _winogrande(row: Row, of: Definition, wording: Wording, key: str) -> Example:
    before, blank, behind = str(_Fields(row)["sentence"]).partition("_")
    if not blank:
        raise ValueError("the sentence has no blank _")
    prompt = of.prompts(wording).prompt
    contexts = tuple(_filled(prompt, {**row, "before": before + row[o]}) for o in ("option1", "option2"))
    answer = _number(row["answer"]) - 1
    solved = before + str(row[("option1", "option2")[answer]]) + behind  # the text as it would occur in a corpus
    shown = {**row, "before": before, "sentence": solved}
    # All choices are the same text; only their contexts differ.
    return _example(shown, of, wording, key, (f" {behind.strip()}",) * 2, answer, contexts)


def _race(row: Row, of: Definition, wording: Wording, key: str) -> Example:
    *earlier, last = row["questions"]
    solved = "".join(_solved(question, wording) for question in earlier)
    choices = tuple(" " + option for option in _listed(last, "options"))
    shown = {**row, "earlier": solved, "question": last["question"]}
    return _example(shown, of, wording, key, choices, _lettered(last["answer"]))


def _solved(question: Row, wording: Wording) -> str:
    """Format an earlier question of a passage with its answer. The harness fills a blank at the end of the question."""
    text, letter = str(_Fields(question)["question"]), question["answer"]
    answer = question["options"][_lettered(letter)]
    if answer is None:
        raise ValueError(f"the option {letter} is null")
    if wording == "harness" and text.endswith(BLANK):
        return f"{text[: 1 - len(BLANK)]}{answer}\n"
    return f"Question: {text}\nAnswer: {answer}\n"


def _together(rows: Iterable[Row], of: Definition, wording: Wording, where: str) -> list[tuple[int, Row]]:
    """Group RACE's rows, one per question, by passage.

    Returns (number of the last question's row, passage with all its questions). Earlier rows were checked here, so
    an error in an example is attributed to the last row.
    """
    passages: dict[str, dict[str, Any]] = {}
    last: dict[str, int] = {}
    for number, row in enumerate(rows, 1):
        with _naming(of, row, where, number):
            article = _Fields(row)["article"]
            if not isinstance(article, str):
                raise ValueError(f"the article {str(article)[:40]!r} is not a string")
            _solved(row, wording)
        passages.setdefault(article, {**row, "questions": []})["questions"].append(row)
        last[article] = number
    return [(last[article], passage) for article, passage in passages.items()]


def _example(
    row: Row,
    of: Definition,
    wording: Wording,
    key: str,
    choices: tuple[str, ...],
    answer: int,
    contexts: tuple[str, ...] = (),
) -> Example:
    if not 0 <= answer < len(choices):
        raise ValueError(f"the answer {answer} is not one of the {len(choices)} choices")
    if not all(c.strip() for c in choices):
        raise ValueError("a choice is empty")
    context = contexts[0] if contexts else _filled(of.prompts(wording).prompt, row)
    groups = {" × ".join(fields): " × ".join(str(row[f]) for f in fields) for fields in of.groups}
    own = str(row.get("pairID") or row.get("uid") or row.get("id") or key)
    overlap = _filled(of.overlap, row)
    for text in (own, context, *contexts, *choices, overlap):
        refuse_halves(text)
    return Example(own, own, context, choices, answer, contexts, groups, overlap)


def refuse_halves(text: str) -> None:
    """Raise ValueError for a lone surrogate, which JSON can contain as \\ud83d."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{text[error.start]!r} is a lone surrogate; write a full character or remove it") from None


class _Fields(dict[str, Any]):
    """The fields of a row. Reading a field that is null, a list or an object raises ValueError, because a prompt would
    contain "None" or other Python code."""

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        if value is None:
            raise ValueError(f"the field {name!r} is null")
        if isinstance(value, (list, dict)):
            raise ValueError(f"the field {name!r} is not a text")
        return value


def _filled(template: str, row: Row) -> str:
    return template.format_map(_Fields(row))


def _listed(row: Row, name: str) -> list[str]:
    """Return a list of choices. Raises ValueError for a text, whose letters would be taken for choices."""
    if not isinstance(row[name], list) or not all(isinstance(one, str) for one in row[name]):
        raise ValueError(f"the field {name!r} is not a list of texts")
    found: list[str] = row[name]
    return found


def _lettered(value: Any) -> int:
    """Return the option that a letter names, which must be exactly one letter."""
    if value not in (*LETTERS,):
        raise ValueError(f"the answer {value!r} is none of the letters {', '.join(LETTERS)}")
    return LETTERS.index(value)


def _number(value: Any, spelt: Mapping[str, int] | None = None) -> int:
    """Return the correct choice from a number, a boolean, or a spelling that the task defines."""
    if spelt and str(value) in spelt:
        return spelt[str(value)]
    if isinstance(value, float) and not value.is_integer():
        raise ValueError(f"the answer {value} is not a whole number")
    return int(value)


def _cleaned(text: str) -> str:
    """Remove wikiHow tags, as the harness does."""
    text = _MARK.sub(lambda found: "" if found[1] else found[0], text.strip().replace(" [title]", ". "))
    return text.replace("  ", " ")


_READERS: Mapping[str, Callable[[Row, Definition, Wording, str], Example]] = {
    **dict.fromkeys(BY_FIELDS, _fields),
    "lambada": _lambada,
    "race": _race,
    "hellaswag": _hellaswag,
    "winogrande": _winogrande,
}
