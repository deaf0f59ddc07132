"""Two ways to carry out the transfers of a program: posted ahead (gloo), or batched (NCCL)."""

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch
import torch.distributed as dist

from trivium.parallel.exchange import Work, begin_receive, begin_send
from trivium.parallel.mesh import Mesh, Waitable
from trivium.plan.schedule import Action, Op
from trivium.plan.transfers import Event, Transfer

Tensor = torch.Tensor

# How many transfers may be under way at once, so that they overlap compute.
POSTED_AHEAD = 4


class Results:
    """What actions produced and others have yet to read. A result that is still on its way is waited for only when
    it is read: a receive never holds up the work that stands between it and its use."""

    def __init__(self) -> None:
        self._tensors: dict[Action, Tensor] = {}
        self._under_way: dict[Action, Waitable] = {}

    def put(self, action: Action, tensor: Tensor, under_way: Waitable | None = None) -> None:
        """Keep a result; if it is `under_way`, it is complete when that was waited for."""
        self._tensors[action] = tensor
        if under_way is not None:
            self._under_way[action] = under_way

    def wait(self, action: Action) -> None:
        """Return when the result, if it comes from another rank, is here."""
        work = self._under_way.pop(action, None)
        if work is not None:
            work.wait()

    def pop(self, action: Action) -> Tensor:
        """Take a result out, complete."""
        self.wait(action)
        return self._tensors.pop(action)


class Transport(Protocol):
    """Carries out the transfers of one rank's program, in its order."""

    def before(self, event: Event) -> None:
        """An event is about to run."""

    def carry(self, transfer: Transfer, results: Results) -> None:
        """Start sending the result that `transfer` names, or put it, on its way, among the results."""

    def finish(self) -> None:
        """The program has ended: wait for what is still under way."""


class PostedAhead:
    """For processors, which match messages by tag: receives are posted before their turn, sends not waited for."""

    def __init__(self, program: Sequence[Event], mesh: Mesh, activation: Callable[[], Tensor]) -> None:
        self._mesh, self._activation = mesh, activation
        here = mesh.at.pipeline
        self._ahead: Iterator[Transfer] = (e for e in program if isinstance(e, Transfer) and e.target == here)
        self._posted: dict[Transfer, tuple[Waitable, Tensor]] = {}
        self._sends: list[tuple[Work, Tensor]] = []

    def before(self, event: Event) -> None:
        """Keep receives under way."""
        while len(self._posted) < POSTED_AHEAD:
            transfer = next(self._ahead, None)
            if transfer is None:
                return
            self._posted[transfer] = self._receive(transfer)

    def carry(self, transfer: Transfer, results: Results) -> None:
        """Start a send, or hand over a posted receive."""
        if transfer.target == self._mesh.at.pipeline:
            work, tensor = self._posted.pop(transfer)
            results.put(transfer.produced_by, tensor, work)
            return
        group, tensor = self._mesh.pipeline, results.pop(transfer.produced_by).contiguous()
        group.count("send", tensor)
        begun = begin_send(tensor, transfer.target, group, _tag(transfer))
        self._sends = [(w, t) for w, t in self._sends if not w.is_completed()] + [(begun, tensor)]

    def finish(self) -> None:
        """Wait for the last sends."""
        for work, _ in self._sends:
            work.wait()

    def _receive(self, transfer: Transfer) -> tuple[Waitable, Tensor]:
        tensor = self._activation()
        return begin_receive(tensor, transfer.source, self._mesh.pipeline, _tag(transfer)), tensor


class _Batch:
    """Transfers under way together; kept until it was waited for, so that nothing that is sent is freed."""

    def __init__(self, works: Sequence[dist.Work], tensors: Sequence[Tensor]) -> None:
        self._works, self._tensors = works, tensors

    def wait(self) -> None:
        """Return when all are done; at once if that was known already (gloo's own wait would never return)."""
        for work in self._works:
            work.wait()
        self._works, self._tensors = (), ()


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
        self._exchanges: deque[_Batch] = deque()

    def before(self, event: Event) -> None:
        """Nothing can be posted early."""

    def carry(self, transfer: Transfer, results: Results) -> None:
        """With the first transfer of a batch, all of it."""
        batch = self._batch_of[transfer]
        if transfer != batch[0]:
            return
        group, here = self._mesh.pipeline, self._mesh.at.pipeline
        tensors = [
            self._activation() if t.target == here else results.pop(t.produced_by).contiguous() for t in batch
        ]
        operations = []
        for each, tensor in zip(batch, tensors, strict=True):
            receives = each.target == here
            function, peer = (dist.irecv, each.source) if receives else (dist.isend, each.target)
            if not receives:
                group.count("send", tensor)
            operations.append(dist.P2POp(function, tensor, group.ranks[peer], group.handle, _tag(each)))
        exchange = _Batch(dist.batch_isend_irecv(operations), tensors)
        for each, tensor in zip(batch, tensors, strict=True):
            if each.target == here:
                results.put(each.produced_by, tensor, exchange)
        self._exchanges.append(exchange)
        while len(self._exchanges) > POSTED_AHEAD:
            self._exchanges.popleft().wait()

    def finish(self) -> None:
        """Wait for the last batches."""
        while self._exchanges:
            self._exchanges.popleft().wait()


def _tag(transfer: Transfer) -> int:
    """A number of its own for each transfer of a program."""
    action = transfer.produced_by
    return (action.micro_batch * 4096 + action.stage) * 2 + (action.op is not Op.FORWARD)
