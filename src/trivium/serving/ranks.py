"""The ranks of a server: the first one writes texts, and the others repeat what it does with the rows of its batch."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import torch

from trivium.errors import TriviumError
from trivium.model.rows import Rows, ignore_scores
from trivium.model.whole import WholeModel

Tensor = torch.Tensor

OPERATIONS: Mapping[str, Callable[..., Any]] = {
    "keep": Rows.keep,
    "prefill": Rows.prefill,
    "decode": Rows.decode,
    "score": Rows.score,
}


class OutOfStep(TriviumError):
    """An operation failed on the first of several ranks, so that the others may wait for it forever."""


class LeadingRows(Rows):
    """The rows of the first rank. It sends the description of each operation to the other ranks before it begins."""

    def __init__(self, model: WholeModel, others: Sequence[Connection] = ()) -> None:
        """others: the connections to the other ranks; none for a model on one rank."""
        super().__init__(model)
        self.others = others

    def keep(self, rows: Sequence[int]) -> None:
        with self._by_all("keep", rows):
            super().keep(rows)

    def prefill(self, texts: Sequence[Sequence[int]], copies: Sequence[int], more: int) -> Tensor | None:
        with self._by_all("prefill", texts, copies, more):
            return super().prefill(texts, copies, more)

    def decode(self, ids: Sequence[int]) -> Tensor | None:
        with self._by_all("decode", ids):
            return super().decode(ids)

    def score(self, ids: Sequence[int], use: Callable[[Tensor, Tensor], None] = ignore_scores) -> None:
        with self._by_all("score", ids):
            super().score(ids, use)

    def end(self) -> None:
        """Make the other ranks return from `follow`."""
        self._send(None)

    @contextmanager
    def _by_all(self, *operation: Any) -> Iterator[None]:
        self._send(operation)
        try:
            yield
        except Exception as error:
            if not self.others:
                raise
            ranks = 1 + len(self.others)
            raise OutOfStep(
                f"{operation[0]} failed on rank 0 of {ranks}, and the others may wait for it ({error}); start the "
                f"server again"
            ) from error

    def _send(self, message: Any) -> None:
        for other in self.others:
            other.send_bytes(json.dumps(message).encode())


def follow(rows: Rows, first: Connection) -> None:
    """Repeat the operations of the first rank until it ends."""
    while (message := json.loads(first.recv_bytes())) is not None:
        name, *arguments = message
        OPERATIONS[name](rows, *arguments)
