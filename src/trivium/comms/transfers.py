"""Two methods of performing the transfers of a program: with receives posted ahead (gloo), or in order (NCCL)."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch
import torch.distributed as dist

from trivium.comms.group import Waitable, Work
from trivium.comms.mesh import Mesh
from trivium.plan.schedule import Action, Op
from trivium.plan.transfers import Event, Transfer

Tensor = torch.Tensor

# The number of transfers that may be pending at once, so that they overlap compute.
POSTED_AHEAD = 4


class Results:
    """Results of actions that other actions have yet to read. A pending result is awaited only when it is read, so that
    a receive does not delay the work between its start and its use."""

    def __init__(self) -> None:
        self._tensors: dict[Action, Tensor] = {}
        self._under_way: dict[Action, Waitable] = {}

    def put(self, action: Action, tensor: Tensor, under_way: Waitable | None = None) -> None:
        """Store a result. under_way: the pending transfer of it, if it comes from another rank."""
        self._tensors[action] = tensor
        if under_way is not None:
            self._under_way[action] = under_way

    def wait(self, action: Action) -> None:
        """Return when a result that comes from another rank has arrived; at once for others."""
        work = self._under_way.pop(action, None)
        if work is not None:
            work.wait()

    def pop(self, action: Action) -> Tensor:
        """Remove a result and return it, complete."""
        self.wait(action)
        return self._tensors.pop(action)


class Transport(Protocol):
    """Performs the transfers of one rank's program, in its order."""

    def before(self, event: Event) -> None:
        """Called before each event of the program."""

    def carry(self, transfer: Transfer, results: Results) -> None:
        """Start sending the result that `transfer` names, or store it among the results as a pending one."""

    def finish(self) -> None:
        """Called after the last event: wait for pending transfers."""


class PostedAhead:
    """Transfers on CPUs, where messages are matched by tag. Receives are posted before their turn, and sends are
    awaited only at the end."""

    def __init__(self, program: Sequence[Event], mesh: Mesh, activation: Callable[[], Tensor]) -> None:
        self._mesh, self._activation = mesh, activation
        here = mesh.at.pipeline
        self._ahead: Iterator[Transfer] = (e for e in program if isinstance(e, Transfer) and e.target == here)
        self._posted: dict[Transfer, tuple[Waitable, Tensor]] = {}
        self._sends: list[tuple[Work, Tensor]] = []

    def before(self, event: Event) -> None:
        """Post the next receives, up to the limit."""
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
        begun = group.transport.send(tensor, transfer.target, group, _tag(transfer))
        self._sends = [(w, t) for w, t in self._sends if not w.is_completed()] + [(begun, tensor)]

    def finish(self) -> None:
        """Wait for the last sends."""
        for work, _ in self._sends:
            work.wait()

    def _receive(self, transfer: Transfer) -> tuple[Waitable, Tensor]:
        tensor = self._activation()
        group = self._mesh.pipeline
        return group.transport.receive(tensor, transfer.source, group, _tag(transfer)), tensor


class _Message:
    """A pending transfer. It keeps the tensor that is sent alive until `wait` has returned."""

    def __init__(self, works: Sequence[dist.Work], tensor: Tensor) -> None:
        self._works, self._tensor = works, tensor

    def wait(self) -> None:
        """Return when the transfer is done. A repeated call returns at once, where that of gloo would never return."""
        for work in self._works:
            work.wait()
        self._works, self._tensor = (), torch.empty(0)


class InOrder:
    """Transfers with NCCL, which matches messages by order: one after another, in the order of the program. Programs
    are projections of one global order, so that messages cannot wait for each other in a circle.

    Messages are never batched; Megatron-LM batches a forward send with a backward receive. A batch completes as a
    whole, so a reader of one message would wait for the others. With messages that take no time, 1F1B of 4 stages and 8
    micro-batches would last 46 forwards instead of 33 (`tests/plan/transfers_test.py`). A replica with one micro-batch
    could not start either, because ranks connect at the start of a batch and wait until the whole batch is connected.
    """

    def __init__(self, program: Sequence[Event], mesh: Mesh, activation: Callable[[], Tensor]) -> None:
        self._mesh, self._activation = mesh, activation
        self._under_way: deque[_Message] = deque()

    def before(self, event: Event) -> None:
        """Do nothing, because nothing can be posted early."""

    def carry(self, transfer: Transfer, results: Results) -> None:
        """Start to send or to receive."""
        group, receives = self._mesh.pipeline, transfer.target == self._mesh.at.pipeline
        if receives:
            peer, tensor = transfer.source, self._activation()
        else:
            peer, tensor = transfer.target, results.pop(transfer.produced_by).contiguous()
            group.count("send", tensor)
        # A batch of one message: without a batch torch would create a communicator for each pair of ranks.
        function = dist.irecv if receives else dist.isend
        operation = dist.P2POp(function, tensor, group.ranks[peer], group.handle, _tag(transfer))
        message = _Message(dist.batch_isend_irecv([operation]), tensor)
        if receives:
            results.put(transfer.produced_by, tensor, message)
        self._under_way.append(message)
        while len(self._under_way) > POSTED_AHEAD:
            self._under_way.popleft().wait()

    def finish(self) -> None:
        """Wait for the last messages."""
        while self._under_way:
            self._under_way.popleft().wait()


def _tag(transfer: Transfer) -> int:
    """Return a number that no other transfer of the program has."""
    action = transfer.produced_by
    return (action.micro_batch * 4096 + action.stage) * 2 + (action.op is not Op.FORWARD)
