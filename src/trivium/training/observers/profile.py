"""Traces of chosen steps by torch.profiler, in which actions, transfers and buckets have names."""

import gzip
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import wraps
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile, record_function

from trivium.provenance import partial_of
from trivium.training.config import ProfileConfig
from trivium.training.loop import Loop, Observer, StepSetup
from trivium.training.metrics import warn
from trivium.training.trainer import Trainer

FOLDER = "profile"
_PACKED_BYTES = 1 << 20  # at once
# Methods of a bucket and their names in a trace, before the bucket's number.
OF_BUCKETS = {
    "_begin": "reduce bucket",
    "reduced": "gradient of bucket",
    "prefetch": "gather bucket",
    "publish": "publish bucket",
    "published": "weights of bucket",
}


class Profile(Observer):
    """Writes the traces of a rank to `out`/profile: JSON for Perfetto and chrome://tracing, gzipped.

    Ending the trace of a large step takes longer than a step may, so it is a separate phase. Compressing it takes
    minutes, in which other ranks would time out: a thread does that while training continues.
    """

    def __init__(self, config: ProfileConfig, out: Path) -> None:
        self._config, self._out = config, out
        self._packing: list[threading.Thread] = []

    def before_step(self, loop: Loop, setup: StepSetup) -> None:
        setup.contexts.enter_context(self.of(loop.trainer, loop.step, lambda: loop.enter("tracing")))

    def of(self, trainer: Trainer, step: int, beat: Callable[[], None]) -> AbstractContextManager[None]:
        """Return a context in which `trainer` runs a step (1-based), traced if the config says so for this rank. If any
        rank traces a step, no rank replays it from a CUDA graph. beat: called before the trace ends."""
        config, rank = self._config, trainer.mesh.rank
        if step not in config.steps:
            return nullcontext()
        if config.on_ranks is not None and rank not in config.on_ranks:
            return trainer.unrecorded()
        return self._traced(trainer, self._out / FOLDER / f"step-{step:08d}-rank-{rank:05d}.json.gz", beat)

    def finish(self, loop: Loop) -> None:
        self.wait()

    def wait(self) -> None:
        """Wait until all traces are written."""
        while self._packing:
            self._packing.pop().join()

    @contextmanager
    def _traced(self, trainer: Trainer, path: Path, beat: Callable[[], None]) -> Iterator[None]:
        activities = [ProfilerActivity.CPU]
        if trainer.mesh.device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        trace = profile(activities=activities, profile_memory=self._config.memory)
        with trainer.unrecorded(), named(trainer), trace:
            yield
            beat()
        with _failures_reported(path):
            raw = tempfile.NamedTemporaryFile(suffix=".json")  # noqa: SIM115 deleted once it is packed
            # Torch holds the GIL meanwhile, so a thread would delay the training as much.
            trace.export_chrome_trace(raw.name)
            thread = threading.Thread(target=_pack, args=(raw, path), daemon=True, name="trace")
            thread.start()
            self._packing.append(thread)


def _pack(raw: Any, path: Path) -> None:
    with _failures_reported(path), raw:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = partial_of(path)
        with open(raw.name, "rb") as file, gzip.open(partial, "wb", compresslevel=6) as packed:
            shutil.copyfileobj(file, packed, _PACKED_BYTES)
        partial.replace(path)


@contextmanager
def _failures_reported(path: Path) -> Iterator[None]:
    """Warn if writing a trace inside this context fails, because that is no reason to end a training."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        warn(f"{path}: no trace was written: {error}")


@contextmanager
def named(trainer: Trainer) -> Iterator[None]:
    """Name the trainer's actions, transfers, reductions, gathers and update in a trace, inside this context.

    Methods of these objects are replaced meanwhile, so that steps that are not traced cost nothing.
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
    original: Callable[..., Any] = getattr(owner, method)

    @wraps(original)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        with record_function(name):
            return original(*args, **kwargs)

    setattr(owner, method, recorded)
    try:
        yield
    finally:
        delattr(owner, method)
