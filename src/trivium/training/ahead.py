"""Reads the rows of the next step on a thread, while the present one computes."""

from concurrent.futures import Future, ThreadPoolExecutor

from trivium.tokens.rows import Rows
from trivium.training.batches import Read
from trivium.training.trainer import Samples


class ReadAhead:
    """Rows of samples, some of which were read before they are asked for.

    Rows are a function of their samples' numbers alone, so the time at which they are read changes nothing.
    """

    def __init__(self, read: Read, rank: int, ranks: int) -> None:
        """rank: of this rank's replica among `ranks` data ranks, which decides what it reads of a batch."""
        self._read, self._share = read, (rank, ranks)
        self._thread = ThreadPoolExecutor(1, "rows")
        # Of this step and of the next one, by first number and length.
        self._now, self._next = dict[tuple[int, int], Future[Rows]](), dict[tuple[int, int], Future[Rows]]()

    def rows(self, first: int, count: int) -> Rows:
        """Return samples [first, first + count). An error of the thread that read them is raised here."""
        begun = self._now.pop((first, count), None)
        return self._read(first, count) if begun is None else begun.result()

    def begin(self, samples: Samples) -> None:
        """Begin to read this replica's share of the next step's batch; call this once in each step. Rows of earlier
        steps that nobody asked for are dropped."""
        for left in self._now.values():
            left.cancel()
        self._now = self._next
        self._next = {run: self._thread.submit(self._read, *run) for run in samples.runs(*self._share)}
