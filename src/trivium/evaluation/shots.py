"""Shots that are the same for every question of a condition, their orders and labels."""

import itertools
import math
from collections.abc import Callable, Sequence

from trivium.errors import DataError
from trivium.evaluation.tasks.task import Example, Task, others_than
from trivium.seeds import generator_for

Draw = Callable[[Example], list[Example]]


class TooFewError(DataError):
    """There are not as many shots as asked for."""


def drawn(
    task: Task,
    shots: int,
    seed: int,
    draw: int,
    keep: Callable[[Example], bool] | None = None,
    whose: str = "",
) -> Draw:
    """The same shots for every question, from examples that are no questions; more shots add at the front."""
    pool = [e for e in others_than(task.examples, task.pool) if keep is None or keep(e)]
    if len(pool) < shots:
        raise TooFewError(
            f"task {task.name}: {shots} shots{whose} were asked for, but only {len(pool)} examples are left beside the "
            f"{len(task.examples)} questions; lower --limit, --shots or compare_at (--set compare_at=N)"
        )
    order = generator_for(seed, "shots", task.name, draw).permutation(len(pool))
    found = [pool[k] for k in order[:shots].tolist()][::-1]
    return lambda example: found


def orders(number: int, shots: int, seed: int) -> list[tuple[int, ...]]:
    """So many orders of as many shots, each once: keyed, more only add behind; all there are where these are fewer."""
    if math.factorial(shots) <= number:
        return list(itertools.permutations(range(shots)))
    keyed = (order(shots, seed, key) for key in itertools.count())
    found: dict[tuple[int, ...], None] = {}
    while len(found) < number:
        found[next(keyed)] = None
    return list(found)


def order(shots: int, seed: int, key: int) -> tuple[int, ...]:
    """A keyed order of as many shots."""
    return tuple(generator_for(seed, "order", key).permutation(shots).tolist())


def in_order(draw: Draw, places: Sequence[int]) -> Draw:
    """The same shots in another order."""

    def ordered(example: Example) -> list[Example]:
        shots = draw(example)
        return [shots[k] for k in places]

    return ordered


def in_turn(each: Sequence[Draw], shots: int, number: int) -> Draw:
    """The k-th shot is the k-th of one of the draws, in turn; `number` says where what is left of whole turns begins.

    So where labels do not divide the shots, those that have one more are others in each number, and over any numbers
    from 0 on no label has two more than another: each begins where the one before ended, or, where all labels but one
    are left, leaves out the next.
    """
    left = shots % len(each)
    step = 1 if left == len(each) - 1 else left
    turns = [(k if k < shots - left else number * step + k) % len(each) for k in range(shots)]
    return lambda example: [each[label](example)[k] for k, label in enumerate(turns)]
