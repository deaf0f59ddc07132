"""The pipeline on Daft: on this machine (native runner) or on a Ray cluster, one process per worker."""

import logging
import os
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import daft

from trivium.corpus.engine.engine import Done, Result, Task, end_with, packed_outcome, unpacked
from trivium.errors import ConfigError, MachineError, nearest

NATIVE, RAY = "native", "ray"
RUNNERS = (NATIVE, RAY)
Perform = Callable[[daft.Expression], daft.Expression]


class Daft:
    """The engine of many processes: a table of items, and the task as Daft's user function on each row."""

    def __init__(self, runner: str, *, workers: int, scratch: Path | None = None) -> None:
        """`runner`: native or ray. `scratch`: where a Ray started here keeps its session; a short path.

        A Ray cluster that this process is already connected to is used as it is. One process of this
        interpreter can have one runner: MachineError when another was set before.
        """
        if runner not in RUNNERS:
            raise ConfigError(f"engine {runner} is not known to Daft; {nearest(runner, RUNNERS)}")
        self.runner, self.workers = runner, workers
        if runner == RAY:
            _start_ray(workers, scratch)
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
    """Lives in a worker process and does the task on the items it is given."""

    def __init__(self, task: Task) -> None:
        self._task = task
        threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()

    @daft.method.batch(return_dtype=daft.DataType.string(), batch_size=1)
    def perform(self, items: daft.Series) -> list[str]:
        return [packed_outcome(self._task, item) for item in items.to_pylist()]


def _start_ray(workers: int, scratch: Path | None) -> None:
    try:
        import ray
    except ImportError:
        raise MachineError(
            f"the {RAY} engine needs Ray, which is not installed; pip install -e '.[ray]', or --engine {NATIVE}"
        ) from None
    if ray.is_initialized():
        return
    ray.init(
        num_cpus=workers,
        include_dashboard=False,
        logging_level=logging.ERROR,
        log_to_driver=False,
        _temp_dir=str(scratch) if scratch else None,
        runtime_env={"env_vars": {"DAFT_PROGRESS_BAR": "0", "DAFT_ANALYTICS_ENABLED": "0"}},
    )
