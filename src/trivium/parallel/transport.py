"""Two ways to carry out the transfers of a program: posted ahead (gloo), or batched (NCCL)."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch
import torch.distributed as dist

from trivium.parallel.mesh import Mesh
from trivium.plan.schedule import Action, Op
from trivium.plan.transfers import Event, Transfer

Tensor = torch.Tensor
Results = dict[Action, Tensor]  # what actions produced and others have yet to read

# How many receives are posted before they are needed, so that transfers overlap compute.
POSTED_AHEAD = 4


class Transport(Protocol):
    """Carries out the transfers of one rank's program, in its order."""

    def before(self, event: Event) -> None:
        """An event is about to run."""

    def carry(self, transfer: Transfer, results: Results) -> None:
        """Send the result that `transfer` names, or put it among the results."""

    def finish(self) -> None:
        """The program has ended: wait for what is still under way."""


class PostedAhead:
    """For gloo, which matches messages by tag: receives are posted before they are needed, sends not waited for."""

    def __init__(self, program: Sequence[Event], mesh: Mesh, activation: Callable[[], Tensor]) -> None:
        self._mesh, self._activation = mesh, activation
        here = mesh.at.pipeline
        self._ahead: Iterator[Transfer] = (e for e in program if isinstance(e, Transfer) and e.target == here)
        self._posted: dict[Transfer, tuple[dist.Work, Tensor]] = {}
        self._sends: list[tuple[dist.Work, Tensor]] = []

    def before(self, event: Event) -> None:
        """Keep receives under way."""
        while len(self._posted) < POSTED_AHEAD:
            transfer = next(self._ahead, None)
            if transfer is None:
                return
            self._posted[transfer] = self._receive(transfer)

    def carry(self, transfer: Transfer, results: Results) -> None:
        """Start a send, or wait for a receive."""
        if transfer.target == self._mesh.at.pipeline:
            work, tensor = self._posted.pop(transfer)
            work.wait()
            results[transfer.produced_by] = tensor
            return
        group, tensor = self._mesh.pipeline, results.pop(transfer.produced_by).contiguous()
        group.count("send", tensor)
        begun = dist.isend(tensor, group.ranks[transfer.target], group=group.handle, tag=_tag(transfer))
        assert begun is not None, f"this rank is not in the pipeline group of {transfer}"
        self._sends = [(w, t) for w, t in self._sends if not w.is_completed()] + [(begun, tensor)]

    def finish(self) -> None:
        """Wait for the last sends."""
        for work, _ in self._sends:
            work.wait()

    def _receive(self, transfer: Transfer) -> tuple[dist.Work, Tensor]:
        group, tensor = self._mesh.pipeline, self._activation()
        work = dist.irecv(tensor, group.ranks[transfer.source], group=group.handle, tag=_tag(transfer))
        assert work is not None, f"this rank is not in the pipeline group of {transfer}"
        return work, tensor


class Batched:
    """For NCCL, which matches messages by order: transfers that follow one another are one batch, so that those to
    and from a neighbour run at the same time. Programs are projections of one global order, so batches cannot
    wait for each other in a circle."""

    def __init__(self, program: Sequence[Event], mesh: Mesh, activation: Callable[[], Tensor]) -> None:
        self._mesh, self._activation = mesh, activation
        runs = itertools.groupby(program, key=lambda e: isinstance(e, Transfer))
        batches = [
            tuple(e for e in run if isinstance(e, Transfer)) for is_transfer, run in runs if is_transfer
        ]
        self._batch_of = {transfer: batch for batch in batches for transfer in batch}
        self._sent: list[Tensor] = []

    def before(self, event: Event) -> None:
        """Nothing can be posted early."""

    def carry(self, transfer: Transfer, results: Results) -> None:
        """With the first transfer of a batch, all of it."""
        batch = self._batch_of[transfer]
        if transfer != batch[0]:
            return
        group, here, operations = self._mesh.pipeline, self._mesh.at.pipeline, []
        for each in batch:
            if each.target == here:
                tensor, function, peer = self._activation(), dist.irecv, each.source
                results[each.produced_by] = tensor
            else:
                tensor, function, peer = results.pop(each.produced_by).contiguous(), dist.isend, each.target
                group.count("send", tensor)
                self._sent.append(tensor)
            operations.append(dist.P2POp(function, tensor, group.ranks[peer], group.handle, _tag(each)))
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    def finish(self) -> None:
        """What was sent may be freed."""
        self._sent.clear()


def _tag(transfer: Transfer) -> int:
    """A number of its own for each transfer of a program."""
    action = transfer.produced_by
    return (action.micro_batch * 4096 + action.stage) * 2 + (action.op is not Op.FORWARD)
