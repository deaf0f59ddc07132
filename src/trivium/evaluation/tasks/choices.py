"""Tasks with given choices over held-out passages, which ask for grammar and for what a passage is about.

"agreement" asks which of two forms of a word a passage has, such as "was" or "were", with the words after it, as BLiMP
does (Warstadt et al. 2020). Both forms of a pair are right equally often, so word frequencies do not help. "word_order"
asks whether two neighbouring words are in their order or exchanged. "names" asks for the last name of a passage, if
possible one that it repeats, among those of three other documents.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise

from trivium.errors import DataError
from trivium.evaluation.config import EvaluationConfig, TaskName
from trivium.evaluation.tasks.items import Item, tail
from trivium.evaluation.tasks.task import Example, Task, Template, choose_examples
from trivium.seeds import generator_for, seed_for

PAIRS = (
    *(("was", "were"), ("is", "are"), ("has", "have"), ("does", "do"), ("this", "these"), ("a", "an")),
    *(("he", "him"), ("she", "her"), ("they", "them"), ("we", "us"), ("I", "me")),
)
OTHER_FORM = {form: other for a, b in PAIRS for form, other in ((a, b), (b, a))}
NAMES = 4  # choices of "names"
_BEFORE = 3  # words of context at least
_AFTER = 3  # words of a choice after those that differ
_WORD = re.compile(r"[a-z]+")
_NAME = re.compile(r"([A-Z][a-z]{2,})(?:'s)?[.,;:!?\"]*")
_ENDS_SENTENCE = re.compile(r"[.!?][\"']*$|^[\"']+$")


def agreement_task(items: Sequence[Item], config: EvaluationConfig, *, seed: int) -> Task:
    """Build "agreement". Raises DataError if no pair of forms occurs in both forms."""
    by_form: dict[str, list[Example]] = {}
    for item in items:
        words = item.text.split()
        for at in range(_BEFORE, len(words)):
            if words[at] in OTHER_FORM:
                other = [OTHER_FORM[words[at]], *words[at + 1 :]]
                by_form.setdefault(words[at], []).append(_pair("agreement", item, words, at, other, config, seed))
    pool: list[Example] = []
    for pair in PAIRS:
        number = min(len(by_form.get(form, ())) for form in pair)
        pool += chain.from_iterable(_drawn(by_form.get(form, ()), number, seed) for form in pair)
    return _task("agreement", pool, config.agreement_examples, seed=seed, items=len(items), chance=1 / 2)


def word_order_task(items: Sequence[Item], config: EvaluationConfig, *, seed: int) -> Task:
    """Build "word_order". Raises DataError if no passage has two different plain words side by side."""
    pool = []
    for item in items:
        words = item.text.split()
        places = [k for k in range(_BEFORE, len(words) - 1) if _may_swap(words[k], words[k + 1])]
        if places:
            at = places[seed_for(seed, "word_order", item.id) % len(places)]
            swapped = [words[at + 1], words[at], *words[at + 2 :]]
            pool.append(_pair("word_order", item, words, at, swapped, config, seed))
    return _task("word_order", pool, config.word_order_examples, seed=seed, items=len(items), chance=1 / 2)


def names_task(items: Sequence[Item], config: EvaluationConfig, *, seed: int) -> Task:
    """Build "names". Raises DataError if there are too few names."""
    known = set(chain.from_iterable(_names_inside(item.text.split()) for item in items))
    cuts = [(item, *cut) for item in items if (cut := _last_name(item.text.split(), known))]
    pool = []
    for item, context, name in cuts:
        generator = generator_for(seed, "choices", "names", item.id)
        choices = [name]
        for k in generator.permutation(len(cuts)).tolist():
            other, _, another = cuts[k]
            if other.document != item.document and another not in choices and another not in item.text:
                choices.append(another)
            if len(choices) == NAMES:
                order = generator.permutation(NAMES).tolist()
                given = tuple(f" {choices[k]}" for k in order)
                pool.append(Example(item.id, item.document, context, given, order.index(0)))
                break
    return _task("names", pool, config.names_examples, seed=seed, items=len(items), chance=1 / NAMES)


def _task(name: TaskName, pool: Sequence[Example], limit: int, *, seed: int, items: int, chance: float) -> Task:
    if not pool:
        raise DataError(
            f"none of {items} evaluation items makes a question of the task {name}; give more text, or leave {name} "
            "out of evaluation.tasks"
        )
    return Task(
        name=name,
        version=1,
        scoring="likelihood",
        template=Template(alone="{context}", among="{context}"),
        examples=choose_examples(pool, limit=limit, seed=seed, task=name),
        pool=tuple(pool),
        chance=chance,
        normalisation="none",
        takes_shots=False,
    )


def _pair(
    task: str, item: Item, words: Sequence[str], at: int, wrong: Sequence[str], config: EvaluationConfig, seed: int
) -> Example:
    """Return the question whether a passage continues after a word with its own words or with those of `wrong`."""
    identity, size = f"{item.id}-{at}", _AFTER + 2
    ways = [f" {' '.join(words[at : at + size])}", f" {' '.join(wrong[:size])}"]
    answer = seed_for(seed, "choices", task, identity) % 2
    choices = (ways[0], ways[1]) if answer == 0 else (ways[1], ways[0])
    return Example(identity, item.document, tail(" ".join(words[:at]), config.context_characters), choices, answer)


def _drawn(examples: Sequence[Example], number: int, seed: int) -> Sequence[Example]:
    return choose_examples(examples, limit=number, seed=seed, task="forms")


def _may_swap(first: str, second: str) -> bool:
    return first != second and bool(_WORD.fullmatch(first) and _WORD.fullmatch(second))


def _names_inside(words: Sequence[str]) -> Iterator[str]:
    """Yield the words with a capital letter that begin no sentence."""
    for before, word in pairwise(words):
        if (match := _NAME.fullmatch(word)) and not _ENDS_SENTENCE.search(before):
            yield match[1]


def _last_name(words: Sequence[str], known: set[str]) -> tuple[str, str] | None:
    """Return the last name that occurred before, or else the last name, with the text before it; None if there is
    none."""
    bare = [match[1] if (match := _NAME.fullmatch(word)) else "" for word in words]
    places = [at for at in range(_BEFORE, len(words)) if bare[at] in known]
    repeated = [at for at in places if bare[at] in bare[:at]]
    at = max(repeated or places, default=None)
    return None if at is None else (" ".join(words[:at]), bare[at])
