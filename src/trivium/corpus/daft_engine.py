"""An engine that runs on Daft: on this machine (native runner) or on a Ray cluster, one process per worker."""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import daft

from trivium.corpus.engine import Done, Result, Task, end_with, packed_outcome, unpacked
from trivium.errors import ConfigError, MachineError, nearest
from trivium.units import plain

NATIVE, RAY = "native", "ray"
RUNNERS = (NATIVE, RAY)
STALL_SECONDS = 60.0  # without a result, after which there is a warning
LOST_SECONDS = 180.0  # without a result since a node was lost, after which the run ends
_NODES_POLL_SECONDS = 2.0
Perform = Callable[[daft.Expression], daft.Expression]


class Daft:
    """Runs a task as a Daft user function on each row of a table of items."""

    def __init__(self, runner: str, *, workers: int, scratch: Path | None = None, address: str | None = None) -> None:
        """`runner`: native or ray. `scratch`: where a Ray started here keeps its session; a short path. `address`: of a
        Ray cluster to join, as RAY_ADDRESS has it; "local" starts one.

        A Ray cluster that this process is already connected to is used as it is, and without an address one that runs
        on this machine is joined (`ray start --head`); where there is none, one is started here. One process of this
        interpreter can have one runner: MachineError when another was set before.
        """
        if runner not in RUNNERS:
            raise ConfigError(f"engine {runner} is not known to Daft; {nearest(runner, RUNNERS)}")
        self.runner, self.workers = runner, workers
        if runner == RAY:
            _start_ray(workers, scratch, address)
        try:
            daft.set_runner_native() if runner == NATIVE else daft.set_runner_ray()
        except ValueError:  # it was set before
            current = daft.get_or_create_runner().name
            if current != runner:
                raise MachineError(
                    f"Daft already runs on '{current}' in this process and cannot go over to '{runner}'; "
                    f"start a new one"
                ) from None

    def map(self, task: Task, items: Sequence[str], done: Done, *, light: bool = False) -> list[Result]:
        """As Engine.map."""
        if not items:
            return []
        # Closed here, also after an error: left to the collector, which may run in Daft's own thread, it would wait
        # there for that thread.
        if self.runner == RAY:
            rows = self._outcomes(task, items, light=light)
            return unpacked(watched(rows, len(items), _lost_nodes), done)
        with closing(self._outcomes(task, items, light=light)) as outcomes:
            return unpacked(outcomes, done)

    def _outcomes(self, task: Task, items: Sequence[str], *, light: bool) -> Generator[tuple[int, str]]:
        workers = min(self.workers, len(items))
        if self.runner == NATIVE and workers == 1:
            # one worker on this machine needs no process of its own: this one has nothing else to do
            for number, item in enumerate(items):
                yield from _rows(daft.from_pydict({"number": [number], "item": [item]}), _in_threads(task))
            return
        table = daft.from_pydict({"number": list(range(len(items))), "item": list(items)})
        # one item at a time: a worker that is free takes the next one
        table = table.into_partitions(len(items)) if self.runner == RAY else table.into_batches(1)
        yield from _rows(table, _in_threads(task) if light else _in_processes(task, workers))


def _rows(table: daft.DataFrame, perform: Perform) -> Generator[tuple[int, str]]:
    found: Any = table.select("number", perform(daft.col("item")).alias("outcome")).iter_rows()
    with closing(found):
        for row in found:
            yield row["number"], row["outcome"]


def _in_processes(task: Task, workers: int) -> Perform:
    performer: Any = daft.cls(_Performer, max_concurrency=workers, use_process=True)
    perform: Perform = performer(task).perform
    return perform


def _in_threads(task: Task) -> Perform:
    @daft.func.batch(return_dtype=daft.DataType.string(), batch_size=1, use_process=False)
    def perform(items: daft.Series) -> list[str]:
        return [packed_outcome(task, item) for item in items.to_pylist()]

    return perform


class _Performer:
    """Runs the task in a worker process on the items it is given."""

    def __init__(self, task: Task) -> None:
        self._task = task
        threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()

    @daft.method.batch(return_dtype=daft.DataType.string(), batch_size=1)
    def perform(self, items: daft.Series) -> list[str]:
        return [packed_outcome(self._task, item) for item in items.to_pylist()]


def watched(
    outcomes: Iterable[tuple[int, str]],
    count: int,
    lost_nodes: Callable[[], Sequence[str]],
    *,
    stall_seconds: float = STALL_SECONDS,
    lost_seconds: float = LOST_SECONDS,
) -> Iterator[tuple[int, str]]:
    """Yield the outcomes as they come, and say so on stderr when none comes for `stall_seconds` or a node is lost.

    Ray does the work of a lost node again on others where it can, and otherwise waits for ever: MachineError names the
    node when `lost_seconds` have passed since, without an outcome.
    """
    found: Queue[tuple[int, str] | BaseException | None] = Queue()
    threading.Thread(target=_pump, args=(outcomes, found), daemon=True, name="outcomes").start()
    came = told = time.monotonic()
    number, known = 0, list[str]()
    while True:
        try:
            outcome = found.get(timeout=min(_NODES_POLL_SECONDS, stall_seconds))
        except Empty:
            now, lost = time.monotonic(), list(lost_nodes())
            for node in lost[len(known) :]:
                _say(f"Ray lost node {node}; its work is done again on others where Ray can")
                came, known = now, lost  # others have the time to do it
            if known and now - came > lost_seconds:
                raise MachineError(
                    f"no result for {now - came:.0f} s since Ray lost node {', '.join(known)} ({number} of {count} "
                    f"parts done); run the same command again to go on, on the nodes that are left"
                ) from None
            if now - max(came, told) > stall_seconds:
                told = now
                _say(
                    f"no result from Ray for {now - came:.0f} s ({number} of {count} parts done); `ray status` shows "
                    f"whether it waits for nodes"
                )
            continue
        if outcome is None:
            return
        if isinstance(outcome, BaseException):
            raise outcome
        number, came = number + 1, time.monotonic()
        yield outcome


def _pump(outcomes: Iterable[tuple[int, str]], found: Queue[tuple[int, str] | BaseException | None]) -> None:
    """Copy outcomes to a queue. Daft's iterator waits forever if Ray does; then this thread is left behind."""
    try:
        for outcome in outcomes:
            found.put(outcome)
        found.put(None)
    except BaseException as error:
        found.put(error)


def _say(text: str) -> None:
    with suppress(OSError):
        print(plain(f"warning: {text}"), file=sys.stderr, flush=True)


def _lost_nodes() -> list[str]:
    """Return the nodes that Ray has lost, by name and address, in its order."""
    import ray

    nodes: Any = ray.nodes  # untyped
    return [f"{n['NodeManagerHostname']} ({n['NodeManagerAddress']})" for n in nodes() if not n["Alive"]]


def _start_ray(workers: int, scratch: Path | None, address: str | None) -> None:
    try:
        import ray
    except ImportError:
        raise MachineError(
            f"the {RAY} engine needs Ray, which is not installed; pip install -e '.[ray]', or --engine {NATIVE}"
        ) from None
    if ray.is_initialized():
        return
    quietly: dict[str, Any] = {
        "logging_level": logging.ERROR,
        "log_to_driver": False,
        "runtime_env": {"env_vars": {"DAFT_PROGRESS_BAR": "0", "DAFT_ANALYTICS_ENABLED": "0"}},
    }
    if address != "local":
        try:
            ray.init(address=address or "auto", **quietly)  # a cluster has its own number of processors
            return
        except (ConnectionError, ValueError) as error:
            if address:
                raise MachineError(
                    f"RAY_ADDRESS={address}: no Ray cluster can be joined there ({' '.join(str(error).split())}); "
                    f"start one (`ray start --head`), or unset RAY_ADDRESS"
                ) from None
    here: dict[str, Any] = {"_temp_dir": str(scratch)} if scratch else {}
    ray.init(address="local", num_cpus=workers, include_dashboard=False, **here, **quietly)
