"""Predict the last word of a passage, as in LAMBADA (Paperno et al. 2016; MT-NLG, section 4).

Zero-shot uses the passage as it is. Few-shot uses GPT-3's cloze format "... ____. -> word". Chance is a guess among
the words of the shown passage, as in LAMBADA's own baseline.
"""

import re
from collections.abc import Sequence

from trivium.errors import DataError
from trivium.evaluation.config import EvaluationConfig
from trivium.evaluation.tasks.items import Item, tail
from trivium.evaluation.tasks.task import Example, Task, Template, choose_examples

NAME = "last_word"
VERSION = 1
_LAST_WORD = re.compile(r"^(?P<context>.*\S)\s+(?P<word>[A-Za-z]{3,})[.!?\"')]*$", re.DOTALL)


def last_word_task(items: Sequence[Item], config: EvaluationConfig, *, seed: int) -> Task:
    """Build the task over passages that end in a word of three letters or more. Raises DataError if there are none."""
    pool = tuple(e for e in (_example(item, config.context_characters) for item in items) if e is not None)
    if not pool:
        raise DataError(f"none of {len(items)} evaluation items ends in a word of 3 letters or more; harvest again")
    examples = choose_examples(pool, limit=config.last_word_examples, seed=seed, task=NAME)
    return Task(
        name=NAME,
        version=VERSION,
        scoring="greedy",
        template=Template(alone="{context}", among="{context} ____. ->"),
        examples=examples,
        pool=pool,
        chance=sum(map(_chance, examples)) / len(examples),
    )


def _example(item: Item, characters: int) -> Example | None:
    match = _LAST_WORD.match(item.text.strip())
    if match is None:
        return None
    context = tail(match["context"], characters)
    return Example(item.id, item.document, context, (f" {match['word']}",), 0)


def _chance(example: Example) -> float:
    words = re.findall(r"[A-Za-z]+", example.context)
    return words.count(example.solution.strip()) / len(words) if words else 0.0
