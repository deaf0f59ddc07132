"""Two ways to carry out the transfers of a program: posted ahead (gloo), or in order (NCCL)."""

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

# How many transfers may be under way at once, so that they overlap compute.
POSTED_AHEAD = 4


class Results:
    """Results of actions that other actions have yet to read. A result that is still on its way is waited for only when
    it is read, so that a receive does not delay the work between its start and its use."""

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
    """Transfers on CPUs, where messages are matched by tag: receives are posted before their turn, and sends are not
    waited for."""

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
    """A transfer under way; what is sent is kept until it was waited for."""

    def __init__(self, works: Sequence[dist.Work], tensor: Tensor) -> None:
        self._works, self._tensor = works, tensor

    def wait(self) -> None:
        """Return when it is done; at once if that was known already (gloo's own wait would never return)."""
        for work in self._works:
            work.wait()
        self._works, self._tensor = (), torch.empty(0)


class InOrder:
    """Transfers with NCCL, which matches messages by order: one after another, in the order of the program. Programs
    are projections of one global order, so that messages cannot wait for each other in a circle.

    Messages are never batched, as Megatron-LM does it with a forward send and a backward receive. A batch is complete
    only when all of it is, so a reader of one message would wait for the others. With messages that take no time, 1F1B
    of 4 stages and 8 micro-batches would last 46 forwards instead of 33 (`tests/plan/transfers_test.py`). A replica
    with one micro-batch could not start either: ranks connect when a batch starts, and wait until all of it is
    connected.
    """

    def __init__(self, program: Sequence[Event], mesh: Mesh, activation: Callable[[], Tensor]) -> None:
        self._mesh, self._activation = mesh, activation
        self._under_way: deque[_Message] = deque()

    def before(self, event: Event) -> None:
        """Do nothing, because nothing can be posted early."""

    def carry(self, transfer: Transfer, results: Results) -> None:
        """Begin to send or to receive."""
        group, receives = self._mesh.pipeline, transfer.target == self._mesh.at.pipeline
        if receives:
            peer, tensor = transfer.source, self._activation()
        else:
            peer, tensor = transfer.target, results.pop(transfer.produced_by).contiguous()
            group.count("send", tensor)
        # A batch of one: without a batch torch would make a communicator for each pair of ranks.
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
    """A number of its own for each transfer of a program."""
    action = transfer.produced_by
    return (action.micro_batch * 4096 + action.stage) * 2 + (action.op is not Op.FORWARD)
