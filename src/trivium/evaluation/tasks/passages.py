"""Tasks over the passages that were held out of a corpus (`evaluation_items.jsonl`).

"last_word" asks for the last word of a passage, as LAMBADA does (Paperno et al. 2016; MT-NLG, section 4). Zero-shot
uses the passage as it is; few-shot uses GPT-3's cloze format "... ____. -> word". Chance is a guess among the words of
the shown passage, as in LAMBADA's own baseline.

"continuation" asks which of four last sentences ends a passage. It is scored by likelihood per token, as in MT-NLG
(section 4).
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trivium.errors import DataError
from trivium.evaluation.config import EvaluationConfig, TaskName
from trivium.evaluation.tasks.readers import refuse_halves
from trivium.evaluation.tasks.task import Example, Task, Template, choose_examples
from trivium.jsonlines import read_rows
from trivium.seeds import generator_for

VERSIONS: dict[TaskName, int] = {"last_word": 1, "continuation": 2}
CHOICES = 4
_SENTENCE_START = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'(])")
_LAST_WORD = re.compile(r"^(?P<context>.*\S)\s+(?P<word>[A-Za-z]{3,})[.!?\"')]*$", re.DOTALL)


class Item(NamedTuple):
    """A passage of a held-out document."""

    id: str
    document: str
    text: str


def read_items(path: Path) -> list[Item]:
    """Return the passages of a file of JSON lines {id, document, text}. Raises DataError, naming the line."""
    rows = read_rows(path, remedy="run `trivium corpus harvest` again")
    items = [_item(path, number, row) for row, number in rows]
    if not items:
        raise DataError(f"{path} holds no evaluation items; give more text, or run `trivium corpus harvest` again")
    seen: set[str] = set()
    for item in items:
        if item.id in seen:
            raise DataError(f"{path} gives the id {item.id!r} twice; every item needs its own")
        seen.add(item.id)
    return items


def _item(path: Path, number: int, row: Any) -> Item:
    values: list[Any] = [row.get(name) for name in Item._fields] if isinstance(row, dict) else []
    if not values or not all(isinstance(v, str) and v.strip() for v in values):
        raise DataError(
            f"{path}, line {number}: {str(row)[:60]!r} is not {{id, document, text}}; "
            "run `trivium corpus harvest` again"
        )
    for name, value in zip(Item._fields, values, strict=True):
        try:
            refuse_halves(value)
        except ValueError as error:
            raise DataError(f"{path}, line {number}, {name}: {error}") from None
    return Item(*values)


def build_task(name: TaskName, items: Sequence[Item], config: EvaluationConfig, *, seed: int) -> Task:
    """Build a task over the passages. Raises DataError if there are too few of them."""
    return (_last_word_task if name == "last_word" else _continuation_task)(items, config, seed=seed)


def _last_word_task(items: Sequence[Item], config: EvaluationConfig, *, seed: int) -> Task:
    pool = []
    for item in items:
        if match := _LAST_WORD.match(item.text.strip()):
            context = tail(match["context"], config.context_characters)
            pool.append(Example(item.id, item.document, context, (f" {match['word']}",), 0))
    if not pool:
        raise DataError(f"none of {len(items)} evaluation items ends in a word of 3 letters or more; harvest again")
    examples = choose_examples(pool, limit=config.last_word_examples, seed=seed, task="last_word")
    words = [re.findall(r"[A-Za-z]+", e.context) for e in examples]
    shares = [w.count(e.solution.strip()) / len(w) if w else 0.0 for w, e in zip(words, examples, strict=True)]
    return Task(
        name="last_word",
        version=VERSIONS["last_word"],
        scoring="greedy",
        template=Template(alone="{context}", among="{context} ____. ->"),
        examples=examples,
        pool=tuple(pool),
        chance=sum(shares) / len(examples),
    )


def _continuation_task(items: Sequence[Item], config: EvaluationConfig, *, seed: int) -> Task:
    parted = [(item, parts) for item in items if (parts := cut_last_sentence(item.text.strip()))]
    cuts = [
        (item, tail(before, config.context_characters), head(last, config.ending_characters))
        for item, (before, last) in parted
    ]
    pool = tuple(e for e in (_choice(*cut, cuts, seed=seed) for cut in cuts) if e is not None)
    if not pool:
        raise DataError(
            f"{len(cuts)} of {len(items)} evaluation items have two sentences or more; a choice of {CHOICES} different "
            f"endings needs at least {CHOICES}, of several documents: give more text"
        )
    return Task(
        name="continuation",
        version=VERSIONS["continuation"],
        scoring="likelihood",
        template=Template(alone="{context}", among="{context}"),
        examples=choose_examples(pool, limit=config.continuation_examples, seed=seed, task="continuation"),
        pool=pool,
        chance=1 / CHOICES,
        borrowed=True,
    )


def _choice(
    item: Item, context: str, ending: str, cuts: Sequence[tuple[Item, str, str]], *, seed: int
) -> Example | None:
    """Return the true ending among endings of other documents, in a keyed order; None if there are too few."""
    generator = generator_for(seed, "choices", "continuation", item.id)
    endings = [ending]
    for k in generator.permutation(len(cuts)).tolist():
        other, _, last = cuts[k]
        if other.document != item.document and last not in endings:
            endings.append(last)
        if len(endings) == CHOICES:
            order = generator.permutation(CHOICES).tolist()
            return Example(item.id, item.document, context, tuple(f" {endings[k]}" for k in order), order.index(0))
    return None


def tail(text: str, characters: int) -> str:
    """Return the end of a text: full words of at most `characters` letters, but at least one word."""
    text = " ".join(text.split())
    if len(text) <= characters:
        return text
    first = text.find(" ", len(text) - characters - 1)
    return text[first + 1 :] if first >= 0 else text[text.rfind(" ") + 1 :]


def head(text: str, characters: int) -> str:
    """Return the beginning of a text: full words of at most `characters` letters, but at least one word."""
    text = " ".join(text.split())
    if len(text) <= characters:
        return text
    last = text.rfind(" ", 0, characters + 1)
    return text[:last] if last > 0 else text.split(" ", 1)[0]


def cut_last_sentence(text: str) -> tuple[str, str] | None:
    """Split a text before its last sentence; None for a single sentence."""
    starts = list(_SENTENCE_START.finditer(text))
    return (text[: starts[-1].start()], text[starts[-1].end() :]) if starts else None
