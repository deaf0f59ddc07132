"""Run a model on batches of trunks and branches, and compare its predictions with the targets.

Legend: P positions of a trunk, S tokens of a row, B families in a batch, H hidden, V vocabulary.
"""

from collections.abc import Sequence

import torch

from trivium.evaluation.branches import Ask, Batch, Row
from trivium.model.kv_cache import KVCache
from trivium.model.whole import WholeModel

Tensor = torch.Tensor


def read_batch(model: WholeModel, batch: Batch, totals: Tensor) -> None:
    """Read the trunks once, then each round of rows after them.

    totals: fp64 [2, windows], to which the last pipeline stage adds for each scored token of a window its
    log-likelihood in nats, and 1 if it was not the argmax.
    """
    trunks = [f.trunk for f in batch]
    width = max(map(len, trunks))
    branches = max(f.width for f in batch)
    cache = KVCache(width + branches) if branches else None
    if width:
        hidden = model.hidden(_padded(trunks, model.device), cache=cache)
        if cache is not None:
            cache.keep(width)
        in_trunk = [
            (ask.place * len(trunks) + b, ask)
            for b, family in enumerate(batch)
            for row in family.rows
            for ask in row.asks
            if ask.place < row.trunk
        ]
        _compare(model, hidden, in_trunk, totals)
    if cache is None:
        return
    lengths = torch.tensor([len(t) for t in trunks], device=model.device)
    for rows in zip(*(f.rows for f in batch), strict=True):
        cache.mask = _mask(rows, lengths, width, model.dtype)
        depths = _padded([row.depths for row in rows], model.device)
        positions = (lengths + depths).clamp(max=model.model.sequence - 1)  # clamp the positions of padding as well
        tokens = _padded([row.tokens for row in rows], model.device)
        hidden = model.hidden(tokens, positions=positions, cache=cache)
        in_rows = [
            ((ask.place - row.trunk) * len(rows) + b, ask)
            for b, row in enumerate(rows)
            for ask in row.asks
            if ask.place >= row.trunk
        ]
        _compare(model, hidden, in_rows, totals)


def _compare(model: WholeModel, hidden: Tensor | None, asks: Sequence[tuple[int, Ask]], totals: Tensor) -> None:
    """Score the requested positions.

    hidden: [S, B, H]. asks: flattened index of position and sequence, and the prediction wanted there. Logits are
    computed only for these positions, once each.
    """
    if hidden is None or not asks:
        return
    places, numbers, targets = zip(*((place, ask.number, ask.target) for place, ask in asks), strict=True)
    read, rows = torch.unique(torch.tensor(places, device=model.device), return_inverse=True)
    target = torch.tensor(targets, device=model.device)
    nats, likeliest = model.likelihoods(hidden.flatten(0, 1)[read], rows=rows, targets=target)
    missed = (likeliest[rows] != target).to(nats.dtype)
    totals.index_add_(1, torch.tensor(numbers), torch.stack([nats, missed]).cpu())


def _padded(rows: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Pad rows with 0 at their end to [longest, rows]. The padding is never attended to."""
    width = max(map(len, rows))
    filled = [[*r, *[0] * (width - len(r))] for r in rows]
    return torch.tensor(filled, dtype=torch.long, device=device).T.contiguous()


def _mask(rows: Sequence[Row], lengths: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """Return the additive mask [B, 1, S, P + S]. A token attends to its trunk, its ancestors and itself."""
    longest = max(len(row.tokens) for row in rows)
    sees = torch.zeros(len(rows), longest, width + longest, dtype=torch.bool)
    sees[:, :, :width] = (torch.arange(width) < lengths.cpu()[:, None])[:, None]
    # of padding too: softmax is undefined for a fully masked row
    sees[:, :, width:].diagonal(dim1=1, dim2=2).fill_(True)
    own = sees[:, :, width:].numpy()
    for b, row in enumerate(rows):
        for number, parent in enumerate(row.parents):
            if parent >= 0:
                own[b, number, :number] |= own[b, parent, :number]
    hidden = torch.zeros(sees.shape, dtype=dtype).masked_fill_(~sees, -torch.inf)
    return hidden.unsqueeze(1).to(lengths.device)
