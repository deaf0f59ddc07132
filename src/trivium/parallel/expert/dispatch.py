"""Dispatch of tokens to the ranks that hold their experts, and the way back of the results.

The number of rows that ranks send each other varies; each learns from the others how many it will receive. What is
computed between the two halves of a message, in the forward, is computed between them in the backward too.

Legend: T tokens, K experts of a token, N rows that this rank sends, R rows that it receives, H hidden, E experts.
"""

from collections.abc import Callable
from typing import Any

import torch

from trivium.comms.collectives import all_to_all, all_to_all_rows_begin
from trivium.comms.group import Group, PendingResult
from trivium.parallel.expert.rows import Rows, spread, summed

Tensor = torch.Tensor


class Message:
    """Rows under way over a group, in the forward, and their gradients, in the backward."""

    def __init__(self, send: list[int], receive: list[int], group: Group) -> None:
        self._send, self._receive, self._group = send, receive, group
        self._pending: PendingResult | None = None

    def begin(self, x: Tensor) -> None:
        """Start to send x [N, …]; `wait` returns what the group sends here, [R, …]."""
        self._pending = all_to_all_rows_begin(x, self._send, self._receive, self._group)

    def begin_back(self, x: Tensor) -> None:
        """Start to send x [R, …] back; `wait` returns [N, …]."""
        self._pending = all_to_all_rows_begin(x, self._receive, self._send, self._group)

    def wait(self) -> Tensor:
        """Return what was received, once."""
        pending, self._pending = self._pending, None
        assert pending is not None, "a message begins before it is waited for"
        return pending.wait()


class _Begin(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, message: Message) -> Tensor:
        ctx.message = message
        message.begin(x)
        return x.new_empty(0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.message.wait(), None


class _Finish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, begun: Tensor, message: Message) -> Tensor:
        ctx.message = message
        return message.wait()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        ctx.message.begin_back(grads[0])
        return grads[0].new_empty(0), None


def send_rows(x: Tensor, send: list[int], receive: list[int], group: Group) -> Callable[[], Tensor]:
    """Start to send rows; the returned function waits for those that the group sends here."""
    message = Message(send, receive, group)
    begun = _Begin.apply(x, message)
    return lambda: _Finish.apply(begun, message)


class Dispatch:
    """The tokens of a micro-batch on their way to the experts of a group of ranks, each of which holds as many."""

    def __init__(self, x: Tensor, rows: Rows, weights: Tensor, group: Group) -> None:
        """Start to send tokens x [T, H] to the experts of their rows, and the weights [T, K] of these experts."""
        self._rows, self._group = rows, group
        counts = rows.groups.counts.view(group.size, -1)
        here = counts.shape[1]
        theirs = all_to_all(counts, group)
        self._send, self._receive = torch.stack([counts.sum(1), theirs.sum(1)]).tolist()
        self._sent = [
            send_rows(part, self._send, self._receive, group) for part in (spread(x, rows), rows.in_order(weights))
        ]
        ids = torch.arange(here, device=x.device).repeat(group.size)
        ids = ids.repeat_interleave(theirs.flatten(), output_size=sum(self._receive))
        self._here = Rows.of(ids.unsqueeze(1), here)

    def arrived(self) -> tuple[Tensor, Tensor, Rows]:
        """Wait for the tokens that visit the experts here [R, H]. Return them with the weights [R] of their rows."""
        x, weights = (wait() for wait in self._sent)
        return x, self._here.in_order(weights.unsqueeze(1)), self._here

    def combined(self, y: Tensor) -> Tensor:
        """Send back what the experts here made of the tokens [R, H]; return the sums of this rank's own [T, H]."""
        return summed(send_rows(y, self._receive, self._send, self._group)(), self._rows)
