"""Traces of chosen steps by torch.profiler, in which the engine's own work has the names that its tables give it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import wraps
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile, record_function

from trivium.training.config import ProfileConfig
from trivium.training.metrics import warn
from trivium.training.trainer import Trainer

FOLDER = "profile"
# What a bucket does, by method: names for a trace, the bucket's number after them.
OF_BUCKETS = {
    "_begin": "reduce bucket",
    "reduced": "gradient of bucket",
    "prefetch": "gather bucket",
    "publish": "publish bucket",
    "published": "weights of bucket",
}


def tracing(trainer: Trainer, config: ProfileConfig, out: Path, step: int) -> AbstractContextManager[None]:
    """Inside, `trainer` does a step, counted from 1. If that is to be traced on this rank, its trace is then in
    `out`/profile: JSON for Perfetto and chrome://tracing, gzipped."""
    rank = trainer.mesh.rank
    if step not in config.steps or (config.on_ranks is not None and rank not in config.on_ranks):
        return nullcontext()
    return _traced(trainer, config, out / FOLDER / f"step-{step:08d}-rank-{rank:05d}.json.gz")


@contextmanager
def _traced(trainer: Trainer, config: ProfileConfig, path: Path) -> Iterator[None]:
    activities = [ProfilerActivity.CPU]
    if trainer.mesh.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with named(trainer), profile(activities=activities, profile_memory=config.memory) as trace:
        yield
    partial = path.with_name(f".{path.name}")  # with its ending, by which torch knows that it is to be packed
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        trace.export_chrome_trace(str(partial))
        partial.replace(path)
    except (OSError, RuntimeError) as error:  # no reason to lose a training
        warn(f"{path}: no trace was written: {error}")


@contextmanager
def named(trainer: Trainer) -> Iterator[None]:
    """Inside, what the trainer does has names in a trace: events of the pipeline as they are written in its table and
    transfers, sums and gathers of buckets, and the update.

    The methods of these very objects are replaced meanwhile, so that nothing asks at other times whether it has to be
    named.
    """
    with ExitStack() as stack:
        trainer.around = record_function
        stack.callback(setattr, trainer, "around", None)
        stack.enter_context(_replaced(trainer.optimizer, "step", "update"))
        for number, bucket in enumerate(trainer.buckets):
            for method, name in OF_BUCKETS.items():
                stack.enter_context(_replaced(bucket, method, f"{name} {number}"))
        yield


@contextmanager
def _replaced(owner: Any, method: str, name: str) -> Iterator[None]:
    right: Callable[..., Any] = getattr(owner, method)

    @wraps(right)
    def by_name(*given: Any, **more: Any) -> Any:
        with record_function(name):
            return right(*given, **more)

    setattr(owner, method, by_name)
    try:
        yield
    finally:
        delattr(owner, method)
