"""Weight gradients of linear layers, accumulated in the backward pass or deferred to a later action.

Immediate: the matrix product adds directly into the gradient buffer of the step. That buffer has a wider dtype if the
weights are 16-bit, so no micro-batch's gradient is rounded, written to memory and read back. Deferred: zero-bubble
schedules (arXiv 2401.10241) compute weight gradients, for which no other stage waits, while a rank would otherwise be
idle.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import torch

from trivium.comms.collectives import all_gather_begin
from trivium.comms.group import Group, PendingResult
from trivium.kernels.arithmetic import Arithmetic

Tensor = torch.Tensor


class _Product(NamedTuple):
    """A weight gradient grad^T x that has not been computed yet. If `group` is set, `x` has only this rank's positions
    and must be gathered over the group first. matrix, more: as in `WeightGradients.take`."""

    weight: torch.nn.Parameter
    grad: Tensor
    x: Tensor
    arithmetic: Arithmetic
    group: Group | None
    matrix: int | None
    more: bool

    def begin_gather(self) -> PendingResult:
        """Start the all-gather of `x`; without a group the result is `x` itself."""
        return PendingResult(None, self.x) if self.group is None else all_gather_begin(self.x, self.group)


class Sums(Protocol):
    """The place where the gradients of one step are summed over micro-batches."""

    def takes(self, weight: torch.nn.Parameter) -> bool:
        """Whether products of this weight are added at once."""

    def add(
        self, weight: torch.nn.Parameter, grad: Tensor, x: Tensor, arithmetic: Arithmetic, matrix: int | None
    ) -> None:
        """Add grad^T x; grad [T, outputs], x [T, inputs]. matrix: of a weight of several matrices, the one that has
        this gradient."""

    def added(self, weight: torch.nn.Parameter) -> None:
        """Handle the event that a backward has added its part of this weight's gradient."""


class _InParameters:
    """Gradients summed in `Parameter.grad`, as autograd does it. Deferred products are added there too."""

    def takes(self, weight: torch.nn.Parameter) -> bool:
        return False

    @torch.no_grad()
    def add(
        self, weight: torch.nn.Parameter, grad: Tensor, x: Tensor, arithmetic: Arithmetic, matrix: int | None
    ) -> None:
        if weight.grad is None and matrix is None:
            weight.grad = arithmetic.gradient_of_weight(grad, x).view_as(weight)
            return
        if weight.grad is None:
            weight.grad = torch.zeros_like(weight)
        place = weight.grad if matrix is None else weight.grad[matrix]
        arithmetic.add_gradient_of_weight(place.view(-1, x.shape[1]), grad, x)

    def added(self, weight: torch.nn.Parameter) -> None:
        """Do nothing: autograd's hooks already report it."""


BY_AUTOGRAD: Sums = _InParameters()


class WeightGradients:
    """The weight-gradient products of one pipeline stage.

    separate: set for schedules in which weight gradients are actions of their own, which compute the deferred products.
    Weights whose products are handled here are hidden from autograd's graph, because it would report a gradient for
    these leaves after every backward.
    """

    def __init__(self) -> None:
        self.separate = False
        self.sums: Sums = BY_AUTOGRAD
        self._waiting: dict[Hashable, list[_Product]] = {}
        self._key: Hashable | None = None

    @contextmanager
    def put_off(self, key: Hashable) -> Iterator[None]:
        """Defer the weight gradients of a backward that runs inside this context; `finish(key)` computes them."""
        self._key = key
        self._waiting[key] = []
        try:
            yield
        finally:
            self._key = None

    def takes(self, weight: torch.nn.Parameter) -> bool:
        """Whether the gradient of this weight comes by `take`, and not by autograd."""
        if torch.compiler.is_compiling() or torch.is_inference_mode_enabled():
            return False
        return weight.requires_grad and (self.separate or self.sums.takes(weight))

    @torch.no_grad()
    def finish(self, key: Hashable, accumulated: Callable[[torch.nn.Parameter], None]) -> None:
        """Compute the products deferred under `key` and add them to the gradients. accumulated: called after each."""
        for product, x in _whole(self._waiting.pop(key)):
            self.sums.add(product.weight, product.grad, x, product.arithmetic, product.matrix)
            if not product.more:
                accumulated(product.weight)

    @property
    def bytes(self) -> int:
        """Memory of the factors of deferred products; a storage that several factors share counts once."""
        kept = [t for products in self._waiting.values() for p in products for t in (p.grad, p.x)]
        return sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in kept}.values())

    def take(
        self,
        weight: torch.nn.Parameter,
        grad: Tensor,
        x: Tensor,
        arithmetic: Arithmetic,
        group: Group | None = None,
        *,
        matrix: int | None = None,
        more: bool = False,
    ) -> None:
        """Add grad^T x to the sum, or defer it. Shapes: grad [T, outputs], x [..., inputs] with T tokens.

        group: only for deferred products whose `x` has this rank's share of the T tokens; the group has all of them.
        matrix: of a weight of several matrices, the one that has this gradient. more: whether this backward has
        gradients of the weight's other matrices, too, which come after this one.
        """
        if self.separate:
            assert self._key is not None, "separate weight gradients are put off inside `put_off`"
            # Without the graph that made it, whose nodes would live as long.
            self._waiting[self._key].append(_Product(weight, grad, x.detach(), arithmetic, group, matrix, more))
        else:
            assert group is None, "what is added now was gathered before"
            self.sums.add(weight, grad, x.flatten(0, -2), arithmetic, matrix)
            if not more:
                self.sums.added(weight)


def _whole(products: Sequence[_Product]) -> Iterator[tuple[_Product, Tensor]]:
    """Yield each product with its x [T, inputs] gathered; the gather of the next one is under way meanwhile."""
    begun = [p.begin_gather() for p in products[:1]]
    for number, this in enumerate(products):
        begun += [p.begin_gather() for p in products[number + 1 : number + 2]]
        yield this, begun.pop(0).wait().flatten(0, -2)
