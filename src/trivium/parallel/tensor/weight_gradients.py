"""Where the weight gradients of linear layers go: into the sum of the step, at once or later.

At once the product adds into the sum itself, which is of a wider dtype where the weights are narrow: no gradient of one
micro-batch is rounded, written down and read again. Later, zero-bubble schedules (arXiv 2401.10241) put weight
gradients, for which nobody waits, where a rank would idle.
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
    """grad^T x is the gradient of `weight`. group: of whose ranks each has its positions of x, or None: x is whole."""

    weight: torch.nn.Parameter
    grad: Tensor
    x: Tensor
    arithmetic: Arithmetic
    group: Group | None

    def begin_gather(self) -> PendingResult:
        """Of all positions of x."""
        return PendingResult(None, self.x) if self.group is None else all_gather_begin(self.x, self.group)


class Sums(Protocol):
    """Of the gradients of a step."""

    def takes(self, weight: torch.nn.Parameter) -> bool:
        """Whether products of this weight are added at once."""

    def add(self, weight: torch.nn.Parameter, grad: Tensor, x: Tensor, arithmetic: Arithmetic) -> None:
        """Add grad^T x; grad [T, outputs], x [T, inputs]."""

    def added(self, weight: torch.nn.Parameter) -> None:
        """What a backward adds to this weight's gradient is added."""


class _InParameters:
    """Autograd sums gradients up, in the parameters; so do the products that were put off."""

    def takes(self, weight: torch.nn.Parameter) -> bool:
        return False

    @torch.no_grad()
    def add(self, weight: torch.nn.Parameter, grad: Tensor, x: Tensor, arithmetic: Arithmetic) -> None:
        if weight.grad is None:
            weight.grad = arithmetic.gradient_of_weight(grad, x).view_as(weight)
        else:
            arithmetic.add_gradient_of_weight(weight.grad.view(grad.shape[1], x.shape[1]), grad, x)

    def added(self, weight: torch.nn.Parameter) -> None:
        """Autograd's hooks tell."""


BY_AUTOGRAD: Sums = _InParameters()


class WeightGradients:
    """The products of a stage: added to `sums` in the backward, or put off, by the action that will compute them.

    separate: set for programs whose weight gradients are actions of their own. Weights whose products are taken are no
    leaves of autograd's graph, which would otherwise report a gradient for them at every backward.
    """

    def __init__(self) -> None:
        self.separate = False
        self.sums: Sums = BY_AUTOGRAD
        self._waiting: dict[Hashable, list[_Product]] = {}
        self._key: Hashable | None = None

    @contextmanager
    def put_off(self, key: Hashable) -> Iterator[None]:
        """Backward inside leaves weight gradients to `finish(key)`."""
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
        """Compute what was put off under `key`, adding to each parameter's gradient."""
        for product, x in _whole(self._waiting.pop(key)):
            self.sums.add(product.weight, product.grad, x, product.arithmetic)
            accumulated(product.weight)

    @property
    def bytes(self) -> int:
        """Of the factors that are kept, each storage once."""
        kept = [t for products in self._waiting.values() for p in products for t in (p.grad, p.x)]
        return sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in kept}.values())

    def take(
        self, weight: torch.nn.Parameter, grad: Tensor, x: Tensor, arithmetic: Arithmetic, group: Group | None = None
    ) -> None:
        """Add a product to the sum now, or keep it for later: grad [T, outputs], x [..., inputs] of T tokens; later
        also of those that all ranks of a group have."""
        if self.separate:
            assert self._key is not None, "separate weight gradients are put off inside `put_off`"
            # Without the graph that made it, whose nodes would live as long.
            self._waiting[self._key].append(_Product(weight, grad, x.detach(), arithmetic, group))
        else:
            assert group is None, "what is added now was gathered before"
            self.sums.add(weight, grad, x.flatten(0, -2), arithmetic)
            self.sums.added(weight)


def _whole(products: Sequence[_Product]) -> Iterator[tuple[_Product, Tensor]]:
    """Yield each product with its x [T, inputs] gathered; the gather of the next one is under way meanwhile."""
    begun = [p.begin_gather() for p in products[:1]]
    for number, this in enumerate(products):
        begun += [p.begin_gather() for p in products[number + 1 : number + 2]]
        yield this, begun.pop(0).wait().flatten(0, -2)
