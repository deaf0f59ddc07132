"""List scheduling: a simulation in which every rank, whenever it is free, takes the most urgent job it can begin.

What it gives is an order; the lengths of jobs matter only as far as they decide which of two comes first.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Generic, NamedTuple, TypeVar

Name = TypeVar("Name")


class Job(NamedTuple, Generic[Name]):
    """Work of one rank without a pause.

    length: a whole number in any unit, so that the order is the same everywhere. needs: jobs that must have ended.
    urgency: the lowest runs first; different for any two jobs of a rank. takes, gives: the kind of room on its rank of
    which it takes one place, or gives one back as it ends. leaves: number of places that must stay free besides the one
    it takes.
    """

    name: Name
    rank: int
    length: int
    needs: tuple[Name, ...]
    urgency: tuple[int, ...]
    takes: str | None = None
    gives: str | None = None
    leaves: int = 0


def in_order(jobs: Iterable[Job[Name]], ranks: int, room: Mapping[str, int]) -> tuple[tuple[Name, ...], ...]:
    """The names of each rank's jobs in the order in which they begin. room: places of each kind on every rank.

    Jobs that can never begin, for want of an input or of room, are left out.
    """
    every = {job.name: job for job in jobs}
    missing = {name: len(job.needs) for name, job in every.items()}
    readers: defaultdict[Name, list[Job[Name]]] = defaultdict(list)
    for job in every.values():
        for name in job.needs:
            readers[name].append(job)
    places: list[_Rank[Name]] = [_Rank(Counter(room)) for _ in range(ranks)]
    for job in every.values():
        if not job.needs:
            places[job.rank].add(job)
    moments = [(0, rank) for rank in range(ranks)]  # at which a rank may have something to begin
    while moments:
        now = moments[0][0]
        awake = set()
        while moments and moments[0][0] == now:
            awake.add(heapq.heappop(moments)[1])
        for rank in sorted(awake):
            ended = places[rank].end(now)
            for job in readers[ended.name] if ended is not None else ():
                missing[job.name] -= 1
                if missing[job.name] == 0:
                    places[job.rank].add(job)
                    awake.add(job.rank)
        for rank in sorted(awake):
            until = places[rank].begin(now)
            if until is not None:
                heapq.heappush(moments, (until, rank))
    return tuple(tuple(place.done) for place in places)


class _Rank(Generic[Name]):
    """One rank: what it could begin, by urgency, what it is at, and the room it has left."""

    def __init__(self, room: Counter[str]) -> None:
        self.done: list[Name] = []
        self._room, self._until = room, 0
        # Jobs that ask for the same room wait together: where it is short, none of them is looked at.
        self._ready: defaultdict[tuple[str | None, int], list[tuple[tuple[int, ...], Job[Name]]]] = defaultdict(list)
        self._at: Job[Name] | None = None

    def add(self, job: Job[Name]) -> None:
        """A job whose inputs are there."""
        heapq.heappush(self._ready[job.takes, job.leaves], (job.urgency, job))

    def end(self, now: int) -> Job[Name] | None:
        """The job that ends now, if one does."""
        if self._at is None or self._until != now:
            return None
        ended, self._at = self._at, None
        if ended.gives is not None:
            self._room[ended.gives] += 1
        return ended

    def begin(self, now: int) -> int | None:
        """Take the most urgent job for which there is room; when it ends, or None if nothing was begun."""
        if self._at is not None:
            return None
        alike = [
            jobs
            for (takes, leaves), jobs in self._ready.items()
            if jobs and (takes is None or self._room[takes] > leaves)
        ]
        if not alike:
            return None
        _, self._at = heapq.heappop(min(alike, key=lambda jobs: jobs[0][0]))
        if self._at.takes is not None:
            self._room[self._at.takes] -= 1
        self.done.append(self._at.name)
        self._until = now + self._at.length
        return self._until
