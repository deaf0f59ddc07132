"""Products beside messages that go round a ring of tensor ranks: one piece of the positions is multiplied while another
travels.

A gather before a product: each rank multiplies its own piece first, and then those of the ranks before it, in the order
in which they arrive. A reduce-scatter after a product: each rank computes first the piece that has the longest way to
its owner, and its own piece last. It adds what has arrived for a piece to what it has computed of it, and sends the sum
on. The contributions to the piece of rank r are therefore added in the order r + 1, r + 2, …, r, the same every time.
Sums travel in the dtype of the product, as in NCCL's rings: numbers of 16 bits are rounded at each hop.

Legend: S positions, s positions of a rank, S = ranks x s.
"""

from collections.abc import Callable, Iterator

import torch

from trivium.comms.collectives import rotate_begin
from trivium.comms.group import Group

Tensor = torch.Tensor
Multiply = Callable[[Tensor], Tensor]  # a piece of the positions -> its product; each position alone


def gathered_product(x: Tensor, group: Group, multiply: Multiply) -> tuple[Tensor, Tensor]:
    """x [s, ...] -> the product of the gathered x [S, ...], and the gathered x."""
    whole = x.new_empty((len(x) * group.size, *x.shape[1:]))
    whole[_place(whole, group, group.index)] = x
    product: Tensor | None = None
    for place in _arriving(whole, group):
        part = multiply(whole[place])
        if product is None:
            product = part.new_empty((len(whole), *part.shape[1:]))
        product[place] = part
    assert product is not None, f"a ring of {group.size} ranks has pieces"
    return product, whole


def scattered_product(x: Tensor, group: Group, multiply: Multiply) -> Tensor:
    """x [S, ...] -> this rank's positions [s, ...] of the sum of the products over the ranks."""
    arriving: Callable[[], tuple[Tensor, ...]] | None = None
    for owner in _towards(group):
        part = multiply(x[_place(x, group, owner)])
        if arriving is not None:
            part.add_(arriving()[0])
        if owner != group.index:
            arriving = rotate_begin((part,), group)
    return part


def _arriving(whole: Tensor, group: Group) -> Iterator[slice]:
    """Yield the place of each piece when it is there, this rank's first; the next one is under way meanwhile."""
    places = [_place(whole, group, (group.index - turn) % group.size) for turn in range(group.size)]
    for turn, place in enumerate(places, 1):
        if turn == group.size:
            yield place
            return
        arrived = rotate_begin((whole[place],), group, into=(whole[places[turn]],))
        yield place
        arrived()


def _towards(group: Group) -> list[int]:
    """The owners of the pieces of a sum, in the order in which this rank computes its part of each."""
    return [(group.index - 1 - turn) % group.size for turn in range(group.size)]


def _place(whole: Tensor, group: Group, owner: int) -> slice:
    here = len(whole) // group.size
    return slice(owner * here, (owner + 1) * here)
