"""A task as data: examples, a template and a scoring rule; and the prompt of each example."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from trivium.errors import DataError
from trivium.seeds import generator_for, seed_for

Scoring = Literal["greedy", "likelihood"]
# The divisor of a choice's log-likelihood: its tokens (MT-NLG); its bytes or characters without the leading space
# (acc_bytes and acc_norm of the harness); or 1. "unconditional" subtracts the log-likelihood of the choice after a
# neutral context (RACE in GPT-3).
Normalisation = Literal["token", "byte", "character", "none", "unconditional"]


@dataclass(frozen=True, slots=True)
class Example:
    """One question. `choices` include their leading space; `answer` is the index of the correct one.

    contexts: one per choice, if they differ. groups: {grouping: group}. overlap: the text to search for in a
    corpus.
    """

    id: str
    document: str
    context: str
    choices: tuple[str, ...]
    answer: int
    contexts: tuple[str, ...] = ()
    groups: Mapping[str, str] = field(default_factory=dict)
    overlap: str = ""

    def context_of(self, choice: int) -> str:
        return self.contexts[choice] if self.contexts else self.context

    @property
    def solution(self) -> str:
        return self.choices[self.answer]

    @property
    def text(self) -> tuple[str, str]:
        """The question and its solution, which identify duplicates with different ids."""
        return self.context, self.solution


@dataclass(frozen=True, slots=True)
class Template:
    """Assembles prompts: `alone` formats a question without shots, `among` every example of a prompt with shots."""

    alone: str
    among: str  # followed by the solution
    separator: str = "\n\n"

    def prompt(self, example: Example, shots: Sequence[Example], choice: int = 0) -> str:
        """Return the solved shots followed by the open example, ready for the given choice."""
        context = example.context_of(choice)
        if not shots:
            return self.alone.format(context=context)
        solved = [self.among.format(context=s.context_of(s.answer)) + s.solution for s in shots]
        return self.separator.join([*solved, self.among.format(context=context)])


@dataclass(frozen=True, slots=True)
class Task:
    """A benchmark.

    scoring: "greedy" requires that greedy generation gives the solution; "likelihood", that the solution is the
    most likely choice. examples: the questions. pool: the source of shots. chance: expected accuracy of guessing.
    version: raised with every change of meaning, because only results of equal versions are comparable.
    """

    name: str
    version: int
    scoring: Scoring
    template: Template
    examples: tuple[Example, ...]
    pool: tuple[Example, ...]
    chance: float
    normalisation: Normalisation = "token"  # normalisation of the headline, for tasks with choices
    unconditional: str | None = None  # the neutral context
    takes_shots: bool = True  # solved examples may stand before a question
    borrowed: bool = False  # wrong choices are solutions of other examples, which then are no shots of the question


def choose_examples(examples: Sequence[Example], *, limit: int, seed: int, task: str) -> tuple[Example, ...]:
    """Return at most `limit` examples, ranked by a keyed hash of their ids, so a higher limit only adds some."""
    ranked = sorted(examples, key=lambda e: (seed_for(seed, "examples", task, e.id), e.id))
    return tuple(ranked[:limit])


def choose_shots(task: Task, *, shots: int, seed: int) -> Callable[[Example], list[Example]]:
    """Return the function that chooses a question's solved examples.

    The choice is keyed by the question. It excludes examples of the same document or with the same text, and a
    larger number only adds shots at the front. If choices are borrowed, it also excludes examples whose solution is
    one of the question's choices: a model that copies from its context would be biased towards or against that choice.
    """
    # Keys are documents, texts (some files contain a question twice under two ids), and solutions in a tuple.
    places: dict[tuple[str, ...], list[int]] = {}
    for place, shot in enumerate(task.pool):
        for key in (("document", shot.document, ""), shot.text, *([(shot.solution,)] if task.borrowed else [])):
            places.setdefault(key, []).append(place)

    def choose(example: Example) -> list[Example]:
        keys = (("document", example.document, ""), example.text, *((choice,) for choice in example.choices))
        own = sorted({place for key in keys for place in places.get(key, ())})
        others = np.delete(np.arange(len(task.pool)), own)
        if len(others) < shots:
            besides = " and end in none of its choices" if task.borrowed else ""
            raise DataError(
                f"task {task.name}: {shots} shots were requested, but only {len(others)} examples are of other "
                f"documents than {example.id}{besides}; ask for fewer (--shots, or evaluation.shots for a run's own "
                "tasks) or give more rows"
            )
        if not shots:
            return []
        order = generator_for(seed, "shots", task.name, example.id).permutation(len(others))
        return [task.pool[k] for k in others[order[:shots]].tolist()][::-1]

    return choose


def others_than(asked: Sequence[Example], pool: Sequence[Example]) -> tuple[Example, ...]:
    """Return the pool without examples that share a document or text with the questions."""
    documents, texts = {e.document for e in asked}, {e.text for e in asked}
    return tuple(e for e in pool if e.document not in documents and e.text not in texts)
