"""A task as data: examples, a template, a scoring rule; and the prompt each example becomes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from trivium.errors import DataError
from trivium.seeds import generator_for, seed_for

Scoring = Literal["greedy", "likelihood"]
# What the log-likelihood of a choice is divided by: its tokens (MT-NLG); its bytes or characters without the space it
# begins with (acc_bytes and acc_norm of the harness); nothing; or what it is compared with: the choice after a text
# that says nothing (RACE in GPT-3).
Normalisation = Literal["token", "byte", "character", "none", "unconditional"]


@dataclass(frozen=True, slots=True)
class Example:
    """One question. `choices` begin with their own space; `answer` is the number of the right one.

    contexts: of each choice, where they differ. groups: by name, the group it belongs to. overlap: the text to look
    for in a corpus.
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
        """What stands before this choice."""
        return self.contexts[choice] if self.contexts else self.context

    @property
    def solution(self) -> str:
        """The right choice."""
        return self.choices[self.answer]

    @property
    def text(self) -> tuple[str, str]:
        """Question and solution, whatever its id."""
        return self.context, self.solution


@dataclass(frozen=True, slots=True)
class Template:
    """How examples become a prompt: `alone` without shots, `among` for every example with them."""

    alone: str
    among: str  # the solution follows it
    separator: str = "\n\n"

    def prompt(self, example: Example, shots: Sequence[Example], choice: int = 0) -> str:
        """The shots, solved, then the example, open before one of its choices."""
        context = example.context_of(choice)
        if not shots:
            return self.alone.format(context=context)
        solved = [self.among.format(context=s.context_of(s.answer)) + s.solution for s in shots]
        return self.separator.join([*solved, self.among.format(context=context)])


@dataclass(frozen=True, slots=True)
class Task:
    """A benchmark.

    scoring "greedy": right when greedy generation gives the solution; "likelihood": right when the solution is the
    likeliest choice. `examples` are asked; `pool` is where shots come from. `chance`: expected share right of a
    guess. `version` grows with every change of meaning, so that results are compared only when equal.
    """

    name: str
    version: int
    scoring: Scoring
    template: Template
    examples: tuple[Example, ...]
    pool: tuple[Example, ...]
    chance: float
    normalisation: Normalisation = "token"  # of the headline, for choices
    unconditional: str | None = None  # the text that says nothing
    borrowed: bool = (
        False  # wrong choices are solutions of other examples, which then are no shots of the question
    )


def choose_examples(examples: Sequence[Example], *, limit: int, seed: int, task: str) -> tuple[Example, ...]:
    """At most `limit` examples, by keyed hash of their id: a higher limit only adds to a lower one."""
    ranked = sorted(examples, key=lambda e: (seed_for(seed, "examples", task, e.id), e.id))
    return tuple(ranked[:limit])


def choose_shots(task: Task, *, shots: int, seed: int) -> Callable[[Example], list[Example]]:
    """What chooses solved examples for a question: keyed, of other documents and never the question itself, and more
    shots only add at the front.

    Where choices are borrowed, none whose solution is one of them: a model that copies what it read would be led to
    that choice, or from it, whatever it knows of the passage.
    """
    documents: dict[str, list[int]] = {}
    texts: dict[tuple[str, str], list[int]] = {}  # some files hold a question twice, under two ids
    solutions: dict[str, list[int]] = {}
    for place, example in enumerate(task.pool):
        documents.setdefault(example.document, []).append(place)
        texts.setdefault(example.text, []).append(place)
        if task.borrowed:
            solutions.setdefault(example.solution, []).append(place)

    def choose(example: Example) -> list[Example]:
        own = sorted(
            {
                *documents.get(example.document, ()),
                *texts.get(example.text, ()),
                *(place for choice in example.choices for place in solutions.get(choice, ())),
            }
        )
        others = len(task.pool) - len(own)
        if others < shots:
            besides = " and end in none of its choices" if task.borrowed else ""
            raise DataError(
                f"task {task.name}: {shots} shots were asked for, but only {others} examples are of other documents "
                f"than {example.id}{besides}; ask for fewer (--shots, or evaluation.shots for a run's own tasks) or "
                "give more rows"
            )
        if not shots:
            return []
        order = generator_for(seed, "shots", task.name, example.id).permutation(others)
        return [task.pool[_without(own, k)] for k in order[:shots].tolist()][::-1]

    return choose


def others_than(asked: Sequence[Example], pool: Sequence[Example]) -> tuple[Example, ...]:
    """Those of the pool that are of no document and no text of the questions asked."""
    documents, texts = {e.document for e in asked}, {e.text for e in asked}
    return tuple(e for e in pool if e.document not in documents and e.text not in texts)


def _without(left_out: Sequence[int], place: int) -> int:
    """The place in a whole of a place in what is left of it; left_out: ascending."""
    for hole in left_out:
        if hole > place:
            break
        place += 1
    return place
