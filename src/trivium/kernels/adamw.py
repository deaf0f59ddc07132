"""The update of AdamW: by torch's fused kernel, or compiled in one pass.

One pass reads and writes every number once. With 16-bit weights and gradients it moves 28 bytes for each element:
masters and moments are read and written, the gradient is read, the weight is written. torch's fused kernel neither
clips nor narrows; with the passes for these it moves 40 bytes.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.fx.experimental import _config as shapes
from torch.optim.adamw import adamw

from trivium.optim.rules.adamw import AdamW

Tensor = torch.Tensor
# Takes states, grads, factor, numbers, decayed: those of `update_` for several slices.
OnePass = Callable[..., None]
# Slices that one call updates. torch.compile checks its assumptions once for each call, and that takes the host longer
# than launching the kernels.
SHARDS_PER_LAUNCH = 8


class Slice(NamedTuple):
    """Elements [n] of one group of parameters. The first `decayed` of them have weight decay. `master` and `states` are
    changed in place; `gradient` has the dtype of the master weights."""

    master: Tensor
    states: Mapping[str, Tensor]
    gradient: Tensor
    decayed: int


class Amount(NamedTuple):
    """Learning rate and weight decay of an update, and its number, counted from 1."""

    lr: float
    weight_decay: float
    step: int


def fused(rule: AdamW, slices: Sequence[Slice], amount: Amount, divisor: Tensor | None) -> None:
    """Update slices by torch's fused kernel, which divides fp32 gradients by `divisor` if it is given."""
    for decays in (True, False):
        parts = [(each, slice(0, each.decayed) if decays else slice(each.decayed, len(each.master))) for each in slices]
        parts = [(each, where) for each, where in parts if where.stop > where.start]
        if not parts:
            continue
        counts = torch.full((len(parts),), float(amount.step - 1), device=parts[0][0].master.device)
        adamw(
            [each.master[where] for each, where in parts],
            [each.gradient[where] for each, where in parts],
            [each.states["moment1"][where] for each, where in parts],
            [each.states["moment2"][where] for each, where in parts],
            [],
            list(counts.unbind()),  # the kernel adds 1 to each
            fused=True,
            grad_scale=divisor,
            amsgrad=False,
            beta1=rule.beta1,
            beta2=rule.beta2,
            lr=amount.lr,
            weight_decay=amount.weight_decay if decays else 0.0,
            eps=rule.epsilon,
            maximize=False,
        )


class State(NamedTuple):
    """Tensors [n] that are changed in place. weights: a copy of the masters in another dtype, or None."""

    master: Tensor
    moment1: Tensor
    moment2: Tensor
    weights: Tensor | None


class Numbers(NamedTuple):
    """The numbers of an update. They are one tensor on the device, because a compiled kernel treats Python floats as
    constants.

    decay: learning rate times weight decay. towards1, towards2: 1 - beta1, 1 - beta2. stays2: beta2. rate: learning
    rate divided by the first moment's correction. root: the inverse root of the second moment's correction. epsilon:
    added to the second moment's root.
    """

    decay: float
    towards1: float
    stays2: float
    towards2: float
    rate: float
    root: float
    epsilon: float


def numbers_of(rule: AdamW, amount: Amount) -> Numbers:
    """Return the numbers of an update."""
    return Numbers(
        decay=amount.lr * amount.weight_decay,
        towards1=1 - rule.beta1,
        stays2=rule.beta2,
        towards2=1 - rule.beta2,
        rate=amount.lr / (1 - rule.beta1**amount.step),
        root=(1 - rule.beta2**amount.step) ** -0.5,
        epsilon=rule.epsilon,
    )


def update_(state: State, grad: Tensor, factor: Tensor, numbers: Tensor, decayed: Tensor) -> None:
    """Apply AdamW (Loshchilov and Hutter, arXiv 1711.05101) with `factor` times the gradient [n] of any dtype.

    factor, decayed: tensors of one element; the first `decayed` elements have weight decay. numbers: [7], in the order
    of `Numbers`.
    """
    master, moment1, moment2, weights = state
    decay, towards1, stays2, towards2, rate, root, epsilon = numbers.unbind()
    wide = grad.to(master.dtype) * factor.to(master.dtype)
    decays = torch.arange(len(master), device=master.device) < decayed
    first = moment1 + (wide - moment1) * towards1
    second = moment2 * stays2 + wide * wide * towards2
    found = master * (1 - decays * decay) - rate * first / (second.sqrt() * root + epsilon)
    moment1.copy_(first)
    moment2.copy_(second)
    master.copy_(found)
    if weights is not None:
        weights.copy_(found)


def update_all_(
    states: Iterable[Sequence[Any]], grads: Sequence[Tensor], factor: Tensor, numbers: Tensor, decayed: Sequence[Tensor]
) -> None:
    """Call `update_` for several slices. states: their masters, first moments, second moments and weights."""
    for *state, grad, until in zip(*states, grads, decayed, strict=True):
        update_(State(*state), grad, factor, numbers, until)


def compiled_update() -> OnePass:
    """Return `update_all_`, compiled once for each number of slices, which may have any length."""
    compiled, numbers_seen = torch.compile(update_all_, dynamic=True), set[int]()

    def update(states: Sequence[State], *others: Any) -> None:
        # Lists of tensors alone are checked faster than tuples of names.
        columns = [list(column) for column in zip(*states, strict=True)]
        if len(states) in numbers_seen:
            compiled(columns, *others)
            return
        # By default, slices of equal length in the first call would have to have equal lengths in all calls.
        with shapes.patch(use_duck_shape=False):  # pyrefly: ignore[missing-attribute]  # as of every config of torch
            compiled(columns, *others)
        numbers_seen.add(len(states))

    return update
