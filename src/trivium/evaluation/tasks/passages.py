"""Tasks over the passages that were held out of a corpus (`evaluation_items.jsonl`).

"last_word" asks for the last word of a passage, as LAMBADA does (Paperno et al. 2016; MT-NLG, section 4). Zero-shot
uses the passage as it is; few-shot uses GPT-3's cloze format "... ____. -> word". Chance is a guess among the words of
the shown passage, as in LAMBADA's own baseline.

"continuation" asks which of four last sentences ends a passage. It is scored by likelihood per token, as in MT-NLG
(section 4). choices.py has the other tasks.
"""

import re
from collections.abc import Callable, Sequence

from trivium.errors import DataError
from trivium.evaluation.config import EvaluationConfig, TaskName
from trivium.evaluation.tasks.choices import agreement_task, names_task, word_order_task
from trivium.evaluation.tasks.items import Item, cut_last_sentence, head, tail
from trivium.evaluation.tasks.task import Example, Task, Template, choose_examples
from trivium.seeds import generator_for

VERSIONS: dict[TaskName, int] = {"last_word": 1, "continuation": 2, "agreement": 1, "word_order": 1, "names": 1}
CHOICES = 4
_LAST_WORD = re.compile(r"^(?P<context>.*\S)\s+(?P<word>[A-Za-z]{3,})[.!?\"')]*$", re.DOTALL)


def build_task(name: TaskName, items: Sequence[Item], config: EvaluationConfig, *, seed: int) -> Task:
    """Build a task over the passages. Raises DataError if there are too few of them."""
    builders: dict[TaskName, Callable[..., Task]] = {
        "last_word": _last_word_task,
        "continuation": _continuation_task,
        "agreement": agreement_task,
        "word_order": word_order_task,
        "names": names_task,
    }
    return builders[name](items, config, seed=seed)


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
