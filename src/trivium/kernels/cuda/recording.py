"""Work of an accelerator, recorded once as a CUDA graph and replayed.

A host asks for a graph at once, where it otherwise asks for every kernel by itself: one whose kernels are short would
wait for its host. Kernels and their order are the same, and so are the bits of what they compute.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

import torch

from trivium.errors import TriviumError

Result = TypeVar("Result")


class Recording(Generic[Result]):
    """A captured CUDA graph of `work`.

    What `work` returned consists of tensors at fixed addresses, which every replay overwrites; the tensors that `work`
    reads must stay at their addresses too. Their memory, and the memory that was freed within the work, belongs to the
    recording as long as it exists.

    `work` must have run before, because loading libraries, compiling, connecting and autotuning cannot be captured.
    Nothing in it may wait for the device. Capturing computes nothing; a replay does.

    If the work contains messages, NCCL requires that all ranks which take part in them capture and replay in the same
    order, and that the recording is deleted before the process group.
    """

    def __init__(self, work: Callable[[], Result]) -> None:
        self._graph = torch.cuda.CUDAGraph()
        stream, pool = torch.cuda.current_stream(), torch.cuda.graph_pool_handle()
        try:
            # Other threads may ask the device for things meanwhile: NCCL's watchdog whether messages are over, a save
            # for its copies.
            with torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"):
                self.result = work()
        except (RuntimeError, TriviumError) as error:
            if torch.cuda.current_stream() != stream:
                _leave_capture(stream, pool)
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


def _leave_capture(stream: torch.cuda.Stream, pool: tuple[int, int]) -> None:
    """Restore what torch leaves in the state of a capture if CUDA reports an error at the end of the capture: the
    current stream, the caching allocator, which frees no memory during a capture, and the default generator, which
    raises at the next random number."""
    device = stream.device_index
    torch.cuda.set_stream(stream)
    with suppress(RuntimeError):  # torch ended the pool itself if only the instantiation of the graph failed
        torch._C._cuda_endAllocateToPool(device, pool)
        torch._C._cuda_releasePool(device, pool)
    generator = torch.cuda.default_generators[device]
    generator.graphsafe_set_state(generator.clone_state())


def _first(error: BaseException) -> BaseException:
    """Return the first error of a chain. Ending a capture that failed raises another error, which says less."""
    before = error.__cause__ or error.__context__
    return error if before is None else _first(before)
