"""Log-likelihoods of given tokens and the most likely token of each row, without storing all logits.

The logits are computed over blocks of the vocabulary, which fit a CPU's cache or are large enough to keep a GPU busy.
Tensor ranks exchange only three numbers per row.

Legend: T rows of hidden states, H hidden, V vocabulary rows here, A tokens asked about.
"""

from typing import NamedTuple, Protocol

import torch

from trivium.comms.collectives import all_gather, all_reduce_
from trivium.comms.group import Group

Tensor = torch.Tensor
BLOCK, ACCELERATORS_BLOCK = 1 << 20, 1 << 26  # logits at once


class Scores(Protocol):
    """The way in which the head makes logits."""

    def finished(self, scores: Tensor) -> Tensor:
        """Return the logits, given the products with rows of the table."""

    def product(self, normed: Tensor, rows: Tensor) -> Tensor:
        """normed [T, H], rows of the table [R, H] -> their logits [T, R]."""


class Likelihoods(NamedTuple):
    """nats: log-likelihood of each token asked about, [A]; likeliest: id of the largest logit of each row, [T]."""

    nats: Tensor
    likeliest: Tensor


def likelihoods(
    x: Tensor, table: Tensor, head: Scores, *, rows: Tensor, targets: Tensor, group: Group, vocabulary: int
) -> Likelihoods:
    """x [T, H] after the last norm, table [V, H]: this rank's rows of the output matrix.

    rows, targets [A]: which row is asked about which id; many may ask about one row. Rows of the table from
    `vocabulary` on are padding. The same on every rank of the group.
    """
    first = group.index * len(table)
    total, largest, likeliest = _whole(x, table[: max(0, min(vocabulary - first, len(table)))], head)
    found = torch.stack([total, largest, (likeliest + first).double()])  # 3 T
    if group.size > 1:
        every = all_gather(found.unsqueeze(0), group)  # ranks 3 T
        total = every[:, 0].logsumexp(0)
        likeliest = every[:, 2].gather(0, every[:, 1].argmax(0, keepdim=True))[0].long()
    here = (targets >= first) & (targets < first + len(table))
    chosen = table[(targets - first).masked_fill(~here, 0)]
    scores = head.finished((x[rows].double() * chosen.double()).sum(-1)).masked_fill(~here, 0)
    # The sum is of logits rounded to the dtype of the weights, and may be less than a sure target's own.
    nats = (all_reduce_(scores, group) - total[rows]).clamp(max=0)
    return Likelihoods(nats, likeliest)


def _whole(x: Tensor, table: Tensor, head: Scores) -> tuple[Tensor, Tensor, Tensor]:
    """[T] each: log of the sum of exponentials, largest logit, and its row of the table."""
    total = torch.full((len(x),), -torch.inf, dtype=torch.float64, device=x.device)
    largest, likeliest = total.clone(), torch.zeros(len(x), dtype=torch.long, device=x.device)
    block = BLOCK if x.device.type == "cpu" else ACCELERATORS_BLOCK
    step = max(128, block // max(1, len(x)))
    for start in range(0, len(table), step):
        logits = head.product(x, table[start : start + step]).float()
        top, where = logits.max(-1)
        total = torch.logaddexp(total, logits.sub_(top.unsqueeze(-1)).exp_().sum(-1).log().double() + top)
        better = top > largest  # the first of equals stays
        likeliest = torch.where(better, where + start, likeliest)
        largest = torch.where(better, top.double(), largest)
    return total, largest, likeliest
