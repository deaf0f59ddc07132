"""List scheduling: every job once, after what it needs, with the room it needs, and no rank idle for nothing."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from trivium.plan.list_scheduling import Job, in_order

RANKS = 3


@st.composite
def jobs(draw: st.DrawFn) -> list[Job[int]]:
    """Jobs that need earlier ones, some of which take room that the next of their rank gives back."""
    found: list[Job[int]] = []
    for number in range(draw(st.integers(0, 25))):
        needs = tuple(sorted(draw(st.sets(st.integers(0, number - 1), max_size=3)))) if number else ()
        rank, length = draw(st.integers(0, RANKS - 1)), draw(st.integers(1, 5))
        urgency = (draw(st.integers(0, 3)), number)
        found.append(Job(number, rank, length, needs, urgency))
    return found


def times(every: list[Job[int]], order: tuple[tuple[int, ...], ...]) -> dict[int, tuple[int, int]]:
    """Return when each job begins and ends if each rank runs its jobs in this order, as soon as possible."""
    by_name = {job.name: job for job in every}
    found: dict[int, tuple[int, int]] = {}
    waiting = [list(row) for row in order]
    free = [0] * len(order)
    while any(waiting):
        before = len(found)
        for rank, row in enumerate(waiting):
            while row and all(name in found for name in by_name[row[0]].needs):
                job = by_name[row.pop(0)]
                begin = max([free[rank], *(found[name][1] for name in job.needs)])
                free[rank] = begin + job.length
                found[job.name] = begin, free[rank]
        assert len(found) > before, "the order deadlocks"
    return found


@given(jobs())
def test_every_job_is_done_once_on_its_rank_and_the_most_urgent_that_is_ready_comes_first(
    every: list[Job[int]],
) -> None:
    order = in_order(every, RANKS, {})
    assert Counter(name for row in order for name in row) == Counter(job.name for job in every)
    assert all(every[name].rank == rank for rank, row in enumerate(order) for name in row)
    when = times(every, order)
    for job in every:
        ready = max([0, *(when[name][1] for name in job.needs)])
        begin = when[job.name][0]
        others = [o for o in every if o.rank == job.rank and o is not job]
        # While it could have begun, its rank was at work, and what it began was more urgent.
        busy = sum(max(0, min(when[o.name][1], begin) - max(when[o.name][0], ready)) for o in others)
        assert busy == begin - ready
        assert all(o.urgency < job.urgency for o in others if ready <= when[o.name][0] < begin)


def test_a_job_waits_for_room_and_leaves_what_it_is_told_to() -> None:
    def job(name: str, urgency: int, *needs: str, **more: object) -> Job[str]:
        return Job(name, 0, 1, needs, (urgency,), **more)

    def taking(leaves: int) -> list[Job[str]]:
        first = [job(f"take {n}", n, takes="places", leaves=leaves) for n in range(3)]
        return [*first, *(job(f"give {n}", 9 + n, f"take {n}", gives="places") for n in range(3))]

    (both,) = in_order(taking(0), 1, {"places": 2})
    assert both == ("take 0", "take 1", "give 0", "take 2", "give 1", "give 2")
    (one,) = in_order(taking(1), 1, {"places": 2})
    assert one == ("take 0", "give 0", "take 1", "give 1", "take 2", "give 2")
    assert in_order(taking(2), 1, {"places": 2}) == ((),)


class Counted(int):
    """A number that counts how often it is compared."""

    compared = 0

    def __lt__(self, other: int) -> bool:
        Counted.compared += 1
        return int(self) < int(other)


@given(st.integers(50, 200))
def test_jobs_that_wait_for_room_are_not_looked_at_until_there_is_some(number: int) -> None:
    Counted.compared = 0
    taking = [Job(n, 0, 1, (), (Counted(n),), takes="places") for n in range(number)]
    giving = [Job(-n, 0, 1, (n - 1,), (Counted(number + n),), gives="places") for n in range(1, number + 1)]
    (order,) = in_order([*taking, *giving], 1, {"places": 1})
    assert order == tuple(name for n in range(number) for name in (n, -n - 1))
    assert Counted.compared < 4 * number * number.bit_length()
