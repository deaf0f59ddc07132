"""Shots that all questions of a condition share, and their orders and labels."""

import itertools
import math
from collections.abc import Callable, Sequence

from trivium.errors import DataError
from trivium.evaluation.tasks.task import Example, Task, others_than
from trivium.seeds import generator_for

Draw = Callable[[Example], list[Example]]


class TooFewError(DataError):
    """The pool has fewer examples than the requested number of shots."""


def drawn(
    task: Task, shots: int, seed: int, draw: int, keep: Callable[[Example], bool] | None = None, whose: str = ""
) -> Draw:
    """Draw shots that are used for every question, from examples that are not questions.

    A larger number adds shots at the front. keep: filter of the pool. whose: its description in the error. Raises
    TooFewError.
    """
    pool = [e for e in others_than(task.examples, task.pool) if keep is None or keep(e)]
    if len(pool) < shots:
        raise TooFewError(
            f"task {task.name}: {shots} shots{whose} were requested, but only {len(pool)} examples are left besides "
            f"the {len(task.examples)} questions; lower --limit, --shots or compare_at (--set compare_at=N)"
        )
    order = generator_for(seed, "shots", task.name, draw).permutation(len(pool))
    found = [pool[k] for k in order[:shots].tolist()][::-1]
    return lambda example: found


def orders(number: int, shots: int, seed: int) -> list[tuple[int, ...]]:
    """Return `number` distinct orders of `shots` shots, or all orders if there are fewer.

    Orders are keyed by the seed, so a larger number only appends to the list.
    """
    if math.factorial(shots) <= number:
        return list(itertools.permutations(range(shots)))
    keyed = (order(shots, seed, key) for key in itertools.count())
    found: dict[tuple[int, ...], None] = {}
    while len(found) < number:
        found[next(keyed)] = None
    return list(found)


def order(shots: int, seed: int, key: int) -> tuple[int, ...]:
    """Return the order of `shots` shots that this key gives."""
    return tuple(generator_for(seed, "order", key).permutation(shots).tolist())


def in_order(draw: Draw, places: Sequence[int]) -> Draw:
    """Return the same shots in another order."""

    def ordered(example: Example) -> list[Example]:
        shots = draw(example)
        return [shots[k] for k in places]

    return ordered


def in_turn(each: Sequence[Draw], shots: int, number: int) -> Draw:
    """Take the k-th shot from one of the draws in rotation. `number` rotates the draws that supply one shot more.

    If the number of draws does not divide `shots`, some labels occur once more than others. Successive numbers
    begin where the previous one ended (or, if all labels but one have an extra shot, skip the next label). Over any
    numbers from 0 on, the counts of two labels thus differ by at most one.
    """
    left = shots % len(each)
    step = 1 if left == len(each) - 1 else left
    turns = [(k if k < shots - left else number * step + k) % len(each) for k in range(shots)]
    return lambda example: [each[label](example)[k] for k, label in enumerate(turns)]
