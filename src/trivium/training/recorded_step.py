"""Records the forward and backward passes of a step as a CUDA graph, and replays them for other batches.

A recording includes all messages of these passes, with the sums of gradients over the replicas, which run beside the
backward as they do in steps without recordings.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from trivium.comms.mesh import Mesh
from trivium.kernels.operations import operations_of
from trivium.model.inputs import Inputs
from trivium.parallel.pipeline.executor import Run
from trivium.parallel.sharding.buckets import Bucket

Tensor = torch.Tensor


class RecordedStep:
    """A step of batches of `sequences` sequences. It keeps the `inputs` and the `scale` of losses that it was recorded
    with, and a replay overwrites them."""

    def __init__(
        self,
        sequences: int,
        inputs: Sequence[Inputs],
        scale: float | Tensor,
        buckets: Sequence[Bucket],
        mesh: Mesh,
        accumulate: Callable[[], Run],
    ) -> None:
        self.sequences, self._buckets = sequences, buckets
        self._inputs, self._scale = inputs, scale  # a replay also reads tensors that it does not overwrite

        def work() -> tuple[Run, list[Tensor]]:
            run = accumulate()
            return run, [bucket.over_replicas() for bucket in buckets]

        before = [(group, Counter(group.traffic)) for group in mesh.groups]
        record = operations_of(mesh.device.type).recording
        assert record is not None, f"no backend records what {mesh.device} launches"
        self._recording = record(work)
        self._handed = [(group, group.traffic - counted) for group, counted in before]
        for group, handed in self._handed:
            group.traffic.subtract(handed)  # nothing was sent
        for bucket in buckets:
            bucket.clear_gradients()  # nothing was computed

    def replay(self, inputs: Sequence[Inputs], scale: float | Tensor) -> Run:
        """Replay the step for another batch; the buckets then have its gradients."""
        torch._foreach_copy_(_batch(self._inputs, self._scale), _batch(inputs, scale))
        self._recording.replay()
        for group, handed in self._handed:
            group.traffic.update(handed)
        result: tuple[Run, list[Tensor]] = self._recording.result
        run, gradients = result
        for bucket, gradient in zip(self._buckets, gradients, strict=True):
            bucket.give(gradient)
        # The next replay overwrites the tensors of the recording; the caller gets copies.
        return replace(run, losses={name: loss.clone() for name, loss in run.losses.items()}, spans=[])


def _batch(inputs: Sequence[Inputs], scale: float | Tensor) -> list[Tensor]:
    """Return what differs from one batch of joined documents to the next."""
    found = [x for each in inputs for x in (each.tokens, each.targets, each.weights)]
    return [x for x in (*found, scale) if isinstance(x, Tensor)]
