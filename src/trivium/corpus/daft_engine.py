"""An engine that runs on Daft: on this machine (native runner) or on a Ray cluster, one process per worker."""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
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
STALL_SECONDS = 60.0  # without a result, before a warning
LOST_SECONDS = 180.0  # without a result since a node was lost, before the run ends
_NODES_POLL_SECONDS = 2.0
# The processors that Ray reserves for a worker: as long as half of them are left, those of lost nodes start again.
_CPUS_OF_A_WORKER = 0.5
Perform = Callable[[daft.Expression], daft.Expression]


class Daft:
    """Runs a task as a Daft user function on each row of a table of items."""

    def __init__(
        self, runner: str, *, workers: int | None, scratch: Path | None = None, address: str | None = None
    ) -> None:
        """`runner`: native or ray. `workers`: None, only for Ray, means all processors of the cluster. `scratch`: a
        folder for the session of a Ray that is started here; a short path. `address`: of a Ray cluster to join, as in
        RAY_ADDRESS; "local" starts one.

        Ray: a cluster that this process is connected to is used; without an address one that runs on this machine is
        joined (`ray start --head`); otherwise one is started. A process can have one runner: raises MachineError if it
        has another one.
        """
        if runner not in RUNNERS:
            raise ConfigError(f"engine {runner} is not known to Daft; {nearest(runner, RUNNERS)}")
        self.runner, self.workers = runner, workers
        if runner == RAY:
            _start_ray(workers, scratch, address)
        try:
            daft.set_runner_native() if runner == NATIVE else daft.set_runner_ray()
        except ValueError:  # one was set before
            current = daft.get_or_create_runner().name
            if current != runner:
                raise MachineError(
                    f"Daft already runs on '{current}' in this process and cannot change to '{runner}'; start a new "
                    f"process"
                ) from None

    def map(self, task: Task, items: Sequence[str], done: Done, *, light: bool = False) -> list[Result]:
        """Run the tasks; see Engine.map."""
        if not items:
            return []
        if self.runner == RAY:
            rows = self._outcomes(task, items, light=light)
            return unpacked(watched(rows, len(items), _lost_nodes), done)
        # Closed here, also after an error: the garbage collector may run in Daft's own thread, and closing waits for
        # that thread.
        with closing(self._outcomes(task, items, light=light)) as outcomes:
            return unpacked(outcomes, done)

    def _outcomes(self, task: Task, items: Sequence[str], *, light: bool) -> Generator[tuple[int, str]]:
        workers = min(self._at_once(), len(items))
        if self.runner == NATIVE and workers == 1:  # this process has nothing else to do
            for number, item in enumerate(items):
                yield from _rows(daft.from_pydict({"number": [number], "item": [item]}), _in_threads(task))
            return
        table = daft.from_pydict({"number": list(range(len(items))), "item": list(items)})
        # One item at a time, so that a free worker takes the next one.
        table = table.into_partitions(len(items)) if self.runner == RAY else table.into_batches(1)
        cpus = _CPUS_OF_A_WORKER if self.runner == RAY else None
        yield from _rows(table, _in_threads(task) if light else _in_processes(task, workers, cpus))

    def _at_once(self) -> int:
        """Return the number of items to work on at a time: on Ray at most one for each processor of its nodes, because
        Daft waits two minutes for workers that have no room."""
        if self.runner != RAY:
            return self.workers or 1
        there = max(1, _processors())
        return min(self.workers or there, there)


def _rows(table: daft.DataFrame, perform: Perform) -> Generator[tuple[int, str]]:
    rows: Any = table.select("number", perform(daft.col("item")).alias("outcome")).iter_rows()
    with closing(rows):
        for row in rows:
            yield row["number"], row["outcome"]


def _in_processes(task: Task, workers: int, cpus: float | None) -> Perform:
    performer: Any = daft.cls(_Performer, max_concurrency=workers, use_process=True, cpus=cpus)
    perform: Perform = performer(task).perform
    return perform


def _in_threads(task: Task) -> Perform:
    @daft.func.batch(return_dtype=daft.DataType.string(), batch_size=1, use_process=False)
    def perform(items: daft.Series) -> list[str]:
        return [packed_outcome(task, item) for item in items.to_pylist()]

    return perform


class _Performer:
    """Runs the task in a worker process."""

    def __init__(self, task: Task) -> None:
        self._task = task
        threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()

    @daft.method.batch(return_dtype=daft.DataType.string(), batch_size=1)
    def perform(self, items: daft.Series) -> list[str]:
        return [packed_outcome(self._task, item) for item in items.to_pylist()]


def watched(
    outcomes: Iterable[tuple[int, str]],
    count: int,
    lost_nodes: Callable[[], Mapping[str, str]],
    *,
    stall_seconds: float = STALL_SECONDS,
    lost_seconds: float = LOST_SECONDS,
) -> Iterator[tuple[int, str]]:
    """Yield the outcomes, and warn on stderr if none arrives for `stall_seconds` or a node is lost.

    lost_nodes: returns the names of all nodes that were ever lost, by their identifiers. Those that were lost before
    the first outcome was requested have no part in the work.

    Ray repeats the work of a lost node on others if it can, and otherwise waits forever. Raises MachineError with the
    node's name if no outcome arrives for `lost_seconds` after that.
    """
    queue: Queue[tuple[int, str] | BaseException | None] = Queue()
    before, known = set(lost_nodes()), dict[str, str]()

    def copy() -> None:
        try:
            for outcome in outcomes:
                queue.put(outcome)
            queue.put(None)
        except BaseException as error:
            queue.put(error)

    # Daft's iterator waits forever if Ray does; then this thread is left behind.
    threading.Thread(target=copy, daemon=True, name="outcomes").start()
    last = warned = time.monotonic()
    number = 0
    while True:
        try:
            outcome = queue.get(timeout=min(_NODES_POLL_SECONDS, stall_seconds))
        except Empty:
            now = time.monotonic()
            for node, name in lost_nodes().items():
                if node not in before and node not in known:
                    _warn(f"Ray lost node {name}; its work is done again on others where Ray can")
                    last, known[node] = now, name  # others have the time to do it
            if known and now - last > lost_seconds:
                raise MachineError(
                    f"no result for {now - last:.0f} s since Ray lost node {', '.join(known.values())} ({number} of "
                    f"{count} parts done); run the same command again to continue on the remaining nodes"
                ) from None
            if now - max(last, warned) > stall_seconds:
                warned = now
                _warn(
                    f"no result from Ray for {now - last:.0f} s ({number} of {count} parts done); `ray status` shows "
                    f"whether it waits for nodes"
                )
            continue
        if outcome is None:
            return
        if isinstance(outcome, BaseException):
            raise outcome
        number, last = number + 1, time.monotonic()
        yield outcome


def _warn(text: str) -> None:
    with suppress(OSError):
        print(plain(f"warning: {text}"), file=sys.stderr, flush=True)


def _lost_nodes() -> dict[str, str]:
    """Return name and address of the nodes that Ray has lost, by their identifiers."""
    lost = [node for node in _nodes() if not node["Alive"]]
    return {node["NodeID"]: f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})" for node in lost}


def _processors() -> int:
    """Return the processors of the nodes that Ray has now."""
    return int(sum(node["Resources"].get("CPU", 0) for node in _nodes() if node["Alive"]))


def _nodes() -> list[dict[str, Any]]:
    import ray

    nodes: Any = ray.nodes  # untyped
    found: list[dict[str, Any]] = nodes()
    return found


def _start_ray(workers: int | None, scratch: Path | None, address: str | None) -> None:
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
