"""A group of ranks, the transport that carries its messages, and pending communication."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist

from trivium.plan.layout import AXES

Tensor = torch.Tensor

ROLES = (*AXES, "replicas", "ends", "sharers", "holders", "expert", "expert_replicas", "expert_sharers")
TAGS = range(1 << 30, (1 << 31) - 1)  # smaller numbers are tags of pipeline transfers


def _tags() -> Iterator[int]:
    while True:
        yield from TAGS


class Waitable(Protocol):
    """A pending operation."""

    def wait(self) -> object:
        """Return when the operation is done."""


class Work(Waitable, Protocol):
    """A pending transfer of a tensor that can be polled."""

    def is_completed(self) -> bool:
        """Return whether the transfer is known to be complete, so that `wait` returns at once."""


class Transport(Protocol):
    """Carries the messages of one group of several ranks; chosen when the group is made.

    Every method starts an operation. Do not read or write its tensors before `wait()` has returned. An encoding, which
    sends other bytes than those of the tensors, is a transport around another one.

    posts_ahead: whether messages are matched by tags, so that a receive may be started before its turn.
    """

    posts_ahead: bool

    def sent_bytes(self, collective: str, x: Tensor, ranks: int) -> int:
        """Return the bytes that a rank hands to a collective of `ranks` ranks for a tensor."""

    def send(self, tensor: Tensor, to: int, group: "Group", tag: int = 0) -> Work:
        """Send a contiguous tensor to the rank of index `to`."""

    def receive(self, out: Tensor, of: int, group: "Group", tag: int = 0) -> Waitable:
        """Receive from the rank of index `of` into `out`, which is contiguous. Messages of one tag are received in the
        order in which they were sent."""

    def all_reduce(self, x: Tensor, group: "Group", *, largest: bool = False) -> "PendingResult":
        """Sum (or take the largest) over the group, in place."""

    def all_gather(self, out: Tensor, x: Tensor, group: "Group") -> Waitable:
        """Gather into `out`, which is contiguous; x may be this rank's own slice of it."""

    def reduce_scatter(self, x: Tensor, group: "Group") -> "PendingResult":
        """Sum this rank's slice of dimension 0 of a contiguous tensor."""

    def all_to_all(self, out: Tensor, parts: Tensor, group: "Group") -> Waitable:
        """Send parts[i] to rank i, and receive what it sends into out[i]; both are contiguous."""

    def all_to_all_uneven(self, send: Sequence[Tensor], receive: Sequence[Tensor], group: "Group") -> Waitable:
        """Start an all-to-all of contiguous tensors of any size, which both sides of each message know."""

    def rotate(self, sent: Sequence[Tensor], received: Sequence[Tensor], group: "Group", tag: int) -> list[Waitable]:
        """Send to the next rank of the group, and receive from the previous one; tags count from `tag` on."""

    def wait_at_most(self, seconds: float) -> None:
        """Set the timeout of messages that are started from now on."""


@dataclass(frozen=True, eq=False)
class Group:
    """Ranks that differ along one axis, and this process's index among them.

    traffic: bytes this rank handed to each collective, for comparison with the cost model.
    tags: numbers for direct messages, drawn in the same order on every rank of the group.
    waited: seconds the host was blocked in collectives, including its own share of their work. Time in which only a GPU
    waits is not counted.
    """

    role: str  # one of ROLES
    ranks: tuple[int, ...]
    index: int
    handle: dist.ProcessGroup | None  # None when alone: collectives become no-ops
    traffic: Counter[str] = field(default_factory=Counter)
    tags: Iterator[int] = field(default_factory=_tags)
    waited: list[float] = field(default_factory=lambda: [0.0])
    carrier: Transport | None = None  # None when alone

    def count(self, collective: str, tensor: Tensor) -> None:
        """Add a tensor's bytes to the traffic of a collective."""
        self.traffic[collective] += self.transport.sent_bytes(collective, tensor, self.size)

    def wait_for(self, work: Waitable) -> None:
        """Return when a collective is done, and count the time."""
        begin = time.perf_counter()
        work.wait()
        self.waited[0] += time.perf_counter() - begin

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def number(self) -> int:
        """The position of the role in ROLES."""
        return ROLES.index(self.role)

    @property
    def transport(self) -> Transport:
        """The transport of a group of several ranks."""
        assert self.carrier is not None, f"rank {self.ranks[self.index]} is alone in its {self.role} group"
        return self.carrier

    def wait_at_most(self, seconds: float) -> None:
        """Set the timeout of operations that are started from now on."""
        if self.handle is not None:
            self.handle.set_timeout(timedelta(seconds=seconds))
            self.transport.wait_at_most(seconds)


class PendingResult:
    """Pending communication; `wait` finishes it and returns its result."""

    def __init__(
        self,
        work: Waitable | None,
        result: Tensor,
        complete: Callable[[], object] | None = None,
        group: Group | None = None,
    ) -> None:
        """group: counts the time spent in `wait`."""
        self._work, self._result, self._complete, self._group = work, result, complete, group

    def wait(self) -> Tensor:
        """Finish and return the result."""
        if self._work is not None and self._group is not None:
            self._group.wait_for(self._work)
        elif self._work is not None:
            self._work.wait()
        if self._complete is not None:
            self._complete()
        self._work = self._complete = None
        return self._result
