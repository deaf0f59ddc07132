"""Choose the ending of a passage: its true last sentence among last sentences of other passages.

Scored by likelihood per token of the ending, as in MT-NLG (section 4); scores per byte and in total are reported
too.
"""

from collections.abc import Sequence
from typing import NamedTuple

from trivium.errors import DataError
from trivium.evaluation.config import EvaluationConfig
from trivium.evaluation.tasks.items import Item, cut_last_sentence, head, tail
from trivium.evaluation.tasks.task import Example, Task, Template, choose_examples
from trivium.seeds import generator_for

NAME = "continuation"
VERSION = 2
CHOICES = 4


class _Cut(NamedTuple):
    """A passage split into context and ending."""

    item: Item
    context: str
    ending: str


def continuation_task(items: Sequence[Item], config: EvaluationConfig, *, seed: int) -> Task:
    """Build the task over passages of two sentences or more. Raises DataError if there are too few."""
    cuts = [c for c in (_cut(item, config) for item in items) if c is not None]
    pool = tuple(e for e in (_example(c, cuts, seed=seed) for c in cuts) if e is not None)
    if not pool:
        raise DataError(
            f"{len(cuts)} of {len(items)} evaluation items have two sentences or more; a choice of {CHOICES} different "
            f"endings needs at least {CHOICES}, of several documents: give more text"
        )
    return Task(
        name=NAME,
        version=VERSION,
        scoring="likelihood",
        template=Template(alone="{context}", among="{context}"),
        examples=choose_examples(pool, limit=config.continuation_examples, seed=seed, task=NAME),
        pool=pool,
        chance=1 / CHOICES,
        borrowed=True,
    )


def _cut(item: Item, config: EvaluationConfig) -> _Cut | None:
    parts = cut_last_sentence(item.text.strip())
    if parts is None:
        return None
    return _Cut(item, tail(parts[0], config.context_characters), head(parts[1], config.ending_characters))


def _example(cut: _Cut, cuts: Sequence[_Cut], *, seed: int) -> Example | None:
    """Return the true ending among endings of other documents, in a keyed order; None if there are too few."""
    generator = generator_for(seed, "choices", NAME, cut.item.id)
    endings = [cut.ending]
    for k in generator.permutation(len(cuts)).tolist():
        if cuts[k].item.document != cut.item.document and cuts[k].ending not in endings:
            endings.append(cuts[k].ending)
        if len(endings) == CHOICES:
            order = generator.permutation(CHOICES).tolist()
            choices = tuple(f" {endings[k]}" for k in order)
            return Example(cut.item.id, cut.item.document, cut.context, choices, order.index(0))
    return None
