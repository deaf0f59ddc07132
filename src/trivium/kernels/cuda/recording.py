"""Work of an accelerator, recorded once as a CUDA graph and replayed.

A host asks for a graph at once, where it otherwise asks for every kernel by itself: one whose kernels are short would
wait for its host. Kernels and their order are the same, and so are the bits of what they compute.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

import torch

from trivium.errors import TriviumError

Result = TypeVar("Result")


class Recording(Generic[Result]):
    """What `work` returned holds tensors at fixed places, which every replay writes anew; so does all that `work`
    reads. Their memory, and that of what was free again within the work, is the recording's for as long as it lives.

    `work` must have run before: what libraries load and compile, connections and autotuning cannot be recorded. Nothing
    in it may wait for the device. Recording computes nothing: a replay does.

    Where there are messages in it, NCCL wants every rank that has a part in them to record and to replay alike, and the
    recording to be gone before the process group is.
    """

    def __init__(self, work: Callable[[], Result]) -> None:
        self._graph = torch.cuda.CUDAGraph()
        try:
            # Other threads may ask the device for things meanwhile: NCCL's watchdog whether messages are over, a save
            # for its copies.
            with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
                self.result = work()
        except (RuntimeError, TriviumError) as error:
            first = _first(error)
            if isinstance(first, torch.OutOfMemoryError):
                raise first from None
            raise TriviumError(
                f"a step cannot be recorded with torch {torch.__version__}: {first}; set plan.cuda_graphs=false, which "
                f"computes the same"
            ) from error

    def replay(self) -> None:
        """Ask for the work once more."""
        self._graph.replay()


def _first(error: BaseException) -> BaseException:
    """What went wrong: ending a recording that failed fails too, and says less."""
    before = error.__cause__ or error.__context__
    return error if before is None else _first(before)
